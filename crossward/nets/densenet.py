"""A small DenseNet-BC (Huang et al., CVPR 2017), with PyTorch's default initialisation.

Bottlenecks, compression to a half, growth 16 and blocks of 6, 12, 18 and 8 layers: a DenseNet-121 half as wide and less
deep, near the 1.147 M parameters of MH-pFLGB's DenseNet. 1,150,280 for 3 channels and 8 classes.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from crossward.core.net import Net
from crossward.nets.layers import choose_stem, require_size_and_width, scale_channels, stem_layers

GROWTH = 16  # channels that each layer adds; the paper's k
BLOCKS = (6, 12, 18, 8)


def densenet(*, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0) -> Net:
    """Small DenseNet-BC of any growth, with the ImageNet stem or one for small images.

    stem: "imagenet" (7x7, stride 2, max-pool), "small" (3x3), or "auto" = small below 64 pixels.
    width: scales the growth, in steps of 8.

    Odd sizes are rounded up when halved, so that no pixel is lost.
    """
    stem = choose_stem("densenet", stem, size)
    require_size_and_width("densenet", size, width)
    growth = scale_channels(GROWTH, width)
    in_channels = 2 * growth
    layers = [stem_layers(channels, in_channels, stem, kernel=7)]
    for ordinal, depth in enumerate(BLOCKS, 1):
        layers.append(nn.Sequential(*(DenseLayer(in_channels + i * growth, growth) for i in range(depth))))
        in_channels += depth * growth
        if ordinal < len(BLOCKS):
            transition = _norm_relu_conv(in_channels, in_channels // 2, 1)
            layers.append(nn.Sequential(*transition, nn.AvgPool2d(2, ceil_mode=True)))
            in_channels //= 2
    layers.append(nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True)))
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(body, nn.Linear(in_channels, classes), in_channels)


class DenseLayer(nn.Module):
    """Appends `growth` channels to its input, computed through a bottleneck of four times as many."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.new = nn.Sequential(*_norm_relu_conv(in_channels, 4 * growth, 1), *_norm_relu_conv(4 * growth, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, cast(Tensor, self.new(x))], 1)


def _norm_relu_conv(in_channels: int, out_channels: int, kernel: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False)
    return nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True), convolution
