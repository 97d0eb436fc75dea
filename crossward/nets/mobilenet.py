"""MobileNetV2 (Sandler et al., CVPR 2018), with PyTorch's default initialisation.

Parameters for 3 channels and 8 classes: 2,234,120. MH-pFLGB counts 1.934 M for a MobileNet that it does not specify.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from torch import Tensor, nn

from crossward.core.net import Net
from crossward.nets.layers import convolution, require_frame, scaled, stem_kind

STEM, TOP = 32, 1280  # channels of the first and the last convolution


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
    """stem: "imagenet" (the first convolution and the second stage halve the size), "small" (neither does), "auto" =
    small below 64 pixels. `width` scales all layers, whereas the paper keeps the last one's 1280 channels."""
    kind = stem_kind("mobilenet", stem, size)
    require_frame("mobilenet", size, width)
    before, top = scaled(STEM, width), scaled(TOP, width)
    layers = [nn.Sequential(*convolution(channels, before, 3, 1 if kind == "small" else 2, activation=nn.ReLU6))]
    for ordinal, stage in enumerate(STAGES, 1):
        first = 1 if kind == "small" and ordinal == 2 else stage.stride
        layers.append(_stage(stage, before, scaled(stage.channels, width), first))
        before = scaled(stage.channels, width)
    layers.append(nn.Sequential(*convolution(before, top, 1, activation=nn.ReLU6)))
    return Net(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(top, classes), top)


class Block(nn.Module):
    """An inverted residual: wider by a 1x1 convolution, a 3x3 convolution of each channel by itself, narrower again."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        inside = before * expansion
        self.residual = nn.Sequential(
            *(convolution(before, inside, 1, activation=nn.ReLU6) if expansion > 1 else ()),
            *convolution(inside, inside, 3, stride, groups=inside, activation=nn.ReLU6),
            *convolution(inside, after, 1, activation=None),
        )
        self.skips = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y = cast(Tensor, self.residual(x))
        return x + y if self.skips else y


def _stage(stage: Stage, before: int, after: int, stride: int) -> nn.Sequential:
    befores = [before] + [after] * (stage.repeats - 1)
    return nn.Sequential(*(Block(b, after, 1 if i else stride, stage.expansion) for i, b in enumerate(befores)))
