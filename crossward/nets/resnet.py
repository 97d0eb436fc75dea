"""ResNet-18 and ResNet-50 (He et al., CVPR 2016), trained from scratch with PyTorch's default initialisation as
FedBM's code does, and two of their relatives: ResNeXt (Xie et al., CVPR 2017) and SENet (Hu et al., CVPR 2018)."""

from __future__ import annotations

from math import gcd
from typing import ClassVar, cast

from torch import Tensor, nn

from crossward.core.net import Net
from crossward.nets.layers import LEAST, convolution, require_frame, scaled, stem_kind
from crossward.nets.layers import stem as first_layers
from crossward.nets.requirements import require_choice

STAGES = (64, 128, 256, 512)
REDUCTION = 16  # of channels within squeeze-and-excitation


def resnet18(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """stem: "imagenet" (7x7, stride 2, max-pool), "small" (3x3), "auto" = small below 64 pixels."""
    sizes = {"channels": channels, "classes": classes, "size": size}
    return residual_net("resnet18", Block, (2, 2, 2, 2), **sizes, stem=stem, width=width, norm=norm)


def resnet50(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """stem: "imagenet" (7x7, stride 2, max-pool), "small" (3x3), "auto" = small below 64 pixels."""
    sizes = {"channels": channels, "classes": classes, "size": size}
    return residual_net("resnet50", Bottleneck, (3, 4, 6, 3), **sizes, stem=stem, width=width, norm=norm)


def resnext(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """ResNeXt-26 (32x2d): two bottlenecks a stage, each 3x3 convolution in 32 groups, of 2 channels in the first stage.
    Half as wide inside and half as deep as the paper's smallest, and near the 7.93 M parameters of MH-pFLGB's ResNeXt:
    7,891,528 for 3 channels and 8 classes. Narrow stages have fewer groups, as many as divide them. Options: as of
    resnet18."""
    sizes = {"channels": channels, "classes": classes, "size": size}
    return residual_net("resnext", GroupedBottleneck, (2, 2, 2, 2), **sizes, stem=stem, width=width, norm=norm)


def senet(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """SE-ResNet-18: ResNet-18 with squeeze-and-excitation, which holds a sixteenth of the channels, at least 8. It has
    11,270,728 parameters for 3 channels and 8 classes; MH-pFLGB counts 12.372 M for a SENet that it does not specify.
    Options: as of resnet18."""
    sizes = {"channels": channels, "classes": classes, "size": size}
    return residual_net("senet", ExcitedBlock, (2, 2, 2, 2), **sizes, stem=stem, width=width, norm=norm)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    expansion: ClassVar[int] = 1

    def __init__(self, before: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *convolution(before, width, 3, stride, norm=norm),
            *convolution(width, width, 3, norm=norm, activation=None),
        )
        self.shortcut = _shortcut(before, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.residual(x) + self.shortcut(x)).relu_()


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1, the last of which widens by four. The stride is in the 3x3, as everybody's
    ResNet-50 has it; the paper put it into the first 1x1."""

    expansion: ClassVar[int] = 4
    cardinality: ClassVar[int] = 1  # groups of the 3x3 convolution

    def __init__(self, before: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        after = self.expansion * width
        self.residual = nn.Sequential(
            *convolution(before, width, 1, norm=norm),
            *convolution(width, width, 3, stride, groups=gcd(self.cardinality, width), norm=norm),
            *convolution(width, after, 1, norm=norm, activation=None),
        )
        self.shortcut = _shortcut(before, after, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.residual(x) + self.shortcut(x)).relu_()


class GroupedBottleneck(Bottleneck):
    """ResNeXt's: the 3x3 convolution in 32 groups."""

    cardinality: ClassVar[int] = 32


class ExcitedBlock(Block):
    """SENet's: each channel of the residual is weighted before the shortcut is added."""

    def __init__(self, before: int, width: int, stride: int, norm: str) -> None:
        super().__init__(before, width, stride, norm)
        self.residual.append(Excitation(width))


class Excitation(nn.Module):
    """A weight in (0, 1) for each channel, from the means of all channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inside = scaled(width, 1 / REDUCTION)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, inside, 1), nn.ReLU(inplace=True),
            nn.Conv2d(inside, width, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x * cast(Tensor, self.weigh(x))


def residual_net(
    name: str, block: type[Block | Bottleneck], depths: tuple[int, ...],
    *, channels: int, classes: int, size: int, stem: str, width: float, norm: str, kernel: int = 7, least: int = LEAST,
) -> Net:  # fmt: skip
    """A stage of blocks for each of `depths`, behind a stem whose first convolution has this kernel."""
    kind = stem_kind(name, stem, size)
    require_choice(name, "norm", norm, ("batch", "group"))
    require_frame(name, size, width, least)
    widths = [scaled(c, width) for c in STAGES[: len(depths)]]
    layers, before = [first_layers(channels, widths[0], kind, kernel=kernel, norm=norm)], widths[0]
    for depth, here in zip(depths, widths, strict=True):
        layers.append(_stage(block, depth, before, here, 1 if len(layers) == 1 else 2, norm))
        before = block.expansion * here
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(body, nn.Linear(before, classes), before)


def _stage(
    block: type[Block | Bottleneck], depth: int, before: int, width: int, stride: int, norm: str
) -> nn.Sequential:
    befores = [before] + [block.expansion * width] * (depth - 1)
    return nn.Sequential(*(block(b, width, 1 if i else stride, norm) for i, b in enumerate(befores)))


def _shortcut(before: int, after: int, stride: int, norm: str) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    return nn.Sequential(*convolution(before, after, 1, stride, norm=norm, activation=None))
