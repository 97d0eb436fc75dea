"""VGG-16 (Simonyan and Zisserman, ICLR 2015) with BatchNorm, with PyTorch's default initialisation.

Its maps are averaged to 2 x 2, what five max-pools leave of 64 pixels, so that one net serves every size; the paper's
7 x 7 would give the first linear layer 103 M weights. Both linear layers below the head are part of the body.
Parameters for 3 channels and 8 classes: 39,925,704, near the 40.045 M of MH-pFLGB's VGG.
"""

from __future__ import annotations

from torch import nn

from crossward.core.net import Net
from crossward.nets.layers import convolution, require_frame, scaled
from crossward.nets.requirements import require_rates

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
SIDE = 2  # pixels of the maps that the linear layers see
CONNECTED = 4096


def vgg(*, channels: int, classes: int, size: int, width: float = 1.0, dropout: float = 0.5) -> Net:
    """`width` scales the linear layers, too. `dropout` follows each linear layer of the body. Odd sizes are rounded up
    when halved, so that small images do not vanish."""
    require_frame("vgg", size, width)
    require_rates("vgg", dropout=dropout)
    layers, before = [], channels
    for stage in STAGES:
        made: list[nn.Module] = []
        for wanted in stage:
            made += convolution(before, scaled(wanted, width), 3)
            before = scaled(wanted, width)
        layers.append(nn.Sequential(*made, nn.MaxPool2d(2, ceil_mode=True)))
    connected = scaled(CONNECTED, width)
    body = nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(SIDE),
        nn.Flatten(),
        nn.Sequential(nn.Linear(before * SIDE * SIDE, connected), nn.ReLU(inplace=True), nn.Dropout(dropout)),
        nn.Sequential(nn.Linear(connected, connected), nn.ReLU(inplace=True), nn.Dropout(dropout)),
    )
    return Net(body, nn.Linear(connected, classes), connected)
