"""Fusion: a site's network joined with the bypass that all sites share (MH-pFLGB, Eqs. 3-6)."""

from __future__ import annotations

from copy import deepcopy
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.net import Net
from crossward.methods.mh_pflgb.bypass import Bypass, Norm, classification_bypass, segmentation_bypass

Rule = Literal["weighted", "add"]


class MapAdapter(nn.Module):
    """Turns feature maps of one network into the shape of another's: a deconvolution up, a strided convolution down, or
    a 1x1 convolution; then exactly `size` pixels."""

    def __init__(self, before: int, after: int, from_size: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.least = 0  # pixels of a side that the convolution needs
        if size > from_size:
            step = -(-size // from_size)
            self.convolution: nn.Module = nn.ConvTranspose2d(before, after, step, step)
        else:
            step = -(-from_size // size)
            self.convolution = nn.Conv2d(before, after, step, step)
            self.least = step * size

    def forward(self, x: Tensor) -> Tensor:
        if short := max(0, self.least - x.shape[-1]):
            x = F.pad(x, (0, short, 0, short))
        return cast(Tensor, self.convolution(x))[..., : self.size, : self.size]


class FusedNet(Net):
    """features(x) is x_lf, so that forward is what a site predicts: H_l(x_lf)."""

    def __init__(self, net: Net, bypass: Bypass, to_local: nn.Module, to_global: nn.Module, rule: Rule) -> None:
        super().__init__(net.body, net.head, net.width)
        self.bypass, self.to_local, self.to_global, self.rule = bypass, to_local, to_global, rule

    def features(self, x: Tensor) -> Tensor:
        x_l: Tensor = self.body(x)
        if isinstance(self.bypass.body, nn.Identity):  # w/o global body
            return x_l
        return fuse(cast(Tensor, self.to_local(self.bypass.body(x))), x_l, self.rule)  # Eq. 3

    def global_logits(self, x_lf: Tensor) -> Tensor:
        """What the bypass makes of the fused features, H_g(x_gf)."""
        return cast(Tensor, self.bypass.head(self.to_global(x_lf)))  # Eq. 6


def fuse(x_g: Tensor, x_l: Tensor, rule: Rule) -> Tensor:
    """x_lf of x_g, already in the shape of x_l: (B, C), weighted number by number, or (B, C, H, W), weighted channel by
    channel according to their means."""
    if rule == "add":
        return x_g + x_l
    difference = x_g - x_l
    a = torch.sigmoid(difference if difference.ndim == 2 else difference.mean((2, 3), keepdim=True))  # Eq. 4; b = 1 - a
    return x_l + a * difference  # Eq. 5: a x_g + b x_l


def with_bypass(
    net: Net,
    channels: int,
    classes: int,
    size: int,
    *,
    rule: Rule = "weighted",
    body: bool = True,
    head: bool = True,
    norm: Norm = "batch",
) -> FusedNet:
    """The network with a bypass of its own, whose task follows from the shape of the network's features."""
    x_l = _feature_shape(net.body, torch.empty(2, channels, size, size))
    bypass = (classification_bypass if len(x_l) == 2 else segmentation_bypass)(channels, classes, size, norm)
    x_g = _feature_shape(bypass.body, torch.empty(2, channels, size, size))
    to_local = _adapter(x_g, x_l)
    to_global = _adapter(x_l, x_g)
    if not body:
        bypass.body = nn.Identity()
        to_local = nn.Identity()
    if not head:
        bypass.head = nn.Identity()
        to_global = nn.Identity()
    return FusedNet(net, bypass, to_local, to_global, rule)


def _adapter(before: torch.Size, after: torch.Size) -> nn.Module:
    """Between features of the shapes (B, C) or (B, C, H, W). On vectors a 1x1 convolution is a linear layer."""
    if len(before) == 2:
        return nn.Linear(before[1], after[1])
    return MapAdapter(before[1], after[1], before[2], after[2])


def _feature_shape(body: nn.Module, x: Tensor) -> torch.Size:
    """The shape of the body's features, without computing them where the body can run on the meta device; a network of
    the user's own may not."""
    features: Tensor
    with torch.no_grad():
        try:
            features = deepcopy(body).to("meta").eval()(x.to("meta"))
        except Exception:  # whatever it is: tensors made on the CPU, numbers read out of tensors
            features = deepcopy(body).eval()(torch.zeros_like(x))
    return features.shape
