"""Deep residual U-Net (Zhang, Liu and Wang, IEEE GRSL 2018, https://arxiv.org/abs/1711.10684), for any image size.

Each level is one residual unit of two pre-activated 3x3 convolutions (BatchNorm, ReLU, convolution, twice); strides
take the place of pooling, and up-sampling, here bilinear, has no weights. The paper's net has four levels from 64
channels. A unit always changes the number of channels, so its shortcut is a 1x1 convolution.

For 3 channels and 2 classes: 515,138 parameters; with `base=100` 20.1 M, the nearest to the 19.9 M of the ResUNet in
MH-pFLGB's paper; `base=50, levels=5` has 20.2 M at a third of the FLOPs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from crossward.core.net import Net
from crossward.nets.segmentation_layers import doubling, require_levels, resized


def resunet(*, channels: int, classes: int, size: int, base: int = 16, levels: int = 4) -> Net:
    """`base` channels at full resolution, doubled at each of `levels` resolutions; features are (B, base, H, W)."""
    require_levels("resunet", size, base, levels)
    return Net(ResidualBody(channels, doubling(base, levels)), nn.Conv2d(base, classes, 1), base)


class ResidualBody(nn.Module):
    def __init__(self, channels: int, widths: list[int]) -> None:
        super().__init__()
        self.down = nn.ModuleList([
            Unit(channels, widths[0], image=True), *(Unit(a, b, stride=2) for a, b in pairwise(widths)),
        ])  # fmt: skip
        self.join = nn.ModuleList(Unit(a + b, b) for a, b in pairwise(reversed(widths)))

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for unit in self.down:
            x = unit(x)
            skips.append(x)
        x = skips.pop()
        for unit in self.join:
            skip = skips.pop()
            x = unit(torch.cat([skip, resized(x, skip)], 1))
        return x


class Unit(nn.Module):
    """`image`: its input is the image itself, which is convolved without BatchNorm and ReLU before."""

    def __init__(self, before: int, after: int, *, stride: int = 1, image: bool = False) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *(() if image else (nn.BatchNorm2d(before), nn.ReLU(inplace=True))),
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
        )  # fmt: skip
        # the stride before the 1x1 convolution: with it inside, torch 2.13 crashes on a CPU below eight channels
        self.shortcut, self.stride = nn.Conv2d(before, after, 1, bias=False), stride

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.residual(x) + self.shortcut(x[..., :: self.stride, :: self.stride]))
