"""Layers that several classifiers share: convolutions with norm and activation, stems, and channels scaled by width."""

from __future__ import annotations

from torch import nn

from crossward.nets.requirements import require_at_least, require_choice, require_size

CHANNEL_STEP = 8  # channels come in multiples of 8, which is also the size of a group of GroupNorm
MIN_SIZE = 16  # pixels a side
MIN_WIDTH = 0.01
SMALL_STEM_BELOW = 64  # pixels a side: below, the "auto" stem is the small one


def conv_norm_activation(
    in_channels: int,
    out_channels: int,
    kernel: int,
    stride: int = 1,
    *,
    groups: int = 1,
    norm: str = "batch",
    activation: type[nn.ReLU | nn.ReLU6] | None = nn.ReLU,
) -> tuple[nn.Module, ...]:
    """A convolution that changes the size only by its stride, its norm, and its activation if it has one."""
    convolution = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers = (convolution, norm_layer(out_channels, norm))
    return (*layers, activation(inplace=True)) if activation else layers


def norm_layer(channels: int, norm: str) -> nn.Module:
    """`norm`: "batch" or "group"."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(channels // CHANNEL_STEP, channels)


def stem_layers(in_channels: int, out_channels: int, stem: str, *, kernel: int, norm: str = "batch") -> nn.Sequential:
    """`stem`: "imagenet" (quarters the size by a stride of 2 and a max-pool), "strided" (3x3, which halves it) or
    "small" (3x3, which keeps it)."""
    if stem != "imagenet":
        stride = 2 if stem == "strided" else 1
        return nn.Sequential(*conv_norm_activation(in_channels, out_channels, 3, stride, norm=norm))
    layers = conv_norm_activation(in_channels, out_channels, kernel, 2, norm=norm)
    return nn.Sequential(*layers, nn.MaxPool2d(3, 2, 1))


def choose_stem(net: str, stem: str, size: int, others: tuple[str, ...] = ()) -> str:
    """One of "imagenet", "small" and the net's `others`; "auto" is that of the first two which suits the image size."""
    require_choice(net, "stem", stem, ("auto", "imagenet", "small", *others))
    if stem == "auto":
        return "small" if size < SMALL_STEM_BELOW else "imagenet"
    return stem


def require_size_and_width(net: str, size: int, width: float, min_size: int = MIN_SIZE) -> None:
    require_at_least(net, "width", width, MIN_WIDTH)
    require_size(net, size, min_size)


def scale_channels(channels: int, width: float, step: int = CHANNEL_STEP) -> int:
    """`channels * width`, rounded to a multiple of `step`, and at least 8."""
    return max(CHANNEL_STEP, step * round(channels * width / step))
