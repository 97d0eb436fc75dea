"""Layers that several segmentation nets share: convolutions, up-sampling, and checks of their options."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from crossward.errors import ConfigError
from crossward.nets.requirements import require_at_least, require_choice

MAX_LEVELS = 10  # images of 1024 pixels allow no more


def double_conv(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(*conv_norm_relu(in_channels, out_channels), *conv_norm_relu(out_channels, out_channels))


def conv_norm_relu(in_channels: int, out_channels: int, kernel: int = 3) -> tuple[nn.Module, ...]:
    """A convolution that keeps the size, BatchNorm and ReLU. The convolution needs no bias: BatchNorm shifts."""
    convolution = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True)


class Upsample(nn.Module):
    """Up-samples a map to the size of the skip connection: double its own, and one pixel more where that is odd."""

    def __init__(self, in_channels: int, out_channels: int, up: str) -> None:
        super().__init__()
        self.bilinear = up == "bilinear"
        self.convolution: nn.Conv2d | nn.ConvTranspose2d
        if self.bilinear:  # a 1x1 convolution commutes with bilinear up-sampling and is four times cheaper before it
            self.convolution = nn.Conv2d(in_channels, out_channels, 1)
        else:
            self.convolution = nn.ConvTranspose2d(in_channels, out_channels, 2, 2)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = cast(Tensor, self.convolution(x))
        if self.bilinear:
            return resize_like(x, skip)
        return F.pad(x, (0, skip.shape[3] - x.shape[3], 0, skip.shape[2] - x.shape[2]))


def resize_like(x: Tensor, like: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, C, H, W) by bilinear interpolation, with the height and width of `like`."""
    h, w = like.shape[2:]
    return F.interpolate(x, size=(h, w), mode="bilinear")


def channels_per_level(base: int, levels: int) -> list[int]:
    """`base` channels at full resolution, and twice as many whenever the resolution halves."""
    return [base * 2**level for level in range(levels)]


def require_up(net: str, up: str) -> None:
    require_choice(net, "up", up, ("bilinear", "transposed"))


def require_levels(net: str, size: int, base: int, levels: int) -> None:
    require_at_least(net, "base", base, 1)
    require_at_least(net, "levels", levels, 2)
    most = size.bit_length() - 1  # at least 2 x 2 at the bottom, so that BatchNorm can train on one image
    if levels <= most:
        return
    allowed = f"images of {size} x {size} pixels allow at most {most}"
    if levels > MAX_LEVELS:
        raise ConfigError(
            f"The net {net!r} cannot have levels = {levels}: {allowed}.",
            hint="Choose fewer, larger images, or another net.",
        )
    least = 2**levels
    raise ConfigError(
        f"The net {net!r} needs images of at least {least} x {least} pixels; these have {size}.",
        hint=f"It has levels = {levels}; {allowed}. Choose fewer, an image size of at least {least}, or another net.",
    )
