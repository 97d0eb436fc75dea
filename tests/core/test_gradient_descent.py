"""The server's own fits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crossward.core.gradient_descent import minimise
from crossward.errors import RunError


def test_adam_by_hand():
    x = nn.Parameter(torch.tensor([3.0]))
    mean = minimise(lambda: (x**2).sum(), [x], 2, lr=0.1)
    # Adam's first step is lr * sign(g); its second is as long within 1e-3, the gradient having hardly changed
    assert x.item() == pytest.approx(2.8, abs=2e-3)
    assert mean == pytest.approx((9 + 2.9**2) / 2, abs=1e-4)
    assert x.grad is None


def test_sgd_by_hand():
    x = nn.Parameter(torch.tensor([3.0, -1.0]))
    mean = minimise(lambda: (x**2).sum(), [x], 2, lr=0.1, rule="sgd")
    torch.testing.assert_close(x.detach(), torch.tensor([3.0, -1.0]) * 0.8**2)  # x - 0.1 * 2x, twice
    assert mean == pytest.approx((10 + 6.4) / 2)
    assert x.grad is None


def test_a_cosine_schedule_ends_at_no_rate():
    x = nn.Parameter(torch.tensor([0.0]))
    positions = []

    def loss():
        positions.append(x.item())
        return -x.sum()  # a gradient of -1: each step is as long as the rate

    minimise(loss, [x], 4, lr=0.1, rule="sgd", schedule="cosine")
    rates = [b - a for a, b in zip(positions, [*positions[1:], x.item()], strict=True)]
    half = 0.5**0.5
    assert rates == pytest.approx([0.1, 0.05 * (1 + half), 0.05, 0.05 * (1 - half)])


def test_a_parameter_that_the_loss_does_not_use_stays():
    x, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    for rule in ("adam", "sgd"):
        minimise(lambda: (x**2).sum(), [x, idle], 2, lr=0.1, rule=rule)
    assert torch.equal(idle, torch.ones(2))
    assert (x < 1).all()


@pytest.mark.parametrize("rule", ["adam", "sgd"])
def test_no_steps_change_nothing(rule: str):
    x = nn.Parameter(torch.tensor([3.0]))
    assert minimise(lambda: (x**2).sum(), [x], 0, lr=0.1, rule=rule) == 0.0
    assert x.item() == 3.0


@pytest.mark.parametrize("rule", ["adam", "sgd"])
def test_only_the_given_parameters_move(rule: str):
    x, held = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    minimise(lambda: (x * held).sum(), [x], 3, lr=0.1, rule=rule)
    assert torch.equal(held, torch.ones(2))
    assert held.grad is None
    assert (x < 1).all()


def test_what_is_not_a_number_is_told():
    x = nn.Parameter(torch.tensor([1.0]))
    with pytest.raises(RunError, match="the guess became nan"):
        minimise(lambda: (x * float("nan")).sum(), [x], 1, lr=0.1, what="the guess")
