"""vgg: its count by hand, one net for every size, and dropout."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from crossward.nets.vgg import vgg

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_known_parameter_counts():
    with torch.device("meta"):
        net = vgg(channels=3, classes=8, size=64)
    convolutions = parameters(net.body[:5])
    assert convolutions == 14_710_464 + 2 * 4224  # VGG-16's weights of convolutions, and norms for its 4224 channels
    connected = (4 * 512 * 4096 + 4096) + (4096 * 4096 + 4096)
    assert parameters(net) == convolutions + connected + (4096 * 8 + 8) == 39_925_704
    assert net.width == 4096


def test_thirteen_convolutions_and_two_linear_layers():
    net = vgg(channels=1, classes=2, size=32, width=0.05)
    kinds = [type(m) for m in net.body.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert kinds == [nn.Conv2d] * 13 + [nn.Linear] * 2


@pytest.mark.parametrize(("size", "side"), [(16, 1), (24, 1), (28, 1), (64, 2), (129, 5)])
def test_maps_before_they_are_averaged(size: int, side: int):
    net = vgg(channels=1, classes=2, size=size, width=0.05)
    assert net.eval().body[:5](torch.randn(1, 1, size, size)).shape[2] == side
    assert parameters(net) == parameters(vgg(channels=1, classes=2, size=64, width=0.05))


def test_dropout_follows_each_linear_layer_of_the_body():
    net = vgg(channels=1, classes=2, size=24, width=0.125, dropout=0.25)
    assert [m.p for m in net.modules() if isinstance(m, nn.Dropout)] == [0.25, 0.25]
    still = vgg(channels=1, classes=2, size=24, width=0.125, dropout=0.0).train()
    x = torch.randn(2, 1, 24, 24)
    assert torch.equal(still.features(x), still.features(x))
    assert not torch.equal(net.features(x), net.features(x))
