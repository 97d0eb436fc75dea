"""FCN-8s (Long, Shelhamer and Darrell, CVPR 2015, https://arxiv.org/abs/1411.4038) on a VGG-16 of any width.

Maps at 1/32, 1/16 and 1/8 of the image go through a 1x1 convolution each and are summed from the coarsest, up-sampled
to the next; the sum, up-sampled to the image, is the features. All of that is linear, so with a head of at most `base`
classes it is the paper's sum of class scores, written so that features come before the head.

Departures: BatchNorm in place of dropout and of a start from ImageNet; the two convolutions that were VGG's fully
connected layers are 3x3 and 1x1 with 16 * base channels in place of 7x7 and 1x1 with 4096, for 7x7 would see
little but padding in small images; up-sampling is bilinear throughout, where the paper learns it from there.

For 3 channels and 2 classes: 1,290,562 parameters; with `base=80` 32.2 M, the nearest to the 32.6 M of the FCN in
MH-pFLGB's paper.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.net import Net
from crossward.nets.requirements import require_at_least, require_size
from crossward.nets.segmentation_layers import conv_norm_relu, resize_like

STAGES = (
    (1, 2),
    (2, 2),
    (4, 3),
    (8, 3),
    (8, 3),
)  # VGG-16: channels, in units of `base`, and convolutions of a stage
MIN_SIZE = 16  # pixels a side; 2 at 1/8


def fcn(*, channels: int, classes: int, size: int, base: int = 16) -> Net:
    """FCN-8s on a VGG-16 of any width, which sums three scales.

    base: channels of the first stage, and the width of the features, (B, base, H, W).

    Images have at least 16 x 16 pixels.
    """
    require_at_least("fcn", "base", base, 1)
    require_size("fcn", size, MIN_SIZE)
    return Net(FusedBody(channels, base), nn.Conv2d(base, classes, 1), base)


class FusedBody(nn.Module):
    def __init__(self, channels: int, base: int) -> None:
        super().__init__()
        widths = [base * times for times, _ in STAGES]
        depths = [depth for _, depth in STAGES]
        shapes = zip(pairwise([channels, *widths]), depths, strict=True)
        self.stages = nn.ModuleList(_stage(a, b, depth) for (a, b), depth in shapes)
        self.top = nn.Sequential(*conv_norm_relu(widths[-1], 16 * base), *conv_norm_relu(16 * base, 16 * base, 1))
        self.fuse = nn.ModuleList(nn.Conv2d(width, base, 1) for width in (16 * base, widths[3], widths[2]))

    def forward(self, x: Tensor) -> Tensor:
        image = x
        maps = []
        for stage in self.stages:
            x = _max_pool(stage(x))
            maps.append(x)
        fuse_32, fuse_16, fuse_8 = self.fuse  # named for the fraction of the image size
        z: Tensor = fuse_32(self.top(x))
        for fuse, skip in ((fuse_16, maps[3]), (fuse_8, maps[2])):
            z = resize_like(z, skip) + fuse(skip)
        return resize_like(z, image)


def _stage(in_channels: int, out_channels: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise([in_channels] + [out_channels] * depth):
        layers += conv_norm_relu(a, b)
    return nn.Sequential(*layers)


def _max_pool(x: Tensor) -> Tensor:
    """Stops at 2 x 2, so that BatchNorm can train on one image."""
    return F.max_pool2d(x, 2, ceil_mode=True) if min(x.shape[2:]) > 2 else x
