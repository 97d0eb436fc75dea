"""resunet: residual units, parameter counts by hand."""

from __future__ import annotations

import torch
from torch import nn

from crossward.nets.resunet import ResidualUnit, resunet

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_parameters_by_hand():
    def unit(a: int, b: int) -> int:
        return 2 * a + 9 * a * b + 2 * b + 9 * b * b + a * b

    image = unit(1, 2) - 2 * 1  # no BatchNorm on the image
    net = resunet(channels=1, classes=3, size=24, base=2, levels=3)
    assert parameters(net) == image + unit(2, 4) + unit(4, 8) + unit(12, 4) + unit(6, 2) + (2 * 3 + 3)


def test_parameters_of_the_default_and_of_the_papers():
    assert parameters(resunet(channels=3, classes=2, size=24)) == 515_138
    with torch.device("meta"):
        as_printed = resunet(channels=3, classes=2, size=24, base=64)
        as_federated = resunet(channels=3, classes=2, size=24, base=100)
    assert parameters(as_printed) == 8_216_834
    assert parameters(as_federated) == 20_053_202


def test_a_silent_residual_leaves_the_shortcut():
    unit = ResidualUnit(3, 2, stride=2)
    nn.init.zeros_(unit.residual[-1].weight)
    nn.init.ones_(unit.shortcut.weight)
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(unit(x), x[:, :, ::2, ::2].sum(1, keepdim=True).expand(2, 2, 3, 3))


def test_halves_by_strides():
    net = resunet(channels=1, classes=2, size=33, base=2).eval()
    x = torch.randn(1, 1, 33, 33)
    sides = []
    for unit in net.body.down:
        x = unit(x)
        sides.append(tuple(x.shape[1:]))
    assert sides == [(2, 33, 33), (4, 17, 17), (8, 9, 9), (16, 5, 5)]
