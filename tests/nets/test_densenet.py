"""densenet: its count by hand, what a layer adds, and halving of odd sizes."""

from __future__ import annotations

import torch
from torch import nn

from crossward.nets.densenet import DenseLayer, densenet

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_known_parameter_counts():
    with torch.device("meta"):
        net = densenet(channels=3, classes=8, size=64)
        small = densenet(channels=3, classes=8, size=28)
    assert parameters(net) == 1_150_280
    assert net.width == 336
    assert parameters(net) - parameters(small) == 3 * 32 * (49 - 9)


def test_count_by_hand():
    """Growth k, from 2 k channels: norm and 1x1 to 4 k, norm and 3x3 to k; half of the channels between blocks."""
    k = 16
    c = 2 * k
    total = 3 * 2 * k * 49 + 2 * 2 * k
    for ordinal, depth in enumerate((6, 12, 18, 8), 1):
        for _ in range(depth):
            total += (2 * c + c * 4 * k) + (2 * 4 * k + 4 * k * k * 9)
            c += k
        if ordinal < 4:
            total += 2 * c + c * c // 2
            c //= 2
    assert total + 2 * c + 8 * c + 8 == 1_150_280
    assert c == 336


def test_a_layer_adds_channels_and_keeps_the_others():
    layer = DenseLayer(16, 8).eval()
    x = torch.randn(2, 16, 5, 5)
    y = layer(x)
    assert y.shape == (2, 24, 5, 5)
    assert torch.equal(y[:, :16], x)
    assert torch.equal(y[:, 16:], layer.new(x))
    assert layer.new[2].out_channels == 32


def test_a_layer_does_not_overwrite_its_input():
    x = torch.randn(2, 16, 5, 5)
    before = x.clone()
    DenseLayer(16, 8)(x)
    assert torch.equal(x, before)


def test_no_pixel_of_an_odd_size_is_lost():
    net = densenet(channels=1, classes=2, size=25, width=0.5).eval()
    x = torch.randn(1, 1, 25, 25, requires_grad=True)
    maps = net.body[:8](x)
    assert maps.shape[-1] == 4  # 25, 13, 7, 4
    maps.square().sum().backward()
    assert bool((x.grad[0, 0, -1] != 0).any())
