"""A projection between body and head; methods that contrast features compare its output."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from crossward.core.net import Net
from crossward.errors import ConfigError


def with_projection(net: Net, width: int) -> Net:
    """The net with w -> w, ReLU, w -> width behind its body, and a fresh head of that width; unchanged for width 0.

    Layers are linear, or 1 x 1 convolutions where the head is a convolution. The new head has a bias, and dropout
    before it, where the old one has.
    """
    if not width:
        return net
    *dropout, last = net.head if isinstance(net.head, nn.Sequential) else [net.head]
    if not isinstance(last, nn.Linear | nn.Conv2d) or any(map(_has_parameters, dropout)):
        raise ConfigError(
            "a projection needs a net whose head is one linear layer or convolution, at most behind dropout",
            details=[f"head: {line}" for line in str(net.head).splitlines()],
            hint="Choose another net, or method.projection = 0.",
        )
    layer: Callable[..., nn.Linear | nn.Conv2d] = nn.Linear if isinstance(last, nn.Linear) else _pointwise_convolution
    body = nn.Sequential(net.body, layer(net.width, net.width), nn.ReLU(inplace=True), layer(net.width, width))
    head = layer(width, last.weight.shape[0], bias=last.bias is not None)
    return Net(body, nn.Sequential(*dropout, head) if dropout else head, width)


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _pointwise_convolution(in_channels: int, out_channels: int, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 1, bias=bias)
