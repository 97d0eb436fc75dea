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
from crossward.nets.segmentation_layers import channels_per_level, require_levels, resize_like


def resunet(*, channels: int, classes: int, size: int, base: int = 16, levels: int = 4) -> Net:
    """U-Net of residual units with strides in place of pooling.

    base: channels at full resolution, and the width of the features, (B, base, H, W).
    levels: resolutions; the number of channels doubles at each.
    """
    require_levels("resunet", size, base, levels)
    return Net(ResidualBody(channels, channels_per_level(base, levels)), nn.Conv2d(base, classes, 1), base)


class ResidualBody(nn.Module):
    def __init__(self, channels: int, widths: list[int]) -> None:
        super().__init__()
        self.down = nn.ModuleList([
            ResidualUnit(channels, widths[0], image=True), *(ResidualUnit(a, b, stride=2) for a, b in pairwise(widths)),
        ])  # fmt: skip
        self.join = nn.ModuleList(ResidualUnit(a + b, b) for a, b in pairwise(reversed(widths)))

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for unit in self.down:
            x = unit(x)
            skips.append(x)
        x = skips.pop()
        for unit in self.join:
            skip = skips.pop()
            x = unit(torch.cat([skip, resize_like(x, skip)], 1))
        return x


class ResidualUnit(nn.Module):
    """`image`: the input is the image itself, which passes no BatchNorm and ReLU before the first convolution."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int = 1, image: bool = False) -> None:
        super().__init__()
        preactivation = () if image else (nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True))
        self.residual = nn.Sequential(
            *preactivation,
            nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False),
        )
        # The stride is taken before the 1x1 convolution: inside it, torch 2.13 crashes on a CPU below eight channels.
        self.stride = stride
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.residual(x) + self.shortcut(x[..., :: self.stride, :: self.stride]))
