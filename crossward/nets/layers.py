"""Layers that several nets are made of: convolutions with their norm and activation, stems, and channels by width."""

from __future__ import annotations

from torch import nn

from crossward.nets.requirements import require_choice, require_least, require_size

STEP = 8  # channels come in steps of 8, which is also the size of a group of GroupNorm
LEAST = 16  # pixels a side
LEAST_WIDTH = 0.01
SMALL = 64  # pixels: below, the "auto" stem is the small one


def convolution(
    before: int,
    after: int,
    kernel: int,
    stride: int = 1,
    *,
    groups: int = 1,
    norm: str = "batch",
    activation: type[nn.ReLU | nn.ReLU6] | None = nn.ReLU,
) -> tuple[nn.Module, ...]:
    """A convolution that keeps the size but for its stride, its norm, and its activation if it has one."""
    layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return (layer, normalisation(after, norm), *((activation(inplace=True),) if activation else ()))


def normalisation(width: int, kind: str) -> nn.Module:
    return nn.BatchNorm2d(width) if kind == "batch" else nn.GroupNorm(width // STEP, width)


def stem(channels: int, width: int, kind: str, *, kernel: int, norm: str = "batch") -> nn.Sequential:
    """ "imagenet": a quarter of the size, by a stride of 2 and a max-pool; "small": 3x3, and the size stays."""
    if kind == "small":
        return nn.Sequential(*convolution(channels, width, 3, norm=norm))
    return nn.Sequential(*convolution(channels, width, kernel, 2, norm=norm), nn.MaxPool2d(3, 2, 1))


def stem_kind(net: str, stem: str, size: int) -> str:
    """What "auto" stands for at this size; any other value is checked."""
    require_choice(net, "stem", stem, ("auto", "imagenet", "small"))
    if stem == "auto":
        return "small" if size < SMALL else "imagenet"
    return stem


def require_frame(net: str, size: int, width: float, least: int = LEAST) -> None:
    """What every net of any width asks of its image size and its width."""
    require_least(net, "width", width, LEAST_WIDTH)
    require_size(net, size, least)


def scaled(channels: int, width: float, step: int = STEP) -> int:
    """That many channels at this width: the nearest multiple of `step`, and at least 8."""
    return max(STEP, step * round(channels * width / step))
