"""A compact U-Net (Ronneberger et al., MICCAI 2015) with BatchNorm and same-size convolutions, for any image size."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.nets.net import Net, require_choice, require_least, require_size


def unet(*, channels: int, classes: int, size: int, base: int = 16, levels: int = 4, up: str = "bilinear") -> Net:
    """`base` channels at full resolution, doubled at each of `levels` resolutions; features are (B, base, H, W)."""
    require_choice("unet", "up", up, ("bilinear", "transposed"))
    require_least("unet", "base", base, 1)
    require_least("unet", "levels", levels, 2)
    require_size("unet", size, 2**levels)  # at least 2 x 2 at the bottom, so that BatchNorm can train on one image
    return Net(UNetBody(channels, base, levels, up), nn.Conv2d(base, classes, 1), base)


class UNetBody(nn.Module):
    def __init__(self, channels: int, base: int, levels: int, up: str) -> None:
        super().__init__()
        widths = [base * 2**level for level in range(levels)]
        rising = list(pairwise(reversed(widths)))
        self.down = nn.ModuleList(_double(a, b) for a, b in pairwise([channels, *widths]))
        self.lift = nn.ModuleList(Lift(a, b, up) for a, b in rising)
        self.join = nn.ModuleList(_double(2 * b, b) for _, b in rising)

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


class Lift(nn.Module):
    """Up-sample to the size of the skip, which is one pixel short of double where the skip's size is odd."""

    def __init__(self, before: int, after: int, up: str) -> None:
        super().__init__()
        self.bilinear = up == "bilinear"
        # A 1x1 convolution commutes with bilinear up-sampling and is four times cheaper before it.
        self.convolution = nn.Conv2d(before, after, 1) if self.bilinear else nn.ConvTranspose2d(before, after, 2, 2)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x, (h, w) = cast(Tensor, self.convolution(x)), skip.shape[2:]
        if self.bilinear:
            return F.interpolate(x, size=(h, w), mode="bilinear")
        return F.pad(x, (0, w - x.shape[3], 0, h - x.shape[2]))


def _double(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
        nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
    )  # fmt: skip
