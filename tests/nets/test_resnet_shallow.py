"""resnet17, resnet11, resnet8 and resnet5: counts by hand, and three convolutions of one width in each block."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from crossward.core.net import Net
from crossward.nets.resnet_shallow import resnet5, resnet8, resnet11, resnet17

torch.set_num_threads(1)
COUNTS = [(resnet17, 4_562_626, 4_565_704), (resnet11, 952_002, 953_544), (resnet8, 228_802, 229_576),
          (resnet5, 47_426, 47_816)]  # fmt: skip


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def block(before: int, width: int) -> int:
    """Parameters of a bottleneck without expansion: convolutions and norms, and a shortcut where the width changes."""
    inside = before * width + 9 * width * width + width * width + 3 * 2 * width
    return inside + (before * width + 2 * width if before != width else 0)


@pytest.mark.parametrize(("maker", "of_two", "of_eight"), COUNTS)
@pytest.mark.parametrize("size", [48, 384])
def test_known_parameter_counts(maker: Callable[..., Net], of_two: int, of_eight: int, size: int):
    with torch.device("meta"):
        assert parameters(maker(channels=3, classes=2, size=size)) == of_two
        assert parameters(maker(channels=3, classes=8, size=size)) == of_eight


def test_counts_by_hand():
    stem = 3 * 64 * 9 + 2 * 64
    assert stem + block(64, 64) + 64 * 2 + 2 == 47_426
    eight = stem + block(64, 64) + block(64, 128)
    assert eight + 128 * 2 + 2 == 228_802
    eleven = eight + block(128, 256)
    assert eleven + 256 * 2 + 2 == 952_002
    assert eleven + block(256, 256) + block(256, 512) + 512 * 2 + 2 == 4_562_626


@pytest.mark.parametrize(("maker", "layers"), [(resnet17, 17), (resnet11, 11), (resnet8, 8), (resnet5, 5)])
def test_the_name_counts_the_layers(maker: Callable[..., Net], layers: int):
    net = maker(channels=1, classes=2, size=32, width=0.125)
    on_the_way = [n for n, m in net.named_modules() if isinstance(m, nn.Conv2d | nn.Linear) and "shortcut" not in n]
    assert len(on_the_way) == layers


def test_blocks():
    net = resnet17(channels=1, classes=2, size=64, width=0.125)
    assert [len(stage) for stage in net.body[1:5]] == [1, 1, 2, 1]
    assert net.body[0][0].kernel_size == (3, 3)
    assert net.body[0][0].stride == (2, 2)
    first, second = net.body[3]
    shapes = [(m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0]) for m in first.residual
              if isinstance(m, nn.Conv2d)]  # fmt: skip
    assert shapes == [(16, 32, 1, 1), (32, 32, 3, 2), (32, 32, 1, 1)]
    assert isinstance(first.shortcut[0], nn.Conv2d)
    assert isinstance(second.shortcut, nn.Identity)
    assert isinstance(net.body[1][0].shortcut, nn.Identity)


def test_group_norm_has_no_buffers():
    net = resnet5(channels=1, classes=2, size=24, width=0.125, norm="group")
    assert list(net.buffers()) == []
    assert net(torch.randn(1, 1, 24, 24)).shape == (1, 2)
