"""Calibration of a segmentation network for a site (LC-Fed): gates on its channels that depend on the site, and a
second head that sees where the heads of several sites disagree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.net import Net, NetSpec
from crossward.core.weights import Weights
from crossward.nets.segmentation_layers import resize_like

SQUEEZE = 16  # channels to one hidden number of the gates
LEAST_HIDDEN = 4  # hidden numbers: a single one may be dead from the start
SIGMA = 0.4  # the standard deviation of the bell, in its radius: 6 of 15 pixels
TINY = 1e-6  # probabilities nearer than this do not differ


class ChannelSelection(nn.Module):
    """x (B, C, H, W) -> x * gates + x, with the gates of one site. The buffer `site`, a one-hot vector, says which."""

    site: Tensor

    def __init__(self, width: int, sites: int) -> None:
        super().__init__()
        hidden = max(LEAST_HIDDEN, width // SQUEEZE)
        # on vectors a 1x1 convolution is a linear layer
        self.embed = nn.Sequential(
            nn.Linear(sites, width, bias=False), nn.ReLU(inplace=True), nn.Linear(width, width, bias=False)
        )
        self.excite = nn.Sequential(
            nn.Linear(2 * width, hidden, bias=False), nn.ReLU(inplace=True), nn.Linear(hidden, width, bias=False)
        )
        self.register_buffer("site", torch.zeros(sites))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gates(x, self.site[None])[:, 0, :, None, None] + x

    def gates(self, x: Tensor, sites: Tensor) -> Tensor:
        """(B, S, C) between 0 and 1, for maps x (B, C, H, W) at the sites of these vectors, (S, N)."""
        pooled = torch.stack([x.mean((2, 3)), x.amax((2, 3))])  # (2, B, C)
        known: Tensor = self.embed(sites)  # (S, C)
        shape = (*pooled.shape[:2], len(sites), -1)
        pairs = torch.cat([pooled.unsqueeze(2).expand(shape), known.expand(shape)], 3)
        return cast(Tensor, self.excite(pairs)).sum(0).sigmoid()

    def contrast(self, x: Tensor) -> Tensor:
        """How far the site's gates are from those of the other sites for the same maps: the mean square. Its gradient
        flows through the site's own gates, and by the maps into the body; the others' count as fixed."""
        others = torch.eye(len(self.site), device=x.device)[self.site == 0]
        own = self.gates(x, self.site[None])
        if not len(others):
            return own.new_zeros(())
        with torch.no_grad():
            theirs = self.gates(x, others)
        return (own - theirs).square().mean()

    @property
    def site_number(self) -> int | None:
        """The site whose gates these are; None: no site's."""
        return int(self.site.argmax()) if bool(self.site.any()) else None

    def set_site(self, site_number: int) -> None:
        """Use this site's gates from now on; no site's where there is no such number."""
        self.site.copy_(torch.arange(len(self.site)) == site_number)


class HeadCalibration(nn.Module):
    """The final logits (B, K, H, W): a 3x3 convolution of the features as weighted by two maps of each class but the
    background, one of where heads disagree and one of what is predicted."""

    def __init__(self, width: int, classes: int, radius: int, threshold: float) -> None:
        super().__init__()
        self.head = nn.Conv2d(2 * (classes - 1) * width, classes, 3, padding=1)
        self.radius, self.threshold = radius, threshold

    def forward(self, z: Tensor, logits: Tensor, others: Iterable[Tensor]) -> Tensor:
        """Features (B, D, H, W), the logits of the site's own head, and those of the others."""
        z = z if z.shape[2:] == logits.shape[2:] else resize_like(z, logits)
        p = foreground(logits)
        uncertain = peaks(disagreement(p, map(foreground, others)), self.radius, self.threshold)
        maps = torch.cat([gaussian_spots(uncertain, self.radius), gaussian_blur(p, self.radius)], 1)
        weighted = z.unsqueeze(1) * maps.unsqueeze(2) + z.unsqueeze(1)  # (B, 2(K-1), D, H, W)
        return cast(Tensor, self.head(weighted.flatten(1, 2)))


