"""Near leaks: images that are trained on and, almost the same, validated or tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossward.data.collection import Collection
from crossward.data.federation import PARTS, Federation
from crossward.data.near_duplicates import MOST_PAIRS, Flags, Ints, Matters, near_pairs
from crossward.data.stored_hashes import collection_hashes

MOST = 100  # pairs that a run keeps


@dataclass(frozen=True)
class NearLeak:
    """A training image and one that is held out, which show almost the same."""

    trained: str  # ids
    trained_at: str  # site, or "public"
    held_out: str
    held_out_at: str  # site, or "server"
    part: str  # "val" or "test"
    same_label: bool | None  # None in segmentation
    correlation: float


def near_leaks(federation: Federation) -> list[NearLeak]:
    """The pairs on both sides, most alike first; identical pixels are left to the audit."""
    collection = federation.collection
    side, holder = _sides(federation)
    trained_on, held_back = side == 1, side > 1
    if not (trained_on.any() and held_back.any()):
        return []
    across = (trained_on, held_back)
    names = federation.holder_names
    leaks = []
    for pair in near_pairs(collection_hashes(collection), other_pixels(collection), across=across):
        trained, held_out = sorted((pair.a, pair.b), key=lambda row: int(side[row]))
        leaks.append(
            NearLeak(
                collection.ids[trained],
                names[holder[trained]],
                collection.ids[held_out],
                names[holder[held_out]],
                PARTS[int(side[held_out]) - 1],
                _same_label(collection, trained, held_out),
                pair.correlation,
            )
        )
    return leaks


def other_pixels(collection: Collection) -> Matters:
    """Which pairs of rows are not the same to the pixel: those that are, are the audit's."""
    hashes = collection.hashes

    def differ(a: Ints, b: Ints) -> Flags:
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        return np.fromiter((hashes[one] != hashes[other] for one, other in pairs), np.bool_, len(a))

    return differ


def near_leak_notes(leaks: Sequence[NearLeak]) -> list[str]:
    """What a person should know of them, in a line."""
    if not leaks:
        return []
    first = leaks[0]
    differ = sum(leak.same_label is False for leak in leaks)
    labels = f", {differ} of them with another label" if differ else ""
    return [
        f"{_counted(leaks)} pair(s) of almost the same image are trained on and held out{labels}; first: "
        f"{first.trained} ({first.trained_at}) and {first.held_out} ({first.held_out_at}, {first.part})"
    ]


def _counted(pairs: Sequence[object]) -> str:
    return str(len(pairs)) if len(pairs) < MOST_PAIRS else f"{MOST_PAIRS} or more"


def near_pair_notes(collection: Collection) -> list[str]:
    """What a person should know, in a line, of images that are almost the same, before anything is split."""
    pairs = near_pairs(collection_hashes(collection), other_pixels(collection))
    if not pairs:
        return []
    first = pairs[0]
    differ = sum(_same_label(collection, pair.a, pair.b) is False for pair in pairs)
    labels = f", {differ} of them with another label" if differ else ""
    return [
        f"{_counted(pairs)} pair(s) of images are almost the same{labels}; first: {collection.ids[first.a]} and "
        f"{collection.ids[first.b]}. A group for both keeps them on one side of a split"
    ]


def _same_label(collection: Collection, a: int, b: int) -> bool | None:
    """Whether two rows have the same label; None in segmentation."""
    if collection.task == "segmentation":
        return None
    return bool((collection.targets[a] == collection.targets[b]).all())


def _sides(federation: Federation) -> tuple[Ints, Ints]:
    """(n,) 1 for rows that are trained on or public, 2 for val, 3 for test, 0 for unused ones; and the number of who
    holds them, as in Federation.holder_names."""
    holdings = federation.holdings
    side = np.zeros(len(federation.collection), dtype=np.int64)
    holder = np.zeros_like(side)
    side[holdings.rows] = holdings.parts + 1  # the audit has seen to it that no row is held twice
    holder[holdings.rows] = holdings.holders
    return side, holder
