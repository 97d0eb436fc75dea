"""ShuffleNetV2 (Ma et al., ECCV 2018) x1.0, with PyTorch's default initialisation.

Parameters for 3 channels and 8 classes: 1,261,804. MH-pFLGB counts 1.730 M for a ShuffleNetV2 that it does not specify.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from crossward.core.net import Net
from crossward.nets.layers import convolution, require_frame, scaled, stem_kind
from crossward.nets.layers import stem as first_layers

STEM, TOP = 24, 1024  # channels of the first and the last convolution
STEP = 4  # channels come in steps of 4, so that x1.0 has the paper's 116


class Stage(NamedTuple):
    repeats: int
    channels: int


STAGES = (Stage(4, 116), Stage(8, 232), Stage(4, 464))


def shufflenet(*, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0) -> Net:
    """stem: "imagenet" (3x3, stride 2, max-pool), "small" (3x3), "auto" = small below 64 pixels. `width` scales all
    layers, whereas the paper's x0.5 keeps the first and the last and has tables of its own for the rest."""
    kind = stem_kind("shufflenet", stem, size)
    require_frame("shufflenet", size, width)
    before, top = scaled(STEM, width, STEP), scaled(TOP, width, STEP)
    layers = [first_layers(channels, before, kind, kernel=3)]
    for repeats, wanted in STAGES:
        after = scaled(wanted, width, STEP)
        units = (Halving(before, after), *(Unit(after) for _ in range(repeats - 1)))
        layers.append(nn.Sequential(*units))
        before = after
    layers.append(nn.Sequential(*convolution(before, top, 1)))
    return Net(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(top, classes), top)


class Unit(nn.Module):
    """One half of the channels goes through three convolutions, the other stays; then both are mixed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = _branch(width // 2, width // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return shuffled(left, self.branch(right))


class Halving(nn.Module):
    """All channels go through both branches, each of which halves the size and gives half of the channels."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.shortcut = nn.Sequential(
            *convolution(before, before, 3, 2, groups=before, activation=None), *convolution(before, after // 2, 1)
        )
        self.branch = _branch(before, after // 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return shuffled(self.shortcut(x), self.branch(x))


def shuffled(left: Tensor, right: Tensor) -> Tensor:
    """Their channels in turn: (B, C, H, W) twice -> (B, 2 C, H, W)."""
    return torch.stack([left, right], 2).flatten(1, 2)


def _branch(before: int, after: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        *convolution(before, after, 1),
        *convolution(after, after, 3, stride, groups=after, activation=None),
        *convolution(after, after, 1),
    )
