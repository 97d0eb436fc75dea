"""Parts of nets that keep the plane of the image: rows of convolutions, what lifts a map to the size of another, and
what such a net demands."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from crossward.errors import ConfigError
from crossward.nets.requirements import require_choice, require_least

DEEPEST = 10  # levels that images of some size allow: 1024 pixels


def double(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(*convolution(before, after), *convolution(after, after))


def convolution(before: int, after: int, kernel: int = 3) -> tuple[nn.Module, ...]:
    """A same-size convolution with BatchNorm and ReLU; BatchNorm's shift makes a bias idle."""
    same = nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
    return same, nn.BatchNorm2d(after), nn.ReLU(inplace=True)


class Lift(nn.Module):
    """Up-sample to the size of the skip, which is one pixel short of double where the skip's size is odd."""

    def __init__(self, before: int, after: int, up: str) -> None:
        super().__init__()
        self.bilinear = up == "bilinear"
        # A 1x1 convolution commutes with bilinear up-sampling and is four times cheaper before it.
        self.convolution = nn.Conv2d(before, after, 1) if self.bilinear else nn.ConvTranspose2d(before, after, 2, 2)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = cast(Tensor, self.convolution(x))
        if self.bilinear:
            return resized(x, skip)
        return F.pad(x, (0, skip.shape[3] - x.shape[3], 0, skip.shape[2] - x.shape[2]))


def resized(x: Tensor, like: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, C, H, W) of `like`, bilinearly."""
    h, w = like.shape[2:]
    return F.interpolate(x, size=(h, w), mode="bilinear")


def doubling(base: int, levels: int) -> list[int]:
    """The channels at each level: `base` at full resolution, twice as many at every half of it."""
    return [base * 2**level for level in range(levels)]


def require_up(net: str, up: str) -> None:
    require_choice(net, "up", up, ("bilinear", "transposed"))


def require_levels(net: str, size: int, base: int, levels: int) -> None:
    require_least(net, "base", base, 1)
    require_least(net, "levels", levels, 2)
    most = size.bit_length() - 1  # at least 2 x 2 at the bottom, so that BatchNorm can train on one image
    if levels <= most:
        return
    allowed, least = f"images of {size} x {size} pixels allow at most {most}", 2 ** min(levels, DEEPEST)
    if levels > DEEPEST:
        what = f"The net {net!r} cannot have levels = {levels}: {allowed}."
        raise ConfigError(what, hint="Choose fewer, larger images, or another net.")
    raise ConfigError(
        f"The net {net!r} needs images of at least {least} x {least} pixels; these have {size}.",
        hint=f"It has levels = {levels}; {allowed}. Choose fewer, an image size of at least {least}, or another net.",
    )
