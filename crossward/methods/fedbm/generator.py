"""Generator: from an embedding to an image, or to a feature map (FedBM's conditional generator, of any size)."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.net import NetSpec
from crossward.errors import ConfigError
from crossward.nets.requirements import require_at_least

LEAST, MOST = 8, 512  # pixels of a side
SMALLEST_START = 4  # pixels of the map that the embedding is turned into
USUAL_UPS = 4  # doublings up to 256 pixels: 8 -> 128 in the paper


class Generator(nn.Module):
    """Embeddings (B, D) -> maps (B, C, S, S): in [0, 1] for images, from 0 for feature maps after a ReLU.

    At 128 pixels and width 1 this is the paper's: a linear layer to 8 x 8, a convolution, four doublings of 128, 128,
    64 and 64 channels, and a last convolution. Other sizes double less often or start from another size; what is too
    much at the edges is cut off. With `labels`, the class enters by an embedding learnt with the generator.
    """

    def __init__(
        self,
        dim: int,
        channels: int,
        size: int,
        *,
        width: float = 1.0,
        output: Literal["images", "features"] = "images",
        labels: int = 0,
    ) -> None:
        super().__init__()
        require_at_least("generator", "width", width, 0)
        self.start, ups = layout(size)
        self.size = size
        self.output = output
        narrow = max(4, round(64 * width))
        widths = [2 * narrow] * max(1, ups - 1) + [narrow] * min(2, ups)
        self.labels = nn.Embedding(labels, dim) if labels else None
        self.lift = nn.Linear(dim, widths[0] * self.start**2)
        self.blocks = nn.ModuleList([_block(widths[0], widths[0]), *(_block(a, b) for a, b in pairwise(widths))])
        self.last = nn.Conv2d(widths[-1], channels, 3, padding=1)

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        if self.labels is not None and y is not None:
            z = z + self.labels(y)
        x = cast(Tensor, self.lift(z)).view(len(z), -1, self.start, self.start)
        for k, block in enumerate(self.blocks):
            x = block(F.interpolate(x, scale_factor=2) if k else x)
        x = cast(Tensor, self.last(x))
        edge = (x.shape[-1] - self.size) // 2
        x = x[..., edge : edge + self.size, edge : edge + self.size]
        return x.sigmoid() if self.output == "images" else F.softplus(x)


def layout(size: int) -> tuple[int, int]:
    """Pixels to start from and doublings to reach `size`."""
    if not LEAST <= size <= MOST:
        raise ConfigError(
            f"the generator cannot reach maps of {size} x {size} pixels",
            hint=f"It makes {LEAST} to {MOST}: choose another image size, or another cut where it makes features.",
        )
    ups = USUAL_UPS if size <= 256 else USUAL_UPS + 1
    while size < SMALLEST_START * 2**ups:
        ups -= 1
    return -(-size // 2**ups), ups


def _block(before: int, after: int) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.LeakyReLU(0.2, inplace=True))


def augment_generated(images: Tensor, spec: NetSpec, rng: torch.Generator) -> Tensor:
    """Generated images moved, mirrored and normalised as the network wants them; one decision for the whole batch, as
    in the paper's code. The move is up to 1/32 of a side, 4 pixels at 128, and repeats the edge: black, as in the code,
    would tell generated images from real ones."""
    pad = max(1, round(min(spec.sides) / 32))
    down, right = torch.randint(2 * pad + 1, (2,), generator=rng).tolist()
    across, over = (torch.rand(2, generator=rng) < 0.5).tolist()
    side = images.shape[-1]
    moved = F.pad(images, (pad,) * 4, mode="replicate")[..., down : down + side, right : right + side]
    flips = [axis for axis, flip in ((-1, across), (-2, over)) if flip]
    moved = moved.flip(flips) if flips else moved
    mean, std = (torch.tensor(v, device=images.device).view(-1, 1, 1) for v in (spec.mean, spec.std))
    return ((moved - mean) / std).contiguous(memory_format=torch.channels_last)


def to_uint8(maps: Tensor) -> Tensor:
    """(N, C, H, W) images, or feature maps by their mean over the channels, as (N, H, W, C) bytes."""
    if maps.shape[1] not in (1, 3) or float(maps.max()) > 1:
        grey = maps.mean(1, keepdim=True)
        low, high = grey.amin((1, 2, 3), keepdim=True), grey.amax((1, 2, 3), keepdim=True)
        maps = (grey - low) / (high - low).clamp_min(1e-6)
    return (maps * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
