"""A small DenseNet-BC (Huang et al., CVPR 2017), with PyTorch's default initialisation.

Bottlenecks, compression to a half, growth 16 and blocks of 6, 12, 18 and 8 layers: a DenseNet-121 half as wide and less
deep, near the 1.147 M parameters of MH-pFLGB's DenseNet. 1,150,280 for 3 channels and 8 classes.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from crossward.core.net import Net
from crossward.nets.layers import require_frame, scaled, stem_kind
from crossward.nets.layers import stem as first_layers

GROWTH = 16  # channels that each layer adds; the paper's k
BLOCKS = (6, 12, 18, 8)


def densenet(*, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0) -> Net:
    """stem: "imagenet" (7x7, stride 2, max-pool), "small" (3x3), "auto" = small below 64 pixels. `width` scales the
    growth, in steps of 8. Odd sizes are rounded up when halved, so that no pixel is lost."""
    kind = stem_kind("densenet", stem, size)
    require_frame("densenet", size, width)
    growth = scaled(GROWTH, width)
    before = 2 * growth
    layers = [first_layers(channels, before, kind, kernel=7)]
    for ordinal, depth in enumerate(BLOCKS, 1):
        layers.append(nn.Sequential(*(Layer(before + i * growth, growth) for i in range(depth))))
        before += depth * growth
        if ordinal < len(BLOCKS):
            halved = nn.AvgPool2d(2, ceil_mode=True)
            layers.append(nn.Sequential(*_preactivated(before, before // 2, 1), halved))
            before //= 2
    layers.append(nn.Sequential(nn.BatchNorm2d(before), nn.ReLU(inplace=True)))
    return Net(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(before, classes), before)


class Layer(nn.Module):
    """Adds `growth` channels to those it is given, by way of four times as many."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.new = nn.Sequential(*_preactivated(before, 4 * growth, 1), *_preactivated(4 * growth, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, cast(Tensor, self.new(x))], 1)


def _preactivated(before: int, after: int, kernel: int) -> tuple[nn.Module, ...]:
    """Norm and activation before the convolution."""
    layer = nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
    return nn.BatchNorm2d(before), nn.ReLU(inplace=True), layer
