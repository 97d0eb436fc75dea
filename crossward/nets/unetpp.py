"""U-Net++ (Zhou et al., DLMIA 2018, https://arxiv.org/abs/1807.10165) without deep supervision, for any image size.

Between the encoder X^{i,0} and the decoder lies a triangle of nodes: X^{i,j} sees every X^{i,0..j-1} of its own level
and X^{i+1,j-1}, up-sampled, of the level below (Eq. 1). Features are the last node of the first level, X^{0,L}. The
paper has five levels and transposed convolutions; BatchNorm and the bilinear way up are ours.

For 3 channels and 2 classes: 511,490 parameters; with `base=36, levels=5` 10.6 M, with five levels the nearest to the
10.4 M of the U-Net++ in MH-pFLGB's paper; with `base=32, levels=5, up="transposed"` 9.05 M (its own paper: 9.04 M).
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.net import Net
from crossward.nets.segmentation_layers import Upsample, channels_per_level, double_conv, require_levels, require_up


def unetpp(*, channels: int, classes: int, size: int, base: int = 16, levels: int = 4, up: str = "bilinear") -> Net:
    """U-Net++ with nested skip connections, for any image size.

    base: channels at full resolution, and the width of the features, (B, base, H, W).
    levels: resolutions; the number of channels doubles at each.
    up: how the decoder up-samples, "bilinear" or "transposed" (convolutions).
    """
    require_up("unetpp", up)
    require_levels("unetpp", size, base, levels)
    return Net(NestedBody(channels, channels_per_level(base, levels), up), nn.Conv2d(base, classes, 1), base)


class NestedBody(nn.Module):
    def __init__(self, channels: int, widths: list[int], up: str) -> None:
        super().__init__()
        last = len(widths) - 1  # L
        self.positions = [(i, j) for j in range(1, last + 1) for i in range(last - j + 1)]
        self.down = nn.ModuleList(double_conv(a, b) for a, b in pairwise([channels, *widths]))  # X^{i,0}
        self.nodes = nn.ModuleList(Node(j, widths[i], widths[i + 1], up) for i, j in self.positions)

    def forward(self, x: Tensor) -> Tensor:
        rows: list[list[Tensor]] = []  # rows[i][j] is X^{i,j}
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            rows.append([x])
        for (i, j), node in zip(self.positions, self.nodes, strict=True):
            rows[i].append(node(rows[i], rows[i + 1][j - 1]))
        return rows[0][-1]


class Node(nn.Module):
    """X^{i,j} for j > 0, which sees j maps of `width` channels and one of `width_below`."""

    def __init__(self, j: int, width: int, width_below: int, up: str) -> None:
        super().__init__()
        self.lift = Upsample(width_below, width, up)
        self.join = double_conv((j + 1) * width, width)

    def forward(self, row: list[Tensor], below: Tensor) -> Tensor:
        return cast(Tensor, self.join(torch.cat([*row, self.lift(below, row[0])], 1)))  # Eq. 1
