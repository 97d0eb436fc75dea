"""EfficientNet-Lite0 (TensorFlow's TPU team, 2020; after Tan and Le, ICML 2019): B0 without squeeze-and-excitation and
with ReLU6 for swish. Stem and top keep their widths whatever that of the stages."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.nets import efficientnet as b0
from crossward.nets.layers import require_frame
from crossward.nets.pretrained import from_file, lite0_imagenet
from crossward.nets.requirements import require_rates

STEP = 8  # channels come in steps of 8
LITE0 = b0.Names(
    ("body.stem.0", "body.stem.1"), "body.stage{ordinal}.{place}.residual",
    ("0", "1", "3", "4", "", "", "6", "7"), ("0", "1", "", "", "3", "4"),
    ("body.top.0", "body.top.1"), "head.1",
)  # fmt: skip


def efficientnet_lite0(
    *,
    channels: int,
    classes: int,
    size: int,
    start: str = "",
    width: float = 1.0,
    dropout: float = 0.2,
    drop_connect: float = 0.2,
    norm_momentum: float = 0.01,
) -> Net:
    """`start`: "" (random, PyTorch's default), "imagenet" (width 1 only) or a safetensors file, with our names or those
    of efficientnet_pytorch or timm.

    The ImageNet weights expect pixels of [0, 1] with mean 0.498 and deviation 0.502 taken off, all channels alike.
    They come from TensorFlow, hence the padding. For grey images the first convolution starts at random.
    """
    require_frame("efficientnet-lite0", size, width, b0.LEAST)
    require_rates("efficientnet-lite0", dropout=dropout, drop_connect=drop_connect, norm_momentum=norm_momentum)
    if start == "imagenet" and width != 1:
        raise ConfigError(f"The net 'efficientnet-lite0' has weights for start = \"imagenet\" at width 1, not {width}.")
    net = Net(_body(channels, width, drop_connect, norm_momentum), b0.classifier(classes, dropout), b0.TOP)
    if start:
        file = lite0_imagenet() if start == "imagenet" else start
        from_file(net, file, "efficientnet-lite0", b0.translation(LITE0, b0.EFFICIENTNET_PYTORCH, b0.TIMM))
    return net


class Block(nn.Module):
    """An inverted residual: wider by a 1x1 convolution, a convolution of each channel by itself, narrower again."""

    def __init__(
        self, before: int, after: int, kernel: int, stride: int, expansion: int, drop: float, momentum: float
    ) -> None:
        super().__init__()
        inside = before * expansion
        self.residual = nn.Sequential(
            *(_convolution(before, inside, 1, momentum) if expansion != 1 else ()),
            *_convolution(inside, inside, kernel, momentum, stride, groups=inside),
            *_convolution(inside, after, 1, momentum)[:2],
        )
        self.skips = stride == 1 and before == after
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        y = cast(Tensor, self.residual(x))
        if not self.skips:
            return y
        if self.training and self.drop:  # whole images skip the block
            kept = 1 - self.drop
            y = y * y.new_empty(len(y), 1, 1, 1).bernoulli_(kept).div_(kept)
        return y + x


class Same(nn.Conv2d):
    """A convolution that pads as TensorFlow does: where it halves even sizes, more to the right and below."""

    def forward(self, x: Tensor) -> Tensor:
        small = self.groups > 1 and min(x.shape[2:]) < self.kernel_size[0]
        if self.training and small and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
            y = SmallDepthwise.apply(self._padded(x), self.weight, self.stride[0])  # type: ignore[no-untyped-call]
            return cast(Tensor, y)
        if self.stride[0] == 1:
            return F.conv2d(x, self.weight, padding=self.kernel_size[0] // 2, groups=self.groups)
        return F.conv2d(self._padded(x), self.weight, stride=self.stride, groups=self.groups)

    def _padded(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        height, width = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[2:])
        return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))


class SmallDepthwise(torch.autograd.Function):
    """A depthwise convolution of padded maps whose kernel's gradient is a sum for each place in the kernel. Where maps
    are smaller than the kernel, PyTorch takes ten to thirty times as long for it on a CPU: nearly half of all
    training time at 32 to 72 pixels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.stride = stride
        return F.conv2d(x, kernel, stride=stride, groups=len(kernel))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (x, kernel), (g,), stride = ctx.saved_tensors, gradients, ctx.stride
        by_x = by_kernel = None
        if ctx.needs_input_grad[0]:
            by_x = conv2d_input(x.shape, kernel, g, stride=stride, groups=len(kernel))
        if ctx.needs_input_grad[1]:
            side, (height, width) = kernel.shape[-1], g.shape[2:]
            maps, above = x.permute(0, 2, 3, 1), g.permute(0, 2, 3, 1)  # (B, H, W, C), as they are in memory
            sums = [
                (maps[:, i : i + stride * height : stride, j : j + stride * width : stride] * above).sum((0, 1, 2))
                for i in range(side)
                for j in range(side)
            ]
            by_kernel = torch.stack(sums, 1).view(kernel.shape)
        return by_x, by_kernel, None


def _body(channels: int, width: float, drop_connect: float, momentum: float) -> nn.Sequential:
    """In sequence, from images to (B, TOP), so that it can be cut."""
    stages: dict[str, nn.Module] = {}
    before, number, blocks = b0.STEM, 0, sum(stage.repeats for stage in b0.STAGES)
    for ordinal, (repeats, kernel, stride, expansion, after) in enumerate(b0.STAGES, 1):
        made = []
        for place in range(repeats):
            drop = drop_connect * number / blocks
            step, number = (stride if place == 0 else 1), number + 1
            made.append(Block(before, scaled(after, width), kernel, step, expansion, drop, momentum))
            before = scaled(after, width)
        stages[f"stage{ordinal}"] = nn.Sequential(*made)
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(*_convolution(channels, b0.STEM, 3, momentum, stride=2)),
            **stages,
            top=nn.Sequential(*_convolution(before, b0.TOP, 1, momentum)),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
        )
    )


def scaled(channels: int, width: float) -> int:
    """The paper's rule: the nearest multiple of 8, but never a tenth too few."""
    wanted = channels * width
    rounded = max(STEP, int(wanted + STEP / 2) // STEP * STEP)
    return rounded if rounded >= 0.9 * wanted else rounded + STEP


def _convolution(
    before: int, after: int, kernel: int, momentum: float, stride: int = 1, groups: int = 1
) -> tuple[nn.Module, nn.Module, nn.Module]:
    convolution = Same(before, after, kernel, stride, groups=groups, bias=False)
    return convolution, nn.BatchNorm2d(after, b0.EPS, momentum), nn.ReLU6(inplace=True)
