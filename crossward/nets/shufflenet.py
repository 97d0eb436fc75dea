"""ShuffleNetV2 (Ma et al., ECCV 2018) x1.0, with PyTorch's default initialisation.

Parameters for 3 channels and 8 classes: 1,261,804. MH-pFLGB counts 1.730 M for a ShuffleNetV2 that it does not specify.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from crossward.core.net import Net
from crossward.nets.layers import (
    choose_stem,
    conv_norm_activation,
    require_size_and_width,
    scale_channels,
    stem_layers,
)

STEM = 24  # channels of the first convolution
TOP = 1024  # channels of the last convolution
CHANNEL_STEP = 4  # channels come in multiples of 4, so that x1.0 has the paper's 116


class Stage(NamedTuple):
    repeats: int
    channels: int


STAGES = (Stage(4, 116), Stage(8, 232), Stage(4, 464))


def shufflenet(*, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0) -> Net:
    """ShuffleNetV2 of any width, with the ImageNet stem or one for small images.

    stem: "imagenet" (3x3, stride 2, max-pool), "small" (3x3), or "auto" = small below 64 pixels.
    width: scales all layers, whereas the paper's x0.5 keeps the first and the last and has tables of its own for the
        rest.
    """
    stem = choose_stem("shufflenet", stem, size)
    require_size_and_width("shufflenet", size, width)
    in_channels = scale_channels(STEM, width, CHANNEL_STEP)
    layers = [stem_layers(channels, in_channels, stem, kernel=3)]
    for stage in STAGES:
        out_channels = scale_channels(stage.channels, width, CHANNEL_STEP)
        units = (ShuffleUnit(out_channels) for _ in range(stage.repeats - 1))
        layers.append(nn.Sequential(DownsamplingUnit(in_channels, out_channels), *units))
        in_channels = out_channels
    top = scale_channels(TOP, width, CHANNEL_STEP)
    layers.append(nn.Sequential(*conv_norm_activation(in_channels, top, 1)))
    return Net(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(top, classes), top)


class ShuffleUnit(nn.Module):
    """Half of the channels pass three convolutions, the other half stays; then the channels are shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = _branch(width // 2, width // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return shuffle_channels(left, self.branch(right))


class DownsamplingUnit(nn.Module):
    """Two branches see all channels; each halves the size and gives half of the output channels."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.shortcut = nn.Sequential(
            *conv_norm_activation(in_channels, in_channels, 3, 2, groups=in_channels, activation=None),
            *conv_norm_activation(in_channels, out_channels // 2, 1),
        )
        self.branch = _branch(in_channels, out_channels // 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return shuffle_channels(self.shortcut(x), self.branch(x))


def shuffle_channels(left: Tensor, right: Tensor) -> Tensor:
    """(B, C, H, W) twice -> (B, 2 C, H, W): channels of the two in turn."""
    return torch.stack([left, right], 2).flatten(1, 2)


def _branch(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        *conv_norm_activation(in_channels, out_channels, 1),
        *conv_norm_activation(out_channels, out_channels, 3, stride, groups=out_channels, activation=None),
        *conv_norm_activation(out_channels, out_channels, 1),
    )
