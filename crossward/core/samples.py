"""Samples: the rows of a dataset that one site may see, turned into batches by tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.seeds import derive

Batch = tuple[Tensor, Tensor]
Augment = Callable[[Tensor, Tensor, torch.Generator], Batch]


@dataclass(frozen=True)
class Samples:
    images: Tensor  # (N, H, W, C) uint8: the whole dataset, memory-mapped and shared by all sites
    targets: Tensor  # (N,) int64 class ids, (N, K) uint8 of 0 and 1, or (N, H, W) uint8 class maps
    index: Tensor  # (n,) int64: the rows that are ours
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    augment: Augment | None = None
    device: torch.device = torch.device("cpu")
    shrink: int = 1  # images are seen at 1 / shrink of their size, each pixel the mean of those it stands for
    batch_order: int = 0  # another number: other orders of the rows, while a generator gives everything else as before
    drop_last: bool = False  # leave the last batch of a pass out if it is incomplete, and not the only one

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """The targets of our rows, unbatched."""
        return self.targets[self.index]

    def only(self, rows: Tensor) -> Samples:
        """The same source restricted to `rows`, positions among ours."""
        return replace(self, index=self.index[rows])

    def take(self, rows: Tensor) -> Batch:
        """(B, C, H, W) floats, normalised, channels last in memory, and their targets, for dataset rows."""
        x = self.images.index_select(0, rows).to(self.device, non_blocking=True)
        y = self.targets.index_select(0, rows).to(self.device, non_blocking=True)
        scale, shift = _affine(self.mean, self.std, self.images.shape[2], self.device)
        lines = x.view(-1, len(scale)).to(torch.float32)  # (B * H, W * C): long rows, where C alone would be slow
        pixels = torch.addcmul(shift, lines, scale).view(x.shape).permute(0, 3, 1, 2)
        if self.shrink > 1:
            pixels = F.avg_pool2d(pixels, self.shrink)
        return pixels, y if y.dtype == torch.int64 else y.long()

    def shuffled(self, size: int, rng: torch.Generator) -> Iterator[Batch]:
        """One pass in random order, augmented. BatchNorm needs two images in a batch: a last batch of one joins its
        neighbour, and an image that is alone at its site is shown twice."""
        order = self.index[self._order(rng)]
        if len(order) == 1:
            order = order.repeat(2)
        for rows in self._chunks(order, size):
            x, y = self.take(rows)
            yield self.augment(x, y, rng) if self.augment else (x, y)

    def _order(self, rng: torch.Generator) -> Tensor:
        """(n,) positions in random order. Every batch_order takes the same from `rng`, so that what is drawn from it
        later (augmentation, generated images) stays the same."""
        before = rng.get_state() if self.batch_order else None
        drawn = torch.randperm(len(self.index), generator=rng)
        if before is None:
            return drawn
        own = torch.Generator().manual_seed(derive(self.batch_order, "batch order", before.numpy().tobytes().hex()))
        return torch.randperm(len(self.index), generator=own)

    def _chunks(self, order: Tensor, size: int) -> list[Tensor]:
        """The rows of each batch."""
        chunks = [rows for rows in order.split(size) if len(rows)]
        if self.drop_last and len(chunks) > 1 and len(chunks[-1]) < size:
            return chunks[:-1]
        if len(chunks) > 1 and len(chunks[-1]) == 1:
            chunks[-2:] = [torch.cat(chunks[-2:])]
        return chunks

    def batch_count(self, size: int) -> int:
        """How many batches `shuffled` makes of one pass."""
        shown = self.index.repeat(2) if len(self.index) == 1 else self.index
        return len(self._chunks(shown, size))

    def in_order(self, size: int) -> Iterator[Batch]:
        """One pass in order, never augmented."""
        for rows in self.index.split(size):
            yield self.take(rows)


@cache
def _affine(mean: tuple[float, ...], std: tuple[float, ...], width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(W * C,) factors and summands that turn bytes into normalised pixels."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
    return scale.repeat(width), shift.repeat(width)
