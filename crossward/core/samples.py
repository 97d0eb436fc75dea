"""Samples: the rows of a dataset that one site may see, turned into batches by tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core import passes
from crossward.core.bit_depth import as_bits, as_floats, depth_of
from crossward.core.device_copy import DeviceCopy, rows_for
from crossward.core.pixel_range import brightest
from crossward.core.seeds import derive

Batch = tuple[Tensor, Tensor]
Numbers = tuple[Tensor, ...]  # of augmentation: each (B, ...), a row for each image
Normalise = Callable[[Tensor], Tensor]  # (B, C, H, W) bits -> floats


class Augment(Protocol):
    """Changes images by chance. Its numbers are drawn first, and applied by any thread and on any device."""

    def draw(self, shape: Sequence[int], rng: torch.Generator) -> Numbers:
        """On the CPU, for images of this shape, (B, C, H, W)."""
        ...

    def apply(self, x: Tensor, y: Tensor, numbers: Numbers, normalise: Normalise | None = None) -> Batch:
        """x and y may be changed in place. With `normalise`, x holds bits, uint8 or int16, which it normalises when it
        likes."""
        ...

    def __call__(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Batch:
        """Both, on normalised images."""
        ...


@dataclass(frozen=True)
class Samples:
    images: Tensor  # (N, H, W, C) uint8 or uint16: the whole dataset, memory-mapped and shared by all sites
    targets: Tensor  # (N,) int64 class ids, (N, K) uint8 of 0 and 1, or (N, H, W) uint8 class maps
    index: Tensor  # (n,) int64: the rows that are ours
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    augment: Augment | None = None
    device: torch.device = torch.device("cpu")
    shrink: int = 1  # images are seen at 1 / shrink of their size, each pixel the mean of those it stands for
    batch_order: int = 0  # another number: other orders of the rows, while a generator gives everything else as before
    drop_last: bool = False  # leave the last batch of a pass out if it is incomplete, and not the only one
    device_copy: DeviceCopy | None = None  # images and targets on the device, if they fit; None: they come by batches

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """The targets of our rows, unbatched."""
        return self.targets[self.index]

    def only(self, rows: Tensor) -> Samples:
        """The same source restricted to `rows`, positions among ours."""
        return replace(self, index=self.index[rows])

    def with_targets(self, targets: Tensor) -> Samples:
        """The same images with other targets, one for each image of the dataset."""
        copy = None if self.device_copy is None else self.device_copy.with_targets(targets)
        return replace(self, targets=targets, device_copy=copy)

    def take(self, rows: Tensor) -> Batch:
        """(B, C, H, W) floats, normalised, channels last in memory, and their targets, for dataset rows."""
        return self.finish(*self.gather(rows))

    @property
    def is_on_device(self) -> bool:
        """Whether the whole dataset is: then rows are best there, too, before they are gathered."""
        return self.device_copy is not None and self.device_copy.tensors is not None

    def gather(self, rows: Tensor) -> Batch:
        """(B, H, W, C) bits, uint8 or int16, and their targets, on the device."""
        bits = as_bits(self.images)
        if self.device.type == "cpu":
            return bits.index_select(0, rows), self.targets.index_select(0, rows)
        if self.device_copy is None or self.device_copy.tensors is None:
            return rows_for(self.device, bits, rows), rows_for(self.device, self.targets, rows)
        images, targets = self.device_copy.tensors
        rows = rows.to(self.device)
        return images.index_select(0, rows), targets.index_select(0, rows)

    def finish(self, images: Tensor, y: Tensor, numbers: Numbers | None = None) -> Batch:
        """Gathered rows as a batch, augmented by the numbers drawn for it."""
        x = images.permute(0, 3, 1, 2)
        if self.augment is None or numbers is None:
            x = self._shrunk(self._normalised(x))
        elif self.shrink > 1:
            x, y = self.augment.apply(self._shrunk(self._normalised(x)), y, numbers)
        else:
            x, y = self.augment.apply(x, y, numbers, self._normalised)
        return x, y if y.dtype == torch.int64 else y.long()

    def _normalised(self, x: Tensor) -> Tensor:
        """Floats for bits (B, C, H, W) that are channels last in memory, and laid out as they are."""
        scale, shift = _affine(self.mean, self.std, brightest(depth_of(self.images)), x.shape[3], x.device)
        pixels = as_floats(x)
        lines = pixels.permute(0, 2, 3, 1).view(
            -1, len(scale)
        )  # (B * H, W * C): long rows, where C alone would be slow
        torch.addcmul(shift, lines, scale, out=lines)
        return pixels

    def _shrunk(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.shrink) if self.shrink > 1 else x

    def shuffled(self, size: int, rng: torch.Generator, count: int = 1) -> Iterator[Batch]:
        """`count` passes in random order, augmented. BatchNorm needs two images in a batch: a last batch of one joins
        its neighbour, and an image that is alone at its site is shown twice."""
        return passes.shuffled(self, size, rng, count)

    def draw_rows(self, size: int, rng: torch.Generator) -> list[Tensor]:
        """The rows of each batch of one pass."""
        order = self.index[self._order(rng)]
        return self._chunks(order.repeat(2) if len(order) == 1 else order, size)

    def draw_numbers(self, count: int, rng: torch.Generator) -> Numbers | None:
        """What augmentation draws for a batch of so many images."""
        if self.augment is None:
            return None
        _, height, width, channels = self.images.shape
        return self.augment.draw((count, channels, height // self.shrink, width // self.shrink), rng)

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
        return passes.in_order(self, size)


@cache
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], white: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(W * C,) factors and summands that turn pixels from 0 to `white` into normalised ones."""
    scale = torch.tensor([1 / (white * s) for s in std], device=device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
    return scale.repeat(width), shift.repeat(width)
