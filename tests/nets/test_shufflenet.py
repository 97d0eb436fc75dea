"""shufflenet: known counts, the channels of x1.0, and how its units split and mix."""

from __future__ import annotations

import torch
from torch import nn

from crossward.nets.shufflenet import DownsamplingUnit, ShuffleUnit, shuffle_channels, shufflenet

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_known_parameter_counts():
    with torch.device("meta"):
        assert parameters(shufflenet(channels=3, classes=1000, size=224)) == 2_278_604  # ShuffleNetV2 x1.0
        assert parameters(shufflenet(channels=3, classes=8, size=224)) == 2_278_604 - 992 * 1025 == 1_261_804
        assert parameters(shufflenet(channels=3, classes=8, size=28)) == 1_261_804


def test_channels_are_the_papers():
    net = shufflenet(channels=3, classes=2, size=64).eval()
    x = torch.randn(1, 3, 64, 64)
    shapes = []
    for part in net.body[:5]:
        x = part(x)
        shapes.append((x.shape[1], x.shape[2]))
    assert shapes == [(24, 16), (116, 8), (232, 4), (464, 2), (1024, 2)]
    assert [len(stage) for stage in net.body[1:4]] == [4, 8, 4]


def test_channels_take_turns():
    left, right = torch.tensor([0.0, 1.0, 2.0]).view(1, 3, 1, 1), torch.tensor([10.0, 11.0, 12.0]).view(1, 3, 1, 1)
    assert shuffle_channels(left, right).flatten().tolist() == [0, 10, 1, 11, 2, 12]


def test_a_unit_leaves_one_half_alone():
    unit = ShuffleUnit(8).eval()
    x = torch.randn(2, 8, 5, 5)
    y = unit(x)
    assert torch.equal(y[:, ::2], x[:, :4])
    assert torch.equal(y[:, 1::2], unit.branch(x[:, 4:]))


def test_a_halving_unit_takes_all_channels_twice():
    assert DownsamplingUnit(8, 24)(torch.randn(2, 8, 7, 7)).shape == (2, 24, 4, 4)
    first = DownsamplingUnit(8, 24).shortcut[0]
    second = DownsamplingUnit(8, 24).branch[0]
    assert first.in_channels == 8
    assert first.groups == 8
    assert second.in_channels == 8
