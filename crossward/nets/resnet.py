"""ResNet-18 (He et al., CVPR 2016), trained from scratch with PyTorch's default initialisation as FedBM's code does."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from crossward.nets.net import Net, require_choice, require_least, require_size

STAGES = (64, 128, 256, 512)
STEP = 8  # channels come in steps of 8, which is also the size of a group of GroupNorm


def resnet18(
    *, channels: int, classes: int, size: int, stem: str = "auto", width: float = 1.0, norm: str = "batch"
) -> Net:
    """stem: "imagenet" (7x7, stride 2, max-pool), "small" (3x3), "auto" = small below 64 pixels."""
    require_choice("resnet18", "stem", stem, ("auto", "imagenet", "small"))
    require_choice("resnet18", "norm", norm, ("batch", "group"))
    require_least("resnet18", "width", width, 0.01)
    if stem == "auto":
        stem = "small" if size < 64 else "imagenet"
    require_size("resnet18", size, 16)
    widths = [max(STEP, STEP * round(c * width / STEP)) for c in STAGES]
    layers = [_stem(channels, widths[0], stem, norm), _stage(widths[0], widths[0], 1, norm)]
    layers += [_stage(a, b, 2, norm) for a, b in pairwise(widths)]
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Net(body, nn.Linear(widths[-1], classes), widths[-1])


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), _norm(after, norm), nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), _norm(after, norm),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if before != after or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _norm(after, norm))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.residual(x) + self.shortcut(x)).relu_()


def _stem(channels: int, width: int, kind: str, norm: str) -> nn.Sequential:
    if kind == "small":
        return nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), _norm(width, norm), nn.ReLU(inplace=True))
    convolution = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
    return nn.Sequential(convolution, _norm(width, norm), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))


def _stage(before: int, after: int, stride: int, norm: str) -> nn.Sequential:
    return nn.Sequential(Block(before, after, stride, norm), Block(after, after, 1, norm))


def _norm(width: int, kind: str) -> nn.Module:
    return nn.BatchNorm2d(width) if kind == "batch" else nn.GroupNorm(width // STEP, width)
