"""Sets with one folder for each of their classes, with or without folders of splits above them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from crossward.data.archives import open_files
from crossward.data.bad_files import BadFile
from crossward.data.collection import Collection
from crossward.data.decode import is_image
from crossward.data.partition import Ints, connected_units
from crossward.data.sources import folder
from crossward.errors import DataError

SIDES = ("train", "val", "test")


@dataclass(frozen=True)
class ClassFolders:
    """How a set is laid out."""

    name: str  # data.source
    title: str
    where: str
    classes: tuple[str, ...]
    split: bool = False  # train, val and test are above the classes

    def read(self, root: Path, **decoding: Any) -> tuple[Collection, list[BadFile]]:
        """The images in `root`, a folder or archive, and the files that were left out.

        Rows are named <class>/<file>, with the split before it, however the set is packed, so that a partition made
        from the archive fits the folder.
        """
        home = self._home(root)
        collection, left_out = folder.read(root, classes=self.classes, **decoding)
        ids = tuple(PurePosixPath(path).relative_to(home).as_posix() for path in collection.ids)
        return replace(collection, name=self.name, ids=ids), left_out

    def _home(self, root: Path) -> PurePosixPath:
        """The folder of the splits or classes inside `root`; whatever else holds images is refused unread."""
        with open_files(root) as files:
            holders = Counter(PurePosixPath(path).parent for path in files.listing() if is_image(path))
        if not holders:
            raise DataError(f"{root} holds no image.", hint=f"Download {self.title} from {self.where}.")
        known = {holder: n for holder, n in holders.items() if self._is_class(holder)}
        homes = {holder.parents[1] if self.split else holder.parent for holder in known}
        problems = [f"missing: {name}" for name in self._missing(known)]
        problems += [f"not a class: {holder}/ ({n} image(s))" for holder, n in holders.items() if holder not in known]
        problems += [f"classes in: {home}" for home in sorted(homes)] if len(homes) > 1 else []
        if problems:
            above = ", below train, val and test" if self.split else ""
            raise DataError(
                f"{root} is not laid out as {self.title}, with its images in one folder for each of "
                f"{len(self.classes)} classes{above}.",
                details=problems,
                hint=f"The classes are {', '.join(self.classes)}. Download it again from {self.where}, or read other "
                'images with data.source = "folder".',
            )
        return homes.pop()

    def _is_class(self, holder: PurePosixPath) -> bool:
        return holder.name in self.classes and (not self.split or holder.parent.name in SIDES)

    def _missing(self, known: Iterable[PurePosixPath]) -> list[str]:
        """The folders that are not there."""
        wanted = [f"{side}/{name}" for side in SIDES for name in self.classes] if self.split else [*self.classes]
        there = {f"{holder.parent.name}/{holder.name}" if self.split else holder.name for holder in known}
        return [name for name in wanted if name not in there]


def split_by_class(
    labels: Ints, hashes: Sequence[str], ids: Sequence[str], *, num_classes: int, seed: int, title: str
) -> tuple[str, ...]:
    """Train, val or test for each row: 7:1:2 of each class as MedMNIST rounds it, and no image on two sides.

    Copies of an image go to training while there is room, so that no score counts an image twice.
    """
    units = connected_units(hashes)
    room = np.array(
        [_shares(n) for n in np.bincount(labels, minlength=num_classes)]
    )  # (K, 3) rows that a side still takes
    side = np.full(len(labels), -1, dtype=np.int64)
    sizes = np.bincount(units)
    unplaced = []
    for unit in np.argsort(-sizes, kind="stable")[: (sizes > 1).sum()]:
        rows = np.flatnonzero(units == unit)
        need = np.bincount(labels[rows], minlength=num_classes)[:, None]
        fitting = np.flatnonzero((room >= need).all(0))
        if len(fitting):
            side[rows] = fitting[0]
            room[:, fitting[:1]] -= need
        else:
            unplaced.append(" = ".join(ids[row] for row in rows.tolist()))
    if unplaced:
        raise DataError(
            f"{title} cannot be split as published: copies of an image do not fit on one side.",
            details=unplaced,
            hint='Remove copies, or leave the split to [partition] with data.split = "none".',
        )
    rng = np.random.RandomState(seed)  # its streams never change: a seed names one split for good
    for label in range(num_classes):
        single = np.flatnonzero((labels == label) & (side < 0))
        side[rng.permutation(single)] = np.repeat(range(len(SIDES)), room[label])
    return tuple(SIDES[s] for s in side)


def _shares(n: int) -> tuple[int, int, int]:
    """Train, val and test rows of a class of `n`."""
    train = math.floor(0.7 * n)  # 0.7 * 1420 is 993.999…, and 993 is what was published
    test = -(-n // 5)
    return train, n - train - test, test
