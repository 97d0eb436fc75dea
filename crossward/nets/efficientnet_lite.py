"""EfficientNet-Lite0 (TensorFlow's TPU team, 2020; after Tan and Le, ICML 2019).

It is B0 without squeeze-and-excitation and with ReLU6 in place of swish. `width` does not scale stem and top.
"""

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
from crossward.nets.layers import require_size_and_width
from crossward.nets.pretrained import imagenet_weights_of_lite0, load_weights_file
from crossward.nets.requirements import require_rates

CHANNEL_STEP = 8  # channels come in multiples of 8
LITE0 = b0.ModuleNames(
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
    """EfficientNet-Lite0 of any width, started at random, from ImageNet weights or from a file of weights.

    start: "" (random, PyTorch's default), "imagenet" (width 1 only) or a safetensors file, with our names or those of
        efficientnet_pytorch or timm.

    The ImageNet weights expect pixels in [0, 1] that are normalised by mean 0.498 and deviation 0.502 in all channels.
    They come from TensorFlow, hence the padding. For grey images the first convolution starts at random.
    """
    require_size_and_width("efficientnet-lite0", size, width, b0.MIN_SIZE)
    require_rates("efficientnet-lite0", dropout=dropout, drop_connect=drop_connect, norm_momentum=norm_momentum)
    if start == "imagenet" and width != 1:
        raise ConfigError(f"The net 'efficientnet-lite0' has weights for start = \"imagenet\" at width 1, not {width}.")
    net = Net(_body(channels, width, drop_connect, norm_momentum), b0.classifier(classes, dropout), b0.TOP)
    if start:
        file = imagenet_weights_of_lite0() if start == "imagenet" else start
        names = b0.module_translation(LITE0, b0.EFFICIENTNET_PYTORCH, b0.TIMM)
        load_weights_file(net, file, "efficientnet-lite0", names)
    return net


class InvertedResidual(nn.Module):
    """A 1x1 convolution that widens, a depthwise convolution, and a 1x1 convolution that narrows.

    `drop` is the probability that an image skips the block in training.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int,
        expansion: int,
        drop: float,
        momentum: float,
    ) -> None:
        super().__init__()
        hidden = in_channels * expansion
        self.residual = nn.Sequential(
            *(_conv_norm_relu6(in_channels, hidden, 1, momentum) if expansion != 1 else ()),
            *_conv_norm_relu6(hidden, hidden, kernel, momentum, stride, groups=hidden),
            *_conv_norm_relu6(hidden, out_channels, 1, momentum)[:2],
        )
        self.skips = stride == 1 and in_channels == out_channels
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        y = cast(Tensor, self.residual(x))
        if not self.skips:
            return y
        if self.training and self.drop:
            keep = 1 - self.drop
            y = y * y.new_empty(len(y), 1, 1, 1).bernoulli_(keep).div_(keep)
        return y + x


class SamePaddedConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: where it halves even sizes, more to the right and below."""

    def forward(self, x: Tensor) -> Tensor:
        small = self.groups > 1 and min(x.shape[2:]) < self.kernel_size[0]
        if self.training and small and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
            y = SmallDepthwiseConv.apply(self._padded(x), self.weight, self.stride[0])  # type: ignore[no-untyped-call]
            return cast(Tensor, y)
        if self.stride[0] == 1:
            return F.conv2d(x, self.weight, padding=self.kernel_size[0] // 2, groups=self.groups)
        return F.conv2d(self._padded(x), self.weight, stride=self.stride, groups=self.groups)

    def _padded(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        height, width = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[2:])
        return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))


class SmallDepthwiseConv(torch.autograd.Function):
    """A depthwise convolution of padded maps, which computes the gradient of its kernel as one sum per kernel element.

    Where maps are smaller than the kernel, PyTorch takes ten to thirty times as long for that gradient on a CPU: nearly
    half of all training time at 32 to 72 pixels.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.stride = stride
        return F.conv2d(x, kernel, stride=stride, groups=len(kernel))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, kernel = ctx.saved_tensors
        (g,) = gradients
        x_gradient = kernel_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = conv2d_input(x.shape, kernel, g, stride=ctx.stride, groups=len(kernel))
        if ctx.needs_input_grad[1]:
            kernel_gradient = _kernel_gradient(x, kernel, g, ctx.stride)
        return x_gradient, kernel_gradient, None


def _kernel_gradient(x: Tensor, kernel: Tensor, g: Tensor, stride: int) -> Tensor:
    side = kernel.shape[-1]
    height, width = g.shape[2:]
    maps, g = x.permute(0, 2, 3, 1), g.permute(0, 2, 3, 1)  # (B, H, W, C), as they are in memory
    sums = [
        (maps[:, i : i + stride * height : stride, j : j + stride * width : stride] * g).sum((0, 1, 2))
        for i in range(side)
        for j in range(side)
    ]
    return torch.stack(sums, 1).view(kernel.shape)


def _body(channels: int, width: float, drop_connect: float, momentum: float) -> nn.Sequential:
    """From images to (B, TOP); a sequence, so that a method can split it."""
    stages: dict[str, nn.Module] = {}
    in_channels = b0.STEM
    number = 0  # of the block
    total = sum(stage.repeats for stage in b0.STAGES)
    for ordinal, (repeats, kernel, stage_stride, expansion, full_width) in enumerate(b0.STAGES, 1):
        out_channels = round_filters(full_width, width)
        blocks = []
        for place in range(repeats):
            drop = drop_connect * number / total
            stride = stage_stride if place == 0 else 1
            blocks.append(InvertedResidual(in_channels, out_channels, kernel, stride, expansion, drop, momentum))
            in_channels = out_channels
            number += 1
        stages[f"stage{ordinal}"] = nn.Sequential(*blocks)
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(*_conv_norm_relu6(channels, b0.STEM, 3, momentum, stride=2)),
            **stages,
            top=nn.Sequential(*_conv_norm_relu6(in_channels, b0.TOP, 1, momentum)),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
        )
    )


def round_filters(channels: int, width: float) -> int:
    """The paper's rule: `channels * width`, rounded to a multiple of 8 but never down by more than a tenth."""
    wanted = channels * width
    rounded = max(CHANNEL_STEP, int(wanted + CHANNEL_STEP / 2) // CHANNEL_STEP * CHANNEL_STEP)
    return rounded if rounded >= 0.9 * wanted else rounded + CHANNEL_STEP


def _conv_norm_relu6(
    in_channels: int, out_channels: int, kernel: int, momentum: float, stride: int = 1, groups: int = 1
) -> tuple[nn.Module, nn.Module, nn.Module]:
    convolution = SamePaddedConv2d(in_channels, out_channels, kernel, stride, groups=groups, bias=False)
    return convolution, nn.BatchNorm2d(out_channels, b0.EPS, momentum), nn.ReLU6(inplace=True)
