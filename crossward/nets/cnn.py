"""The two-convolution network of FedCD's tables, after MOON's simple-cnn (Li et al., CVPR 2021)."""

from __future__ import annotations

import math

from torch import nn

from crossward.core.image_size import Size, sides
from crossward.core.net import Net
from crossward.nets.requirements import require_at_least, require_size


def cnn(*, channels: int, classes: int, size: Size, projection: int = 0) -> Net:
    """Two 5x5 convolutions and two fully connected layers, for small images.

    projection: above 0, Linear 84-84, ReLU, Linear 84-projection are added to the body; FedCD uses 256.
    """
    require_size("cnn", min(sides(size)), 16)
    require_at_least("cnn", "projection", projection, 0)
    # pixels of the maps behind two unpadded 5x5 convolutions, each followed by a max-pool
    pixels = math.prod(((side - 4) // 2 - 4) // 2 for side in sides(size))
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * pixels, 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(),
    ]  # fmt: skip
    if projection:
        layers += [nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, projection)]
    width = projection or 84
    return Net(nn.Sequential(*layers), nn.Linear(width, classes), width)
