"""Near-identical images: 64-bit perceptual hashes, and the pairs whose hashes differ in few bits.

The hash is pHash (Zauner, "Implementation and benchmarking of perceptual image hash functions", 2010): the signs of the
8 x 8 lowest frequencies of the cosine transform of the grey image at 32 x 32, compared with their median. Two hashes
that differ in at most d bits have one of d + 1 bands of bits in common, so that only images of one band are compared.
Pairs are then compared by their small grey pictures: what stays is the same picture at another brightness, size or
compression.

Of a million images, millions of pairs have a band in common. Hashes are therefore compared in blocks that fit into the
processor's cache, and where only pairs across two sides matter, no others are looked at.
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
SUMMED_BY_PRODUCTS = 128  # pixels of a side up to which matrix products pool faster than torch's own loop
MOST_OF_A_BAND = 2000  # images with one band in common that are compared each with each
PAIRS_AT_ONCE = 1 << 20
PAIRS_IN_CACHE = 1 << 16  # whose hashes are compared in one go
SHORT_BAND = 16  # bits up to which numpy sorts by counting
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
    for part, found in hash_blocks(images):
        hashes[part], small[part], flat[part] = found.hashes, found.small, found.flat
    return ImageHashes(hashes, small, flat)


def hash_blocks(images: Tensor) -> Iterator[tuple[slice, ImageHashes]]:
    """The same, some rows at a time: the small pictures of a million images need not be in memory together."""
    for start in range(0, len(images), CHUNK):
        part = slice(start, min(start + CHUNK, len(images)))
        grey = _grey(images[part])
        tiny = _halved(grey).flatten(1)
        tiny = tiny - tiny.mean(1, keepdim=True)
        lengths = tiny.norm(dim=1, keepdim=True)
        small = (tiny / lengths.clamp_min(1e-6)).half()
        yield part, ImageHashes(_phash(grey), small, _is_flat(tiny, lengths[:, 0]).numpy())


def near_pairs(
    found: ImageHashes,
    allowed: Matters | None = None,
    *,
    across: tuple[Flags, Flags] | None = None,
    distance: int = DISTANCE,
) -> list[NearPair]:
    """The pairs of rows that show almost the same, most alike first. `across` are (n,) the rows of either of two sides
    that share none: only pairs with one row on each matter. `allowed` says of (m,) rows a and b which pairs matter.
    Flat images are like no other. Of very many pairs, as among the frames of a film, MOST_PAIRS are given back."""
    seen: list[Ints] = []
    room = MOST_SEEN
    for a, b in _near_hashes(found, across, distance):
        if allowed is not None:
            matters = allowed(a, b)
            a, b = a[matters], b[matters]
        if len(a):
            seen.append(np.stack([np.minimum(a, b), np.maximum(a, b)], axis=1)[:room])
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


def _near_hashes(found: ImageHashes, across: tuple[Flags, Flags] | None, distance: int) -> Iterator[tuple[Ints, Ints]]:
    """Pairs of rows whose hashes are near, for every band of bits that they have in common."""
    for members in _sharing_a_band(found.hashes, np.flatnonzero(~found.flat), distance):
        hashes = found.hashes[members]
        if across is None:
            places = _near_places(hashes, distance)
        else:
            places = _near_places_across(hashes, across[0][members], across[1][members], distance)
        for first, second in places:
            yield members[first], members[second]


def _sharing_a_band(hashes: Hashes, rows: Ints, distance: int) -> Iterator[Ints]:
    """Rows with a band of bits in common, two or more, in the order of their whole hash."""
    rows = rows[np.argsort(hashes[rows], kind="stable")]
    ordered = hashes[rows]
    for low, high in pairwise(np.linspace(0, BITS, distance + 2).astype(int)):
        bits = int(high - low)
        band = (ordered >> np.uint64(low)) & np.uint64((1 << bits) - 1)
        if bits <= SHORT_BAND:
            band = band.astype(np.uint16)
        order = np.argsort(band, kind="stable")
        ends = np.flatnonzero(np.diff(band[order])) + 1
        for start, end in pairwise([0, *ends.tolist(), len(rows)]):
            if end - start > 1:
                yield rows[order[start:end]]


def _near_places(hashes: Hashes, distance: int) -> Iterator[tuple[Ints, Ints]]:
    """Places of (m,) hashes, first < second, that differ in few bits. Of very many, those are compared that follow each
    other: most of them differ in other bands as well."""
    count = len(hashes)
    width = _compared(count)
    step = max(1, PAIRS_AT_ONCE // width)
    for start in range(0, count - 1, step):
        stop = min(start + step, count - 1)
        first, second = _near_between(hashes[start:stop], hashes[start + 1 : stop + width], distance)
        apart = second + 1 - first
        kept = (apart > 0) & (apart <= width)
        yield first[kept] + start, second[kept] + start + 1


def _near_places_across(hashes: Hashes, left: Flags, right: Flags, distance: int) -> Iterator[tuple[Ints, Ints]]:
    """The same, of pairs that have one place on the left and one on the right."""
    count = len(hashes)
    width = _compared(count)
    ours, theirs = np.flatnonzero(left), np.flatnonzero(right)
    if not (len(ours) and len(theirs)):
        return
    if width == count - 1:
        yield _in_order(*_near_at(hashes, ours, theirs, distance))
        return
    step = max(1, PAIRS_AT_ONCE // width)
    for start in range(0, count - 1, step):
        stop = min(start + step, count - 1)
        found = []
        for some, others in ((ours, theirs), (theirs, ours)):
            a = some[slice(*np.searchsorted(some, [start, stop]))]
            b = others[slice(*np.searchsorted(others, [start + 1, stop + width]))]
            first, second = _near_at(hashes, a, b, distance)
            kept = (second > first) & (second - first <= width)
            found.append((first[kept], second[kept]))
        yield _in_order(*(np.concatenate(places) for places in zip(*found, strict=True)))


def _compared(count: int) -> int:
    """With how many of those that follow it a hash is compared."""
    if count <= MOST_OF_A_BAND:
        return count - 1
    return min(count - 1, max(MOST_OF_A_BAND, PAIRS_AT_ONCE // count))


def _in_order(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Pairs of places, the lower first, by their first and then by their second place."""
    first, second = np.minimum(a, b), np.maximum(a, b)
    order = np.lexsort((second, first))
    return first[order], second[order]


