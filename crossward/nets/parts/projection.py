"""Projection: a small network between body and head, whose output methods that contrast features compare."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from crossward.core.net import Net
from crossward.errors import ConfigError


def projected(net: Net, width: int) -> Net:
    """The body followed by w -> w, ReLU, w -> width, and a fresh head of that width in the style of the old one; 0
    leaves the net as it is. Layers are linear, or 1 x 1 convolutions where the head is a convolution."""
    if not width:
        return net
    *before, last = net.head if isinstance(net.head, nn.Sequential) else [net.head]
    if not isinstance(last, nn.Linear | nn.Conv2d) or any(any(True for _ in m.parameters()) for m in before):
        raise ConfigError(
            "a projection needs a net whose head is one linear layer or convolution, at most behind dropout",
            details=[f"head: {line}" for line in str(net.head).splitlines()],
            hint="Choose another net, or method.projection = 0.",
        )
    layer = _kind(last)
    body = nn.Sequential(net.body, layer(net.width, net.width), nn.ReLU(inplace=True), layer(net.width, width))
    head = layer(width, last.weight.shape[0], bias=last.bias is not None)
    return Net(body, nn.Sequential(*before, head) if before else head, width)


def _kind(last: nn.Linear | nn.Conv2d) -> Callable[..., nn.Linear | nn.Conv2d]:
    """How to make a layer of features like this one."""
    if isinstance(last, nn.Linear):
        return nn.Linear
    return lambda before, after, bias=True: nn.Conv2d(before, after, 1, bias=bias)
