"""Fusion: a site's network joined with the bypass that all sites share (MH-pFLGB, Eqs. 3-6)."""

from __future__ import annotations

from copy import deepcopy
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.net import Net
from crossward.methods.mh_pflgb.bypass import Bypass, classification_bypass, segmentation_bypass

Rule = Literal["weighted", "add"]


class Scale(nn.Module):
    """Feature maps of one network as those of another: a deconvolution up, a strided convolution down, or a 1x1
    convolution; then exactly `size` pixels."""

    def __init__(self, before: int, after: int, from_size: int, size: int) -> None:
        super().__init__()
        self.size, self.least = size, 0
        if size > from_size:
            step = -(-size // from_size)
            self.convolution: nn.Module = nn.ConvTranspose2d(before, after, step, step)
        else:
            step = -(-from_size // size)
            self.convolution, self.least = nn.Conv2d(before, after, step, step), step * size

    def forward(self, x: Tensor) -> Tensor:
        if short := max(0, self.least - x.shape[-1]):
            x = F.pad(x, (0, short, 0, short))
        return cast(Tensor, self.convolution(x))[..., : self.size, : self.size]


class Fused(Net):
    """features(x) is x_lf, so that forward is what a site predicts: H_l(x_lf)."""

    def __init__(self, net: Net, bypass: Bypass, to_local: nn.Module, to_global: nn.Module, rule: Rule) -> None:
        super().__init__(net.body, net.head, net.width)
        self.bypass, self.to_local, self.to_global, self.rule = bypass, to_local, to_global, rule

    def features(self, x: Tensor) -> Tensor:
        x_l: Tensor = self.body(x)
        if isinstance(self.bypass.body, nn.Identity):  # w/o global body
            return x_l
        return fused(cast(Tensor, self.to_local(self.bypass.body(x))), x_l, self.rule)  # Eq. 3

    def global_logits(self, x_lf: Tensor) -> Tensor:
        """What the bypass makes of the fused features, H_g(x_gf)."""
        return cast(Tensor, self.bypass.head(self.to_global(x_lf)))  # Eq. 6


def fused(x_g: Tensor, x_l: Tensor, rule: Rule) -> Tensor:
    """x_lf of x_g, already in the shape of x_l: (B, C), weighted number by number, or (B, C, H, W), channel by channel
    as their means say."""
    if rule == "add":
        return x_g + x_l
    apart = x_g - x_l
    a = torch.sigmoid(apart if apart.ndim == 2 else apart.mean((2, 3), keepdim=True))  # Eq. 4; b = 1 - a
    return x_l + a * apart  # Eq. 5: a x_g + b x_l


def joined(
    net: Net, channels: int, classes: int, size: int, *, rule: Rule = "weighted", body: bool = True, head: bool = True
) -> Fused:
    """A network with a bypass of its own; which task it serves is seen in its features."""
    x_l = _shape(net.body, torch.empty(2, channels, size, size))
    bypass = (classification_bypass if len(x_l) == 2 else segmentation_bypass)(channels, classes, size)
    x_g = _shape(bypass.body, torch.empty(2, channels, size, size))
    there, back = _adapter(x_g, x_l), _adapter(x_l, x_g)
    if not body:
        bypass.body, there = nn.Identity(), nn.Identity()
    if not head:
        bypass.head, back = nn.Identity(), nn.Identity()
    return Fused(net, bypass, there, back, rule)


def _adapter(before: torch.Size, after: torch.Size) -> nn.Module:
    """Between features of the shapes (B, C) or (B, C, H, W). On vectors a 1x1 convolution is a linear layer."""
    if len(before) == 2:
        return nn.Linear(before[1], after[1])
    return Scale(before[1], after[1], before[2], after[2])


def _shape(body: nn.Module, x: Tensor) -> torch.Size:
    """Of its features, found without computing them; not every network of a person's own can be run like that."""
    found: Tensor
    with torch.no_grad():
        try:
            found = deepcopy(body).to("meta").eval()(x.to("meta"))
        except Exception:  # whatever it is: tensors made on the CPU, numbers read out of tensors
            found = deepcopy(body).eval()(torch.zeros_like(x))
    return found.shape