def _near_at(hashes: Hashes, a: Ints, b: Ints, distance: int) -> tuple[Ints, Ints]:
    """The places of `a` and `b` whose hashes are near each other."""
    first, second = _near_between(hashes[a], hashes[b], distance)
    return a[first], b[second]


def _near_between(a: Hashes, b: Hashes, distance: int) -> tuple[Ints, Ints]:
    """Places in `a` and in `b` of hashes that differ in at most `distance` bits, by the first and then the second."""
    step = max(1, PAIRS_IN_CACHE // max(1, len(b)))
    differing = np.empty((min(step, len(a)), len(b)), dtype=np.uint64)
    bits = np.empty(differing.shape, dtype=np.uint8)
    first, second = [], []
    for start in range(0, len(a), step):
        some = a[start : start + step, None]
        np.bitwise_xor(some, b, out=differing[: len(some)])
        np.bitwise_count(differing[: len(some)], out=bits[: len(some)])
        near = np.flatnonzero(bits[: len(some)] <= distance)
        if len(near):
            first.append(near // len(b) + start)
            second.append(near % len(b))
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *first]), np.concatenate([none, *second])


def _is_flat(tiny: Tensor, lengths: Tensor) -> Tensor:
    """(n,) whether (n, 256) pixels of zero mean hardly deviate. Their length says so, but for rounding: the few that it
    does not decide are looked at one by one."""
    deviations = lengths / (SMALL_PIXELS - 1) ** 0.5
    flat: Tensor = deviations < FLAT
    close = torch.nonzero((deviations - FLAT).abs() < 1e-3 * FLAT)[:, 0]
    if len(close):
        flat[close] = tiny[close].std(1) < FLAT
    return flat


def _grey(images: Tensor) -> Tensor:
    """(n, H, W, C) pixels -> (n, 1, 32, 32) float grey levels."""
    height, width, channels = images.shape[1:]
    if images.dtype == torch.uint8 and channels == 1 and max(height, width) <= SUMMED_BY_PRODUCTS:
        return _pooled_by_products(images[..., 0]).unsqueeze(1)
    x = grey_levels(images).mean(3).unsqueeze(1)
    return adaptive_avg_pool2d(x, SMALL)


def _pooled_by_products(images: Tensor) -> Tensor:
    """(n, H, W) uint8 -> (n, 32, 32), to the bit what adaptive_avg_pool2d gives: sums of whole numbers are exact in
    whatever order they are added, and the divisions are its own."""
    height, width = images.shape[1:]
    down, along = _windows(height), _windows(width)
    sums = down @ (images.float() @ along.T)
    return sums.div_(down.sum(1)[:, None]).div_(along.sum(1))


@cache
def _windows(pixels: int) -> Tensor:
    """(32, pixels) 1 where a pixel counts to one of 32 windows that adaptive_avg_pool2d averages."""
    windows = torch.zeros(SMALL, pixels)
    for place, window in enumerate(windows):
        window[place * pixels // SMALL : -(-(place + 1) * pixels // SMALL)] = 1
    return windows


def _halved(grey: Tensor) -> Tensor:
    """(n, 1, 32, 32) -> (n, 16, 16) means of four pixels, added in the order of adaptive_avg_pool2d."""
    fours = grey.view(-1, TINY, 2, TINY, 2)
    sums = fours[:, :, 0, :, 0] + fours[:, :, 0, :, 1]
    sums += fours[:, :, 1, :, 0]
    sums += fours[:, :, 1, :, 1]
    return sums.div_(2).div_(2)


def _phash(grey: Tensor) -> Hashes:
    """(n,) hashes of (n, 1, 32, 32) grey levels."""
    rows = _cosines()
    low = (rows @ grey[:, 0] @ rows.T).flatten(1).numpy()  # (n, 64)
    median = np.sort(low[:, 1:], axis=1)[:, (BITS - 1) // 2, None]
    packed = np.packbits(low > median, axis=1)
    return np.ascontiguousarray(packed).view(">u8").reshape(-1).astype(np.uint64)


@cache
def _cosines() -> Tensor:
    """(8, 32) the lowest frequencies of the cosine transform (DCT-II)."""
    frequencies = torch.arange(LOW, dtype=torch.float32)[:, None]
    places = torch.arange(SMALL, dtype=torch.float32)[None] + 0.5
    return torch.cos(torch.pi / SMALL * frequencies * places)
