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
from crossward.nets.layers import choose_stem, require_size_and_width, scale_channels
from crossward.nets.requirements import require_rates

STEM = 64  # channels
STAGES = (  # fire modules: channels that each squeezes to, and channels that each of its two kernels expands to
    ((16, 64), (16, 64)),
    ((32, 128), (32, 128)),
    ((48, 192), (48, 192), (64, 256), (64, 256)),
)


def squeezenet(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, dropout: float = 0.5
) -> Net:
    """SqueezeNet v1.1 of any width, with a linear head; it has no BatchNorm.

    stem: "imagenet" (3x3, stride 2, max-pool), "small" (3x3), or "auto" = small below 64 pixels.
    dropout: of the last feature maps.
    """
    stem = choose_stem("squeezenet", stem, size)
    require_size_and_width("squeezenet", size, width)
    require_rates("squeezenet", dropout=dropout)
    in_channels = scale_channels(STEM, width)
    layers = [_stem(channels, in_channels, stem)]
    for ordinal, stage in enumerate(STAGES):
        modules: list[nn.Module] = [_max_pool()] if ordinal else []
        for squeeze, expand in stage:
            fire = Fire(in_channels, scale_channels(squeeze, width), scale_channels(expand, width))
            modules.append(fire)
            in_channels = 2 * scale_channels(expand, width)
        layers.append(nn.Sequential(*modules))
    body = nn.Sequential(*layers, nn.Dropout(dropout), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(body, nn.Linear(in_channels, classes), in_channels)


class Fire(nn.Module):
    """A 1x1 convolution to few channels, then a 1x1 and a 3x3 convolution side by side to many."""

    def __init__(self, in_channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = _conv_relu(in_channels, squeezed, 1)
        self.by_one = _conv_relu(squeezed, expanded, 1)
        self.by_three = _conv_relu(squeezed, expanded, 3)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = self.squeeze(x)
        return torch.cat([self.by_one(squeezed), self.by_three(squeezed)], 1)


def _stem(in_channels: int, out_channels: int, stem: str) -> nn.Sequential:
    if stem == "small":
        return _conv_relu(in_channels, out_channels, 3)
    return _conv_relu(in_channels, out_channels, 3, 2).append(_max_pool())


def _conv_relu(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2)
    nn.init.kaiming_uniform_(convolution.weight, nonlinearity="relu")
    assert convolution.bias is not None
    nn.init.zeros_(convolution.bias)
    return nn.Sequential(convolution, nn.ReLU(inplace=True))


def _max_pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, 2, ceil_mode=True)
