"""fcn: the sum over three scales, parameter counts by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from crossward.nets.fcn import _max_pool, fcn

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_parameters_by_hand():
    def convolutions(*widths: int) -> int:
        return sum(9 * a * b + 2 * b for a, b in pairwise(widths))

    vgg = convolutions(1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8)
    top = convolutions(8, 16) + 16 * 16 + 2 * 16
    fuse = (16 + 1) + (8 + 1) + (4 + 1)
    net = fcn(channels=1, classes=3, size=24, base=1)
    assert parameters(net) == vgg + top + fuse + (3 + 3)


def test_parameters_of_the_default_and_of_the_paper():
    assert parameters(fcn(channels=3, classes=2, size=24)) == 1_290_562
    with torch.device("meta"):
        as_federated = fcn(channels=3, classes=2, size=24, base=80)
    assert parameters(as_federated) == 32_191_042


@pytest.mark.parametrize(
    ("size", "sides"),
    [(512, [256, 128, 64, 32, 16]), (33, [17, 9, 5, 3, 2]), (24, [12, 6, 3, 2, 2]), (16, [8, 4, 2, 2, 2])],
)
def test_pooling_stops_at_2_x_2(size: int, sides: list[int]):
    x = torch.zeros(1, 1, size, size)
    for side in sides:
        x = _max_pool(x)
        assert x.shape[2] == side


def test_the_sum_of_features_is_the_papers_sum_of_scores():
    """Scores of each scale first, then up-sampled and summed, as the paper writes it."""
    net = fcn(channels=1, classes=2, size=64, base=4).eval()
    body = net.body
    x = torch.randn(1, 1, 64, 64)
    maps = []
    here = x
    for stage in body.stages:
        here = nn.functional.max_pool2d(stage(here), 2)
        maps.append(here)
    weight = net.head.weight
    scores = [
        nn.functional.conv2d(fuse(m), weight)
        for fuse, m in zip(body.fuse, [body.top(maps[4]), maps[3], maps[2]], strict=True)
    ]
    assert [s.shape[2] for s in scores] == [2, 4, 8]
    twice = nn.Upsample(scale_factor=2, mode="bilinear")
    total = twice(twice(scores[0]) + scores[1]) + scores[2]
    expected = nn.Upsample(scale_factor=8, mode="bilinear")(total) + net.head.bias.view(1, 2, 1, 1)
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)
