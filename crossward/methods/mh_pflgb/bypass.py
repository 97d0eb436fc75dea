"""The bypass of MH-pFLGB: a small network that all sites have in common, whatever their own look like. It is all that
travels, so it must be small: 32,274 parameters for two classes, 0.19 M for segmentation (its paper prints 0.032 M and
0.196 M, and not the layers)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.net import Net

# channels of the three convolutions, each of which halves the image
VECTOR_WIDTHS = (16, 32, 64)  # for classification
MAP_WIDTHS = (32, 64, 128)  # for segmentation
HIDDEN = 128
Norm = Literal["batch", "group"]
CHANNELS_PER_GROUP = 8  # of group norm, which mixes no images, so that their gradients can be clipped one by one


class Bypass(Net):
    """Body B_g and head H_g. MH-pFLGB uses the two apart, and either may be absent."""


class MapHead(nn.Module):
    """Feature maps (B, 128, h, w) to logits (B, K, size, size)."""

    def __init__(self, classes: int, size: int, norm: Norm = "batch") -> None:
        super().__init__()
        _, narrow, wide = MAP_WIDTHS
        self.coarse = nn.Sequential(*_block(wide, narrow, 1, norm))
        self.fine = nn.Sequential(*_block(narrow, narrow // 2, 1, norm))
        self.scores = nn.Conv2d(narrow // 2, classes, 1)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(self.coarse(x), scale_factor=2.0, mode="bilinear")
        # scores first: a 1x1 convolution commutes with bilinear up-sampling and is cheaper before it
        return F.interpolate(self.scores(self.fine(x)), size=(self.size, self.size), mode="bilinear")


def classification_bypass(channels: int, classes: int, size: int, norm: Norm = "batch") -> Bypass:
    """For images of any size: (B, 64) features, then two fully connected layers."""
    layers = _convolutions(channels, VECTOR_WIDTHS, norm)
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    head = nn.Sequential(nn.Linear(VECTOR_WIDTHS[-1], HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, classes))
    return Bypass(body, head, VECTOR_WIDTHS[-1])


def segmentation_bypass(channels: int, classes: int, size: int, norm: Norm = "batch") -> Bypass:
    """(B, 128, size / 8, size / 8) features, then a small decoder."""
    body = nn.Sequential(*_convolutions(channels, MAP_WIDTHS, norm))
    return Bypass(body, MapHead(classes, size, norm), MAP_WIDTHS[-1])


def _convolutions(channels: int, widths: tuple[int, ...], norm: Norm) -> list[nn.Module]:
    return [layer for before, after in zip((channels, *widths), widths) for layer in _block(before, after, 2, norm)]


def _block(before: int, after: int, stride: int, norm: Norm) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(before, after, 3, stride, 1, bias=False)
    normed = nn.BatchNorm2d(after) if norm == "batch" else nn.GroupNorm(after // CHANNELS_PER_GROUP, after)
    return convolution, normed, nn.ReLU(inplace=True)
