"""Training: every schedule and every optimiser, a few steps by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crossward.core import optimisers
from crossward.core.training import Training


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.8, 0.8, 0.8, 0.8, 0.8]),
        ("round", [0.8, 0.8, 0.4, 0.2, 0.1]),
        ("epoch", [0.8, 0.4, 0.1, 0.0125, 0.8 / 512]),  # three epochs in a round: 0.5 ** (3 * round + epoch)
        ("milestones", [0.8, 0.8, 0.4, 0.4, 0.2]),  # from the second and from the fourth round on
    ],
)
def test_rate(schedule, expected):
    training = Training(epochs=3, lr=0.8, schedule=schedule, gamma=0.5, milestones=(2, 4))
    at = [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)]
    assert [training.rate(round, epoch) for round, epoch in at] == pytest.approx(expected)


def test_milestones_in_any_order_and_from_the_first_round():
    training = Training(lr=1.0, schedule="milestones", gamma=0.1, milestones=(3, 1))
    assert [training.rate(round, 0) for round in range(3)] == pytest.approx([0.1, 0.1, 0.01])


def stepped(training, gradients, start=1.0, lr=0.1):
    parameter = nn.Parameter(torch.tensor([start]))
    optimiser = training.optimiser([parameter], lr)
    for gradient in gradients:
        parameter.grad = torch.tensor([gradient])
        optimiser.step()
    return parameter.item()


def test_sgd():
    assert stepped(Training(), [2.0, -1.0]) == pytest.approx(1 - 0.1 * 2 + 0.1 * 1)


def test_sgd_with_momentum():
    v = [2.0, 0.9 * 2.0 - 1.0]
    assert stepped(Training(momentum=0.9), [2.0, -1.0]) == pytest.approx(1 - 0.1 * v[0] - 0.1 * v[1])


def test_sgd_with_weight_decay():
    first = 1 - 0.1 * (2.0 + 0.5 * 1)
    assert stepped(Training(weight_decay=0.5), [2.0, -1.0]) == pytest.approx(first - 0.1 * (-1.0 + 0.5 * first))


def test_adam():
    # bias correction makes the first step lr * sign(g); the second by the book
    assert stepped(Training(optimizer="adam"), [2.0]) == pytest.approx(0.9)
    m, v = 0.9 * 0.1 * 2 + 0.1 * -1, 0.999 * 0.001 * 4 + 0.001 * 1
    second = 0.1 * (m / (1 - 0.9**2)) / (v / (1 - 0.999**2)) ** 0.5
    assert stepped(Training(optimizer="adam"), [2.0, -1.0]) == pytest.approx(0.9 - second, rel=1e-5)


def test_adam_adds_weight_decay_to_the_gradient_and_adamw_to_the_step():
    # with a gradient of -0.5, Adam sees -0.5 + 1 * 1 = 0.5 and steps the other way
    assert stepped(Training(optimizer="adam", weight_decay=1.0), [-0.5]) == pytest.approx(0.9)
    assert stepped(Training(optimizer="adamw", weight_decay=1.0), [-0.5]) == pytest.approx(1 * (1 - 0.1) + 0.1)


def test_momentum_is_sgds_only():
    assert stepped(Training(optimizer="adamw", momentum=0.9), [2.0]) == pytest.approx(0.9)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_optimisers_are_fused_and_take_a_generator(name):
    net = nn.Linear(2, 2)
    optimiser = Training(optimizer=name).optimiser((p for p in net.parameters()), 0.1)
    assert optimiser.defaults["fused"]
    assert optimiser.param_groups[0]["params"] == list(net.parameters())
    assert {"sgd": optimisers.SGD, "adam": optimisers.Adam, "adamw": optimisers.AdamW}[name] is type(optimiser)
