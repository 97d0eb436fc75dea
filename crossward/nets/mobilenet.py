"""MobileNetV2 (Sandler et al., CVPR 2018), with PyTorch's default initialisation.

Parameters for 3 channels and 8 classes: 2,234,120. MH-pFLGB counts 1.934 M for a MobileNet that it does not specify.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from torch import Tensor, nn

from crossward.core.net import Net
from crossward.nets.layers import choose_stem, conv_norm_activation, require_size_and_width, scale_channels

STEM = 32  # channels of the first convolution
TOP = 1280  # channels of the last convolution


class Stage(NamedTuple):
    """A row of the paper's Table 2."""

    expansion: int
    channels: int
    repeats: int
    stride: int  # of its first block


STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)


def mobilenet(*, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0) -> Net:
    """MobileNetV2 of any width, with the ImageNet stem or one for small images.

    stem: "imagenet" (the first convolution and the second stage halve the size), "small" (neither does), or "auto" =
        small below 64 pixels.
    width: scales all layers, whereas the paper keeps the last one's 1280 channels.
    """
    stem = choose_stem("mobilenet", stem, size)
    require_size_and_width("mobilenet", size, width)
    in_channels = scale_channels(STEM, width)
    stem_stride = 1 if stem == "small" else 2
    layers = [nn.Sequential(*conv_norm_activation(channels, in_channels, 3, stem_stride, activation=nn.ReLU6))]
    for ordinal, stage in enumerate(STAGES, 1):
        out_channels = scale_channels(stage.channels, width)
        stride = 1 if stem == "small" and ordinal == 2 else stage.stride
        layers.append(_stage(stage, in_channels, out_channels, stride))
        in_channels = out_channels
    top = scale_channels(TOP, width)
    layers.append(nn.Sequential(*conv_norm_activation(in_channels, top, 1, activation=nn.ReLU6)))
    return Net(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(top, classes), top)


class InvertedResidual(nn.Module):
    """A 1x1 convolution that widens, a depthwise 3x3 convolution, and a 1x1 convolution that narrows."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        self.residual = nn.Sequential(
            *(conv_norm_activation(in_channels, hidden, 1, activation=nn.ReLU6) if expansion > 1 else ()),
            *conv_norm_activation(hidden, hidden, 3, stride, groups=hidden, activation=nn.ReLU6),
            *conv_norm_activation(hidden, out_channels, 1, activation=None),
        )
        self.skips = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        y = cast(Tensor, self.residual(x))
        return x + y if self.skips else y


def _stage(stage: Stage, in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    blocks = [InvertedResidual(in_channels, out_channels, stride, stage.expansion)]
    blocks += [InvertedResidual(out_channels, out_channels, 1, stage.expansion) for _ in range(stage.repeats - 1)]
    return nn.Sequential(*blocks)
