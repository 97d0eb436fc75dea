"""ResNet-17, -11, -8 and -5 of MH-pFLGB, one for each image resolution of its hospitals, from full to an eighth.

The paper only names them. Their names fit a 3x3 convolution, 5, 3, 2 or 1 blocks of three convolutions and a linear
layer, which is what this file has: bottlenecks without expansion, in stages of 64, 128, 256 and 512 channels, each
of which halves the size but the first. For 3 channels and 2 classes they have 4.563, 0.952, 0.229 and 0.047 M
parameters. The paper counts 4.231, 2.104, 1.558 and 1.359 M and does not say how.
"""

from __future__ import annotations

from typing import ClassVar

from crossward.core.net import Net
from crossward.nets.resnet import Bottleneck, residual_net

MIN_SIZE = 8  # pixels a side: an eighth of a small image


def resnet17(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """17 layers: five bottlenecks without expansion; MH-pFLGB's for images of full resolution.

    stem: "imagenet" (3x3, stride 2, max-pool), "small" (3x3), or "auto" = small below 64 pixels.
    norm: "batch" or "group".

    4,565,704 parameters for 3 channels and 8 classes.
    """
    return _shallow(
        "resnet17", (1, 1, 2, 1), channels=channels, classes=classes, size=size, stem=stem, width=width, norm=norm
    )


def resnet11(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """11 layers: three bottlenecks without expansion; MH-pFLGB's for half the resolution.

    Options: see resnet17. 953,544 parameters for 3 channels and 8 classes.
    """
    return _shallow(
        "resnet11", (1, 1, 1), channels=channels, classes=classes, size=size, stem=stem, width=width, norm=norm
    )


def resnet8(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """8 layers: two bottlenecks without expansion; MH-pFLGB's for a quarter of the resolution.

    Options: see resnet17. 229,576 parameters for 3 channels and 8 classes.
    """
    return _shallow("resnet8", (1, 1), channels=channels, classes=classes, size=size, stem=stem, width=width, norm=norm)


def resnet5(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """5 layers: one bottleneck without expansion; MH-pFLGB's for an eighth of the resolution.

    Options: see resnet17. 47,816 parameters for 3 channels and 8 classes.
    """
    return _shallow("resnet5", (1,), channels=channels, classes=classes, size=size, stem=stem, width=width, norm=norm)


class EvenBottleneck(Bottleneck):
    """Three convolutions of one width."""

    expansion: ClassVar[int] = 1


def _shallow(
    name: str, depths: tuple[int, ...], *, channels: int, classes: int, size: int, stem: str, width: float, norm: str
) -> Net:
    return residual_net(
        name,
        EvenBottleneck,
        depths,
        channels=channels,
        classes=classes,
        size=size,
        stem=stem,
        width=width,
        norm=norm,
        kernel=3,
        min_size=MIN_SIZE,
    )
