"""Near-identical images: 64-bit perceptual hashes, and the pairs whose hashes differ in few bits.

The hash is pHash (Zauner, "Implementation and benchmarking of perceptual image hash functions", 2010): the signs of the
8 x 8 lowest frequencies of the cosine transform of the grey image at 32 x 32, compared with their median. Two hashes
that differ in at most d bits have one of d + 1 bands of bits in common, so that only images of one band are compared.
Pairs are then compared by their small grey pictures: what stays is the same picture at another brightness, size or
compression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from crossward.core.bit_depth import grey_levels

Hashes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Matters = Callable[[Ints, Ints], Flags]

SMALL = 32  # pixels of a side before the transform
LOW = 8  # frequencies in each direction
BITS = LOW * LOW
DISTANCE = 6  # bits in which hashes of one picture may differ
CORRELATION = 0.985  # of the small grey pictures of one picture
TINY = 16  # pixels of a side of the small grey pictures
SMALL_PIXELS = TINY * TINY
CHUNK = 1024  # images in memory at once
FLAT = 2.0  # grey levels of deviation below which an image shows nothing
MOST_OF_A_BAND = 2000  # images with one band in common that are compared each with each
PAIRS_AT_ONCE = 1 << 20
MOST_SEEN = 4_000_000  # pairs with hashes that are near, which bounds the memory
MOST_PAIRS = 20_000  # that are returned


@dataclass(frozen=True)
class NearPair:
    """Two rows that show almost the same."""

    a: int
    b: int
    bits: int  # in which their hashes differ
    correlation: float


@dataclass(frozen=True)
class ImageHashes:
    """The hashes of a collection's images, and their small grey pictures."""

    hashes: Hashes  # (n,)
    small: Tensor  # (n, 256) float16: 16 x 16 pixels of zero mean and unit length
    flat: Flags  # (n,) images that show nothing


def image_hashes(images: Tensor) -> ImageHashes:
    """The hashes of (N, H, W, C) images."""
    hashes = np.empty(len(images), dtype=np.uint64)
    small = torch.empty(len(images), SMALL_PIXELS, dtype=torch.float16)
    flat = np.empty(len(images), dtype=np.bool_)
    for start in range(0, len(images), CHUNK):
        part = slice(start, start + CHUNK)
        grey = _grey(images[part])
        hashes[part] = _phash(grey)
        tiny = adaptive_avg_pool2d(grey, TINY).flatten(1)
        tiny = tiny - tiny.mean(1, keepdim=True)
        flat[part] = (tiny.std(1) < FLAT).numpy()
        small[part] = (tiny / tiny.norm(dim=1, keepdim=True).clamp_min(1e-6)).half()
    return ImageHashes(hashes, small, flat)


def near_pairs(found: ImageHashes, allowed: Matters | None = None, *, distance: int = DISTANCE) -> list[NearPair]:
    """The pairs of rows that show almost the same, most alike first. `allowed` says of (m,) rows a and b which pairs
    matter. Flat images are like no other. Of very many pairs, as among the frames of a film, MOST_PAIRS are given
    back."""
    seen: list[Ints] = []
    room = MOST_SEEN
    for a, b in _candidates(found.hashes, np.flatnonzero(~found.flat), distance):
        matters = np.ones(len(a), dtype=np.bool_) if allowed is None else allowed(a, b)
        a, b = a[matters], b[matters]
        near = np.bitwise_count(found.hashes[a] ^ found.hashes[b]) <= distance
        if near.any():
            seen.append(np.stack([np.minimum(a, b)[near], np.maximum(a, b)[near]], axis=1)[:room])
            room -= len(seen[-1])
        if not room:
            break
    if not seen:
        return []
    pairs = np.unique(np.concatenate(seen), axis=0)
    left, right = torch.from_numpy(pairs).split(1, dim=1)
    alike = torch.cat(
        [
            (found.small[a[:, 0]].float() * found.small[b[:, 0]].float()).sum(1)
            for a, b in zip(left.split(CHUNK), right.split(CHUNK), strict=True)
        ]
    ).numpy()
    kept = np.flatnonzero(alike >= CORRELATION)
    kept = kept[np.argsort(-alike[kept], kind="stable")[:MOST_PAIRS]]
    bits = np.bitwise_count(found.hashes[pairs[kept, 0]] ^ found.hashes[pairs[kept, 1]])
    near_ones = [
        NearPair(int(a), int(b), int(n), round(float(value), 4))
        for (a, b), n, value in zip(pairs[kept], bits, alike[kept], strict=True)
    ]
    return sorted(near_ones, key=lambda pair: (-pair.correlation, pair.bits, pair.a, pair.b))


def _candidates(hashes: Hashes, rows: Ints, distance: int) -> Iterator[tuple[Ints, Ints]]:
    """Pairs of rows with a band of bits in common. Where very many share one, those are compared that follow each other
    in the order of the whole hash: most of them differ in other bands as well."""
    if not len(rows):
        return
    for low, high in pairwise(np.linspace(0, BITS, distance + 2).astype(int)):
        band = (hashes[rows] >> np.uint64(low)) & np.uint64((1 << int(high - low)) - 1)
        order = np.lexsort((hashes[rows], band))
        starts = np.flatnonzero(np.diff(band[order], prepend=band[order][:1] ^ np.uint64(1)))
        for start, end in zip(starts, np.append(starts[1:], len(order)), strict=True):
            if end - start > 1:
                yield from _pairs_within(rows[order[start:end]])


def _pairs_within(members: Ints) -> Iterator[tuple[Ints, Ints]]:
    count = len(members)
    width = min(count - 1, max(MOST_OF_A_BAND, PAIRS_AT_ONCE // count) if count > MOST_OF_A_BAND else count - 1)
    step = max(1, PAIRS_AT_ONCE // width)
    for start in range(0, count - 1, step):
        first = np.arange(start, min(start + step, count - 1))
        offsets = np.arange(1, width + 1)
        second = first[:, None] + offsets[None]
        inside = second < count
        yield members[np.broadcast_to(first[:, None], second.shape)[inside]], members[second[inside]]


def _grey(images: Tensor) -> Tensor:
    """(n, H, W, C) pixels -> (n, 1, 32, 32) float grey levels."""
    x = grey_levels(images).mean(3).unsqueeze(1)
    return adaptive_avg_pool2d(x, SMALL)


def _phash(grey: Tensor) -> Hashes:
    """(n,) hashes of (n, 1, 32, 32) grey levels."""
    rows = _cosines()
    low = rows @ grey[:, 0] @ rows.T  # (n, 8, 8)
    flat = low.flatten(1)
    above = (flat > flat[:, 1:].median(1, keepdim=True).values).numpy()
    packed = np.packbits(above, axis=1)
    return np.ascontiguousarray(packed).view(">u8").reshape(-1).astype(np.uint64)


@cache
def _cosines() -> Tensor:
    """(8, 32) the lowest frequencies of the cosine transform (DCT-II)."""
    frequencies = torch.arange(LOW, dtype=torch.float32)[:, None]
    places = torch.arange(SMALL, dtype=torch.float32)[None] + 0.5
    return torch.cos(torch.pi / SMALL * frequencies * places)
