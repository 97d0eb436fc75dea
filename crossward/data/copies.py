"""Copies and shared groups: rows that a federation leaves out because others show the same picture, or the same
patient, on another side of the split that the data name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from crossward.data.collection import Collection
from crossward.data.partition import Ints
from crossward.errors import ConfigError

RANKS = {"test": 2, "val": 1}  # a copy stays where it is worth most: tested on, then validated on, then trained on


@dataclass(frozen=True)
class LeftOut:
    """The rows that are left out, and why."""

    contradictions: tuple[int, ...]  # one picture with different labels: none of its rows is used
    copies: tuple[int, ...]  # of a picture whose best row stays
    grouped: tuple[int, ...]  # of a group that is tested, or validated, on

    @property
    def rows(self) -> Ints:
        return np.asarray(sorted({*self.contradictions, *self.copies, *self.grouped}), dtype=np.int64)


@dataclass(frozen=True)
class LeakRules:
    """data.duplicates and its neighbours: what becomes of copies, of groups on both sides, and of given splits."""

    duplicates: str = "refuse"
    duplicates_reason: str = ""
    shared_groups: str = "refuse"
    splits: str = "as given"

    def __post_init__(self) -> None:
        if (self.duplicates == "keep") != bool(self.duplicates_reason.strip()):
            raise ConfigError(
                'data.duplicates = "keep" needs data.duplicates_reason, and only "keep" has one',
                hint='For example data.duplicates_reason = "the published split has them".',
            )

    def recipe_keys(self) -> dict[str, Any]:
        """The keys of a recipe: those that are not usual, so that older recipes stay what they are."""
        usual = LeakRules()
        return {key: value for key, value in asdict(self).items() if value != getattr(usual, key)}


def left_out(recipe: Mapping[str, Any], collection: Collection) -> LeftOut:
    """The rows that a federation of this recipe does not use."""
    contradictions: list[int] = []
    copies: list[int] = []
    grouped: list[int] = []
    if "drop" not in (recipe.get("duplicates"), recipe.get("shared_groups")):
        return LeftOut((), (), ())
    rank = _ranks(recipe, collection)
    if recipe.get("duplicates") == "drop":
        label_of = _label_of(collection)
        for rows in _rows_by_key(collection.hashes).values():
            if len({label_of(row) for row in rows}) > 1:
                contradictions += rows
            else:
                stays = max(rows, key=lambda row: (rank[row], -row))
                copies += [row for row in rows if row != stays]
    if recipe.get("shared_groups") == "drop":
        gone = {*contradictions, *copies}
        for rows in _rows_by_key(collection.groups or ()).values():
            there = [row for row in rows if row not in gone]
            best = max((rank[row] for row in there), default=0)
            grouped += [row for row in there if rank[row] < best]
    return LeftOut(tuple(sorted(contradictions)), tuple(sorted(copies)), tuple(sorted(grouped)))


def what_was_done(recipe: Mapping[str, Any], collection: Collection) -> list[str]:
    """A line for each setting that lets a run go on though its data have copies, shared groups or a poor split."""
    lines = []
    gone = left_out(recipe, collection)
    if recipe.get("duplicates") == "drop":
        lines.append(
            f'data.duplicates = "drop": {len(gone.copies)} copies of images and {len(gone.contradictions)} images with '
            f"contradicting labels are left out of {len(collection)}"
        )
    if recipe.get("duplicates") == "keep":
        lines.append(f'data.duplicates = "keep": copies of images stay on both sides ({recipe["duplicates_reason"]})')
    if recipe.get("shared_groups") == "drop":
        lines.append(
            f'data.shared_groups = "drop": {len(gone.grouped)} images of {len(collection)} are left out, whose group '
            "is tested or validated on"
        )
    if recipe.get("splits") == "ignore":
        lines.append('data.splits = "ignore": the split that the data name is not used')
    return lines


def _ranks(recipe: Mapping[str, Any], collection: Collection) -> list[int]:
    named = collection.splits if recipe.get("splits") != "ignore" else None
    return [RANKS.get(part, 0) for part in named] if named else [0] * len(collection)


def _label_of(collection: Collection) -> Callable[[int], object]:
    """The label of a row, to be compared. Two masks of one picture differ without contradicting each other."""
    if collection.task == "segmentation":
        return lambda row: 0
    labels = collection.targets.tolist()
    return lambda row: tuple(labels[row]) if isinstance(labels[row], list) else labels[row]


def _rows_by_key(keys: Sequence[str]) -> dict[str, list[int]]:
    """key -> its rows, of the keys that several rows have; "" is an unknown key."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        if key:
            rows[key].append(row)
    return {key: some for key, some in rows.items() if len(some) > 1}