def foreground(logits: Tensor) -> Tensor:
    """(B, K, H, W) -> (B, K-1, H, W) the probabilities of all classes but the background, class 0."""
    return logits.float().softmax(1)[:, 1:]


def disagreement(own: Tensor, others: Iterable[Tensor]) -> Tensor:
    """Pixel by pixel, the root mean square of the differences between the others' probabilities and one's own."""
    total = torch.zeros_like(own)
    count = 0
    for theirs in others:
        total = total + (theirs - own).square()
        count += 1
    return (total / max(1, count)).sqrt()


def peaks(maps: Tensor, radius: int, threshold: float) -> Tensor:
    """1 where a map is as high as anywhere within a square of 2 radius + 1 pixels, and higher than the threshold times
    its maximum; else 0. A map of zeros has none."""
    side = 2 * radius + 1
    relative = maps / maps.amax((2, 3), keepdim=True).clamp_min(TINY)
    along = F.max_pool2d(relative, (1, side), 1, (0, radius))
    highest = F.max_pool2d(along, (side, 1), 1, (radius, 0))
    return ((relative == highest) & (relative > threshold)).to(maps.dtype)


def gaussian_spots(points: Tensor, radius: int) -> Tensor:
    """A bell of height 1 around every point; where bells overlap, their sum, at most 1."""
    return _gaussian_sums(points, radius).clamp(max=1)


def gaussian_blur(maps: Tensor, radius: int) -> Tensor:
    """The mean of the pixels around each, weighted by a bell; beyond the border there are none."""
    return _gaussian_sums(maps, radius) / _gaussian_sums(maps.new_ones(1, 1, *maps.shape[2:]), radius)


def _gaussian_sums(maps: Tensor, radius: int) -> Tensor:
    """The sum of a bell of height 1 around every pixel, times that pixel; first along rows, then along columns."""
    offsets = torch.arange(-radius, radius + 1, device=maps.device, dtype=maps.dtype)
    bell = torch.exp(-(offsets**2) / (2 * (SIGMA * radius) ** 2))
    planes = maps.reshape(-1, 1, *maps.shape[2:])
    rows = F.conv2d(planes, bell.view(1, 1, 1, -1), padding=(0, radius))
    return F.conv2d(rows, bell.view(1, 1, -1, 1), padding=(radius, 0)).view(maps.shape)


def with_calibration(net: Net, spec: NetSpec, *, radius: int, threshold: float) -> Net:
    """The network with a part `calibration`, and gates at the end of its encoder if it has one, else on its features:
    the last of the blocks that its body calls `down`."""
    net.calibration = HeadCalibration(net.width, spec.classes, radius, threshold)
    if width := _bottleneck_channels(net.body, spec):
        down = cast(nn.ModuleList, net.body.down)
        down[-1] = nn.Sequential(down[-1], ChannelSelection(width, spec.sites))
    else:
        net.body = nn.Sequential(net.body, ChannelSelection(net.width, spec.sites))
    return net


def selection_of(net: nn.Module) -> ChannelSelection:
    """The gates of a network."""
    return next(module for module in net.modules() if isinstance(module, ChannelSelection))


def frozen_head(head: nn.Module, weights: Weights) -> nn.Module:
    """A frozen copy of a head with other weights."""
    copy = deepcopy(head).eval().requires_grad_(False)
    weights.into(copy)
    return copy


@contextmanager
def record_input(module: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, the arguments of the module's last call: a list that every call replaces."""
    inputs: list[Tensor] = []

    def note(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs[:] = arguments

    handle = module.register_forward_pre_hook(note)
    try:
        yield inputs
    finally:
        handle.remove()


def _bottleneck_channels(body: nn.Module, spec: NetSpec) -> int:
    """The channels of the maps at the end of the encoder, found without computing them; 0: it has none."""
    if not isinstance(getattr(body, "down", None), nn.ModuleList):
        return 0
    trial = deepcopy(body).to("meta").eval()
    outputs: list[Tensor] = []
    cast(nn.ModuleList, trial.down)[-1].register_forward_hook(lambda _, __, out: outputs.append(out))
    with torch.no_grad():
        trial(torch.empty(2, spec.channels, *spec.sides, device="meta"))
    return outputs[0].shape[1] if outputs and outputs[0].ndim == 4 else 0
