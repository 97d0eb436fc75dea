"""SqueezeNet v1.1 (Iandola et al., 2016).

Its classifier is a convolution whose maps are averaged. Here the last feature maps are averaged and the head is linear,
which is the same but for a ReLU on each map of scores. There is no BatchNorm, and with PyTorch's default initialisation
the images would reach the features as a millionth of their size: convolutions start as He et al. (ICCV 2015) propose.
Parameters for 3 channels and 8 classes: 726,600. MH-pFLGB counts 1.832 M for a SqueezeNet that it does not specify.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from crossward.core.net import Net
from crossward.nets.layers import require_frame, scaled, stem_kind
from crossward.nets.requirements import require_rates

STEM = 64  # channels
STAGES = (  # of fire modules: channels that each squeezes to, and expands to by either kernel
    ((16, 64), (16, 64)),
    ((32, 128), (32, 128)),
    ((48, 192), (48, 192), (64, 256), (64, 256)),
)


def squeezenet(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, dropout: float = 0.5
) -> Net:
    """stem: "imagenet" (3x3, stride 2, max-pool), "small" (3x3), "auto" = small below 64 pixels. `dropout` of the last
    feature maps."""
    kind = stem_kind("squeezenet", stem, size)
    require_frame("squeezenet", size, width)
    require_rates("squeezenet", dropout=dropout)
    before = scaled(STEM, width)
    layers = [_stem(channels, before, kind)]
    for ordinal, stage in enumerate(STAGES):
        made: list[nn.Module] = [_halving()] if ordinal else []
        for squeezed, expanded in stage:
            made.append(Fire(before, scaled(squeezed, width), scaled(expanded, width)))
            before = 2 * scaled(expanded, width)
        layers.append(nn.Sequential(*made))
    body = nn.Sequential(*layers, nn.Dropout(dropout), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(body, nn.Linear(before, classes), before)


class Fire(nn.Module):
    """Few channels by a 1x1 convolution, then many by a 1x1 and a 3x3 side by side."""

    def __init__(self, before: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = _convolution(before, squeezed, 1)
        self.by_one = _convolution(squeezed, expanded, 1)
        self.by_three = _convolution(squeezed, expanded, 3)

    def forward(self, x: Tensor) -> Tensor:
        few = self.squeeze(x)
        return torch.cat([self.by_one(few), self.by_three(few)], 1)


def _stem(channels: int, width: int, kind: str) -> nn.Sequential:
    if kind == "small":
        return _convolution(channels, width, 3)
    return _convolution(channels, width, 3, 2).append(_halving())


def _convolution(before: int, after: int, kernel: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(before, after, kernel, stride, kernel // 2)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return nn.Sequential(layer, nn.ReLU(inplace=True))


def _halving() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, 2, ceil_mode=True)
