"""Hashes and near pairs as their definitions say: torch's own pooling, and each pair of rows looked at by itself."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from crossward.data import near_duplicates
from crossward.data.near_duplicates import BITS, FLAT, SMALL, TINY, ImageHashes, _cosines


def plain_hashes(images: Tensor) -> ImageHashes:
    grey = adaptive_avg_pool2d(images.float().mean(3).unsqueeze(1), SMALL)
    rows = _cosines()
    low = (rows @ grey[:, 0] @ rows.T).flatten(1)
    above = (low > low[:, 1:].median(1, keepdim=True).values).numpy()
    hashes = np.packbits(above, axis=1).view(">u8").reshape(-1).astype(np.uint64)
    tiny = adaptive_avg_pool2d(grey, TINY).flatten(1)
    tiny = tiny - tiny.mean(1, keepdim=True)
    small = (tiny / tiny.norm(dim=1, keepdim=True).clamp_min(1e-6)).half()
    return ImageHashes(hashes, small, (tiny.std(1) < FLAT).numpy())


def plain_near_rows(
    hashes: list[int], flat: list[bool], sides: list[int], distance: int, *, across: bool
) -> list[tuple[int, int]]:
    """The pairs of rows whose hashes are near, the first MOST_SEEN of them: band by band, in each by its value, then by
    the order of the whole hash, in which only rows are compared that are not too far apart."""
    found = []
    for low, high in pairwise(np.linspace(0, BITS, distance + 2).astype(int).tolist()):
        bands: dict[int, list[int]] = {}
        for row in sorted((row for row in range(len(hashes)) if not flat[row]), key=lambda row: hashes[row]):
            bands.setdefault((hashes[row] >> low) & ((1 << (high - low)) - 1), []).append(row)
        for _, members in sorted(bands.items()):
            count = len(members)
            width = count - 1
            if count > near_duplicates.MOST_OF_A_BAND:
                width = min(width, max(near_duplicates.MOST_OF_A_BAND, near_duplicates.PAIRS_AT_ONCE // count))
            for first in range(count):
                for second in range(first + 1, min(first + width, count - 1) + 1):
                    a, b = members[first], members[second]
                    if across and {sides[a], sides[b]} != {1, 2}:
                        continue
                    if (hashes[a] ^ hashes[b]).bit_count() <= distance:
                        found.append((min(a, b), max(a, b)))
    return sorted({*found[: near_duplicates.MOST_SEEN]})
