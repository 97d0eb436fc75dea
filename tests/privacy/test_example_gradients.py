"""Norms and weighted sums of per-example gradients equal those of examples taken one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from crossward import nets
from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.privacy.example_gradients import recording

SIZE = 5


def one_by_one(net, x, y):
    """Each example's gradient, by a backward pass of its own."""
    found = []
    for i in range(len(x)):
        net.zero_grad()
        F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
        found.append({n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in net.named_parameters()})
    net.zero_grad()
    return found


def check(net, x, classes=3):
    y = torch.arange(len(x)) % classes
    trained = {n: p for n, p in net.named_parameters() if p.requires_grad}
    expected = one_by_one(net, x, y)
    plain = net(x)
    with recording(net, trained) as examples:
        assert torch.allclose(net(x), plain, atol=1e-5)
        F.cross_entropy(net(x), y).backward()
        examples.clear()
        F.cross_entropy(net(x), y).backward()
        assert all(p.grad is None for p in trained.values())
        norms = examples.norms(len(x)) * len(x)
        weights = torch.linspace(0.1, 2, len(x))
        sums = examples.weighted_sums(weights * len(x))
    alone = torch.stack([torch.stack([g[n].square().sum() for n in trained]).sum().sqrt() for g in expected])
    torch.testing.assert_close(norms, alone, rtol=2e-4, atol=1e-6)
    assert {*sums} == {*trained}
    for name in trained:
        by_hand = sum(w * g[name] for w, g in zip(weights, expected, strict=True))
        torch.testing.assert_close(sums[name], by_hand, rtol=2e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
    assert "forward" not in vars(next(m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)))
    torch.testing.assert_close(net(x), plain)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cnn", {}),
        ("cnn", {"projection": 6}),
        ("resnet18", {"width": 0.125, "norm": "group"}),
        ("resnext", {"width": 0.125, "norm": "group"}),
        ("senet", {"width": 0.125, "norm": "group"}),
    ],
)
def test_nets_of_the_catalogue(name, options):
    torch.manual_seed(0)
    net = nets.build(name, channels=3, classes=3, size=28, **options).to(memory_format=torch.channels_last).train()
    check(net, torch.rand(SIZE, 3, 28, 28).to(memory_format=torch.channels_last))


def around(*layers, width):
    return Net(nn.Sequential(*layers), nn.Linear(width, 3), width)


@pytest.mark.parametrize(
    "net",
    [
        lambda: around(nn.Conv2d(2, 4, 3, 2, padding=1, dilation=2), nn.ReLU(inplace=True), nn.Flatten(), width=36),
        lambda: around(nn.Conv2d(2, 4, 3, padding="same"), nn.ReLU(), nn.Flatten(), width=256),
        lambda: around(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.Flatten(), width=256),
        lambda: around(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), width=144),
        lambda: around(nn.Conv2d(2, 64, 8, bias=False), nn.Flatten(), nn.LayerNorm(64), width=64),
        lambda: around(nn.Flatten(2), nn.Linear(64, 6), nn.LayerNorm(6), nn.Flatten(), width=12),
        lambda: around(nn.Conv2d(2, 4, 1, stride=2), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), width=64),
        lambda: around(nn.Conv2d(2, 16, 5, stride=4), nn.ReLU(inplace=True), nn.Flatten(), width=16),
    ],
    ids=["dilated", "same", "reflect", "groups", "ghost", "rows", "strided", "in-place"],
)  # fmt: skip
def test_layers_of_every_kind(net):
    torch.manual_seed(1)
    check(net(), torch.randn(SIZE, 2, 8, 8))


def test_a_layer_that_is_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    torch.manual_seed(2)
    check(around(nn.Flatten(), nn.Linear(128, 6), Twice(), width=6), torch.randn(SIZE, 2, 8, 8))


def test_frozen_layers_are_left_out():
    torch.manual_seed(3)
    net = nets.build("cnn", channels=3, classes=3, size=28)
    net.body.requires_grad_(False)
    check(net, torch.rand(SIZE, 3, 28, 28))


def test_layers_without_per_example_gradients_are_refused_by_name():
    net = nets.build("resnet18", channels=3, classes=3, size=28, width=0.125)
    with pytest.raises(ConfigError) as refused, recording(net, dict(net.named_parameters())):
        pass
    assert "BatchNorm2d" in str(refused.value)


def test_an_input_that_is_written_to_afterwards_is_noticed():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            x = x * 1.0
            y = self.layer(x)
            x.zero_()
            return y

    net = around(nn.Flatten(), Writes(), width=4)
    with recording(net, dict(net.named_parameters())) as examples:
        net(torch.randn(3, 1, 2, 2)).sum().backward()
        with pytest.raises(RuntimeError, match="written to"):
            examples.norms(3)
