"""VGG-16 (Simonyan and Zisserman, ICLR 2015) with BatchNorm, with PyTorch's default initialisation.

Its maps are averaged to 2 x 2, what five max-pools leave of 64 pixels, so that one net serves every size; the paper's
7 x 7 would give the first linear layer 103 M weights. Both linear layers below the head are part of the body.
Parameters for 3 channels and 8 classes: 39,925,704, near the 40.045 M of MH-pFLGB's VGG.
"""

from __future__ import annotations

from torch import nn

from crossward.core.net import Net
from crossward.nets.layers import conv_norm_activation, require_size_and_width, scale_channels
from crossward.nets.requirements import require_rates

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
SIDE = 2  # pixels a side of the maps that the linear layers see
LINEAR_WIDTH = 4096


def vgg(*, channels: int, classes: int, size: int, width: float = 1.0, dropout: float = 0.5) -> Net:
    """VGG-16 with BatchNorm of any width, for any image size.

    width: scales the linear layers, too.
    dropout: follows each linear layer of the body.

    Odd sizes are rounded up when halved, so that small images do not vanish.
    """
    require_size_and_width("vgg", size, width)
    require_rates("vgg", dropout=dropout)
    stages = []
    in_channels = channels
    for stage in STAGES:
        layers: list[nn.Module] = []
        for full_width in stage:
            out_channels = scale_channels(full_width, width)
            layers += conv_norm_activation(in_channels, out_channels, 3)
            in_channels = out_channels
        stages.append(nn.Sequential(*layers, nn.MaxPool2d(2, ceil_mode=True)))
    features = scale_channels(LINEAR_WIDTH, width)
    body = nn.Sequential(
        *stages,
        nn.AdaptiveAvgPool2d(SIDE),
        nn.Flatten(),
        nn.Sequential(nn.Linear(in_channels * SIDE * SIDE, features), nn.ReLU(inplace=True), nn.Dropout(dropout)),
        nn.Sequential(nn.Linear(features, features), nn.ReLU(inplace=True), nn.Dropout(dropout)),
    )
    return Net(body, nn.Linear(features, classes), features)
