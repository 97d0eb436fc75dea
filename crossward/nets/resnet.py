"""ResNet-18 and ResNet-50 (He et al., CVPR 2016), with PyTorch's default initialisation as in FedBM's code, and two of
their relatives: ResNeXt (Xie et al., CVPR 2017) and SENet (Hu et al., CVPR 2018)."""

from __future__ import annotations

from math import gcd
from typing import ClassVar, cast

from torch import Tensor, nn

from crossward.core.net import Net
from crossward.nets.layers import (
    MIN_SIZE,
    choose_stem,
    conv_norm_activation,
    require_size_and_width,
    scale_channels,
    stem_layers,
)
from crossward.nets.requirements import require_choice

STAGES = (64, 128, 256, 512)
REDUCTION = 16  # of channels within squeeze-and-excitation


def resnet18(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """ResNet-18 of any width, with the ImageNet stem or one for small images.

    stem: "imagenet" (7x7, stride 2, max-pool), "strided" (3x3, stride 2), "small" (3x3), or "auto" = small below 64.
    norm: "batch" or "group".
    """
    return residual_net(
        "resnet18",
        BasicBlock,
        (2, 2, 2, 2),
        channels=channels,
        classes=classes,
        size=size,
        stem=stem,
        width=width,
        norm=norm,
    )


def resnet50(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """ResNet-50 of any width, with the ImageNet stem or one for small images.

    stem: "imagenet" (7x7, stride 2, max-pool), "strided" (3x3, stride 2), "small" (3x3), or "auto" = small below 64.
    norm: "batch" or "group".
    """
    return residual_net(
        "resnet50",
        Bottleneck,
        (3, 4, 6, 3),
        channels=channels,
        classes=classes,
        size=size,
        stem=stem,
        width=width,
        norm=norm,
    )


def resnext(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """ResNeXt-26 (32x2d) of any width, with the ImageNet stem or one for small images.

    Options: see resnet18.

    Each stage has two bottlenecks, whose 3x3 convolution has 32 groups, of 2 channels in the first stage. This is half
    as wide inside and half as deep as the paper's smallest, and near the 7.93 M parameters of MH-pFLGB's ResNeXt:
    7,891,528 for 3 channels and 8 classes. Narrow stages have fewer groups, as many as divide them.
    """
    return residual_net(
        "resnext",
        GroupedBottleneck,
        (2, 2, 2, 2),
        channels=channels,
        classes=classes,
        size=size,
        stem=stem,
        width=width,
        norm=norm,
    )


def senet(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """SE-ResNet-18 of any width, with the ImageNet stem or one for small images.

    Options: see resnet18.

    Squeeze-and-excitation has a sixteenth of the channels, at least 8. There are 11,270,728 parameters for 3 channels
    and 8 classes; MH-pFLGB counts 12.372 M for a SENet that it does not specify.
    """
    return residual_net(
        "senet",
        SqueezeExcitationBlock,
        (2, 2, 2, 2),
        channels=channels,
        classes=classes,
        size=size,
        stem=stem,
        width=width,
        norm=norm,
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    expansion: ClassVar[int] = 1

    def __init__(self, in_channels: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *conv_norm_activation(in_channels, width, 3, stride, norm=norm),
            *conv_norm_activation(width, width, 3, norm=norm, activation=None),
        )
        self.shortcut = _shortcut(in_channels, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.residual(x) + self.shortcut(x)).relu_()


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1, the last of which widens by four. The stride is in the 3x3, as in
    most implementations; the paper puts it into the first 1x1."""

    expansion: ClassVar[int] = 4
    cardinality: ClassVar[int] = 1  # groups of the 3x3 convolution

    def __init__(self, in_channels: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        out_channels = self.expansion * width
        self.residual = nn.Sequential(
            *conv_norm_activation(in_channels, width, 1, norm=norm),
            *conv_norm_activation(width, width, 3, stride, groups=gcd(self.cardinality, width), norm=norm),
            *conv_norm_activation(width, out_channels, 1, norm=norm, activation=None),
        )
        self.shortcut = _shortcut(in_channels, out_channels, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.residual(x) + self.shortcut(x)).relu_()


class GroupedBottleneck(Bottleneck):
    """ResNeXt's: the 3x3 convolution in 32 groups."""

    cardinality: ClassVar[int] = 32


class SqueezeExcitationBlock(BasicBlock):
    """SENet's: each channel of the residual is weighted before the shortcut is added."""

    def __init__(self, in_channels: int, width: int, stride: int, norm: str) -> None:
        super().__init__(in_channels, width, stride, norm)
        self.residual.append(SqueezeExcitation(width))


class SqueezeExcitation(nn.Module):
    """A weight in (0, 1) for each channel, from the means of all channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        squeezed = scale_channels(width, 1 / REDUCTION)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, squeezed, 1), nn.ReLU(inplace=True),
            nn.Conv2d(squeezed, width, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x * cast(Tensor, self.weigh(x))


def residual_net(
    name: str,
    block: type[BasicBlock | Bottleneck],
    depths: tuple[int, ...],
    *,
    channels: int,
    classes: int,
    size: int,
    stem: str,
    width: float,
    norm: str,
    kernel: int = 7,
    min_size: int = MIN_SIZE,
) -> Net:
    """A residual network with a stage of `depth` blocks for each of `depths`; `kernel` is that of the ImageNet stem."""
    stem = choose_stem(name, stem, size, others=("strided",))
    require_choice(name, "norm", norm, ("batch", "group"))
    require_size_and_width(name, size, width, min_size)
    widths = [scale_channels(c, width) for c in STAGES[: len(depths)]]
    in_channels = widths[0]
    layers = [stem_layers(channels, in_channels, stem, kernel=kernel, norm=norm)]
    for ordinal, (depth, stage_width) in enumerate(zip(depths, widths, strict=True), 1):
        stride = 1 if ordinal == 1 else 2
        layers.append(_stage(block, depth, in_channels, stage_width, stride, norm))
        in_channels = block.expansion * stage_width
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(body, nn.Linear(in_channels, classes), in_channels)


def _stage(
    block: type[BasicBlock | Bottleneck], depth: int, in_channels: int, width: int, stride: int, norm: str
) -> nn.Sequential:
    blocks = [block(in_channels, width, stride, norm)]
    blocks += [block(block.expansion * width, width, 1, norm) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


def _shortcut(in_channels: int, out_channels: int, stride: int, norm: str) -> nn.Module:
    if in_channels == out_channels and stride == 1:
        return nn.Identity()
    return nn.Sequential(*conv_norm_activation(in_channels, out_channels, 1, stride, norm=norm, activation=None))
