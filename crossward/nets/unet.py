"""A compact U-Net (Ronneberger et al., MICCAI 2015) with BatchNorm and same-size convolutions, for any image size.

For 3 channels and 2 classes: 450,498 parameters; with `base=66, levels=5, up="transposed"` 33.0 M, the nearest to
the 33.1 M of the U-Net in MH-pFLGB's paper.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.net import Net
from crossward.nets.segmentation_layers import Upsample, channels_per_level, double_conv, require_levels, require_up


def unet(*, channels: int, classes: int, size: int, base: int = 16, levels: int = 4, up: str = "bilinear") -> Net:
    """Compact U-Net with skip connections, for any image size.

    base: channels at full resolution, and the width of the features, (B, base, H, W).
    levels: resolutions; the number of channels doubles at each.
    up: how the decoder up-samples, "bilinear" or "transposed" (convolutions).
    """
    require_up("unet", up)
    require_levels("unet", size, base, levels)
    return Net(UNetBody(channels, channels_per_level(base, levels), up), nn.Conv2d(base, classes, 1), base)


class UNetBody(nn.Module):
    def __init__(self, channels: int, widths: list[int], up: str) -> None:
        super().__init__()
        decoder = list(pairwise(reversed(widths)))
        self.down = nn.ModuleList(double_conv(a, b) for a, b in pairwise([channels, *widths]))
        self.lift = nn.ModuleList(Upsample(a, b, up) for a, b in decoder)
        self.join = nn.ModuleList(double_conv(2 * b, b) for _, b in decoder)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        x = skips.pop()
        for lift, join in zip(self.lift, self.join, strict=True):
            skip = skips.pop()
            x = join(torch.cat([skip, lift(x, skip)], 1))
        return x
