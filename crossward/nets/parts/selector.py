"""Selector: a small network that tells from an image which site it comes from (FedSM)."""

from __future__ import annotations

from torch import nn

from crossward.nets.net import Net

WIDTHS = (16, 32, 64)  # channels of the convolutions, each of which halves the image
HIDDEN = 128


def selector(channels: int, sites: int) -> Net:
    """For images of any size. It has no BatchNorm: a site has batches of its own images alone, and what they have in
    common, which is what tells sites apart, would be normalised away."""
    layers: list[nn.Module] = []
    for before, after in zip((channels, *WIDTHS), WIDTHS):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.ReLU(inplace=True)]
    head = nn.Sequential(nn.Linear(WIDTHS[-1], HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, sites))
    net = Net(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), head, WIDTHS[-1])
    for module in net.modules():  # without BatchNorm the usual initial weights would let the signal fade
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return net
