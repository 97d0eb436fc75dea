"""Near leaks: images that are trained on and, almost the same, validated or tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossward.data.collection import Collection
from crossward.data.federation import PARTS, Federation
from crossward.data.near_duplicates import MOST_PAIRS, Flags, Ints, near_pairs
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
    if not ((side == 1).any() and (side > 1).any()):
        return []
    codes = np.unique(collection.hashes, return_inverse=True)[1]

    def on_both_sides(a: Ints, b: Ints) -> Flags:
        both = np.minimum(side[a], side[b]) == 1
        return np.asarray(both & (np.maximum(side[a], side[b]) > 1) & (codes[a] != codes[b]))

    leaks = []
    for pair in near_pairs(collection_hashes(collection), on_both_sides):
        trained, held_out = sorted((pair.a, pair.b), key=lambda row: int(side[row]))
        leaks.append(
            NearLeak(
                collection.ids[trained],
                holder[trained],
                collection.ids[held_out],
                holder[held_out],
                PARTS[int(side[held_out]) - 1],
                _same_label(collection, trained, held_out),
                pair.correlation,
            )
        )
    return leaks


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
    codes = np.unique(collection.hashes, return_inverse=True)[1]
    pairs = near_pairs(collection_hashes(collection), lambda a, b: np.asarray(codes[a] != codes[b]))
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


def _sides(federation: Federation) -> tuple[Ints, list[str]]:
    """(n,) 1 for rows that are trained on or public, 2 for val, 3 for test, 0 for unused ones; and who holds them."""
    side = np.zeros(len(federation.collection), dtype=np.int64)
    holder = [""] * len(federation.collection)
    for split in (*federation.sites, federation.server):
        for number, part in enumerate(PARTS, 1):
            for row in getattr(split, part).tolist():
                side[row], holder[row] = max(side[row], number), split.name
    for row in federation.public.tolist():
        side[row], holder[row] = max(side[row], 1), holder[row] or "public"
    return side, holder
