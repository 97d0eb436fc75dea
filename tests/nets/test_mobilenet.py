"""mobilenet: known counts, the paper's table of stages, and its inverted residuals."""

from __future__ import annotations

import torch
from torch import nn

from crossward.nets.mobilenet import InvertedResidual, mobilenet

torch.set_num_threads(1)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_known_parameter_counts():
    with torch.device("meta"):
        assert parameters(mobilenet(channels=3, classes=1000, size=224)) == 3_504_872  # MobileNetV2 1.0
        assert parameters(mobilenet(channels=3, classes=8, size=224)) == 3_504_872 - 992 * 1281 == 2_234_120
        assert parameters(mobilenet(channels=3, classes=8, size=28)) == 2_234_120


def test_shapes_of_the_stages():
    net = mobilenet(channels=3, classes=2, size=64).eval()
    x = torch.randn(1, 3, 64, 64)
    shapes = []
    for part in net.body[:9]:
        x = part(x)
        shapes.append((x.shape[1], x.shape[2]))
    assert shapes == [(32, 32), (16, 32), (24, 16), (32, 8), (64, 4), (96, 4), (160, 2), (320, 2), (1280, 2)]


def test_small_images_are_halved_three_times():
    net = mobilenet(channels=3, classes=2, size=32, width=0.125).eval()
    assert net.body[:9](torch.randn(1, 3, 32, 32)).shape[2] == 4


def test_a_block_skips_where_the_shape_stays():
    x = torch.randn(2, 8, 6, 6)
    block = InvertedResidual(8, 8, 1, 6).eval()
    assert torch.equal(block(x), x + block.residual(x))
    assert not InvertedResidual(8, 16, 1, 6).skips
    assert InvertedResidual(8, 8, 2, 6)(x).shape == (2, 8, 3, 3)


def test_a_block_by_hand():
    wider = 8 * 48 + 96
    alone = 48 * 9 + 96
    narrower = 48 * 16 + 32
    assert parameters(InvertedResidual(8, 16, 1, 6)) == wider + alone + narrower
    assert parameters(InvertedResidual(8, 16, 1, 1)) == (8 * 9 + 16) + (8 * 16 + 32)
    assert isinstance(InvertedResidual(8, 16, 1, 6).residual[-1], nn.BatchNorm2d)  # no activation where it is narrow
