"""ResNet-18 and ResNet-50 (He et al., CVPR 2016), trained from scratch with PyTorch's default initialisation as
FedBM's code does."""

from __future__ import annotations

from typing import ClassVar, cast

from torch import Tensor, nn

from crossward.nets.net import Net, require_choice, require_least, require_size

STAGES = (64, 128, 256, 512)
STEP = 8  # channels come in steps of 8, which is also the size of a group of GroupNorm


def resnet18(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """stem: "imagenet" (7x7, stride 2, max-pool), "small" (3x3), "auto" = small below 64 pixels."""
    sizes = {"channels": channels, "classes": classes, "size": size}
    return _resnet("resnet18", Block, (2, 2, 2, 2), **sizes, stem=stem, width=width, norm=norm)


def resnet50(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """stem: "imagenet" (7x7, stride 2, max-pool), "small" (3x3), "auto" = small below 64 pixels."""
    sizes = {"channels": channels, "classes": classes, "size": size}
    return _resnet("resnet50", Bottleneck, (3, 4, 6, 3), **sizes, stem=stem, width=width, norm=norm)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    expansion: ClassVar[int] = 1

    def __init__(self, before: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False), _norm(width, norm), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), _norm(width, norm),
        )  # fmt: skip
        self.shortcut = _shortcut(before, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.residual(x) + self.shortcut(x)).relu_()


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1, the last of which widens by four. The stride is in the 3x3, as everybody's
    ResNet-50 has it; the paper put it into the first 1x1."""

    expansion: ClassVar[int] = 4

    def __init__(self, before: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        after = self.expansion * width
        self.residual = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False), _norm(width, norm), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), _norm(width, norm), nn.ReLU(inplace=True),
            nn.Conv2d(width, after, 1, bias=False), _norm(after, norm),
        )  # fmt: skip
        self.shortcut = _shortcut(before, after, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.residual(x) + self.shortcut(x)).relu_()


def _resnet(
    name: str, block: type[Block | Bottleneck], depths: tuple[int, ...],
    *, channels: int, classes: int, size: int, stem: str, width: float, norm: str,
) -> Net:  # fmt: skip
    require_choice(name, "stem", stem, ("auto", "imagenet", "small"))
    require_choice(name, "norm", norm, ("batch", "group"))
    require_least(name, "width", width, 0.01)
    if stem == "auto":
        stem = "small" if size < 64 else "imagenet"
    require_size(name, size, 16)
    widths = [max(STEP, STEP * round(c * width / STEP)) for c in STAGES]
    layers, before = [_stem(channels, widths[0], stem, norm)], widths[0]
    for depth, here in zip(depths, widths, strict=True):
        layers.append(_stage(block, depth, before, here, 1 if len(layers) == 1 else 2, norm))
        before = block.expansion * here
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(body, nn.Linear(before, classes), before)


def _stem(channels: int, width: int, kind: str, norm: str) -> nn.Sequential:
    if kind == "small":
        return nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), _norm(width, norm), nn.ReLU(inplace=True))
    convolution = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
    return nn.Sequential(convolution, _norm(width, norm), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))


def _stage(
    block: type[Block | Bottleneck], depth: int, before: int, width: int, stride: int, norm: str
) -> nn.Sequential:
    befores = [before] + [block.expansion * width] * (depth - 1)
    return nn.Sequential(*(block(b, width, 1 if i else stride, norm) for i, b in enumerate(befores)))


def _shortcut(before: int, after: int, stride: int, norm: str) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _norm(after, norm))


def _norm(width: int, kind: str) -> nn.Module:
    return nn.BatchNorm2d(width) if kind == "batch" else nn.GroupNorm(width // STEP, width)
