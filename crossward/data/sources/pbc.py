"""Peripheral blood cells (8 classes, 17,092 images), from data.path or CROSSWARD_DATA.

PBC (Acevedo et al., Data in Brief 30, 2020, 105474).

https://data.mendeley.com/datasets/snkd93bnjr/1: one folder per class, as PBC_dataset_normal_DIB.zip or unpacked. The
split has the counts of each class that MedMNIST v2 (Yang et al., Scientific Data 10, 2023) published for this set as
BloodMNIST; which images they are is drawn anew. The set holds some images twice, one of them under two classes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from crossward.data.archives import find_dataset, open_files
from crossward.data.bad_files import BadFile
from crossward.data.collection import Collection
from crossward.data.decode import is_image
from crossward.data.partition import Ints, connected_units
from crossward.data.sources import folder
from crossward.data.sources.settings import ImageFileSettings, Loaded
from crossward.errors import DataError
from crossward.settings import AbsolutePath, Count, Seed
from crossward.user_folders import data_root

NAME = "PBC_dataset_normal_DIB"
WHERE = "https://data.mendeley.com/datasets/snkd93bnjr/1"
CLASSES = ("basophil", "eosinophil", "erythroblast", "ig", "lymphocyte", "monocyte", "neutrophil", "platelet")
SIDES = ("train", "val", "test")


class PbcSettings(ImageFileSettings):
    source: Literal["pbc"]
    path: AbsolutePath | None = None  # None: PBC_dataset_normal_DIB.zip, or that folder, in CROSSWARD_DATA
    size: Count = 28
    split: Literal["paper", "none"] = "paper"  # "none" leaves it to [partition]
    split_seed: Seed = 0

    def load(self) -> Loaded:
        path = self.path or locate(data_root())
        collection, left_out = read(path, **self.decoding(), split=self.split, split_seed=self.split_seed)
        return collection, [str(file) for file in left_out]


def locate(root: Path | None) -> Path:
    """Where the set is in `root`, the folder of all datasets."""
    return find_dataset(root, (NAME,), title="PBC", where=WHERE)


def read(
    root: Path,
    *,
    size: int = 28,
    channels: int = 3,
    fit: str = "stretch",
    prepare: tuple[str, ...] = (),
    bad_files: str = "refuse",
    split: Literal["paper", "none"] = "paper",
    split_seed: int = 0,
    cache: Path,
) -> tuple[Collection, list[BadFile]]:
    """The cells in `root`, a folder or archive, and the files that were left out.

    Rows are named <class>/<file> however the set is packed, so that a partition made from the archive fits the folder.
    """
    home = _home(root)
    collection, left_out = folder.read(
        root, size=size, channels=channels, fit=fit, prepare=prepare, bad_files=bad_files, cache=cache
    )
    ids = tuple(PurePosixPath(path).relative_to(home).as_posix() for path in collection.ids)
    labels = collection.targets.numpy()  # a folder's classes are in alphabetical order, as the official ones are
    splits = paper_split(labels, collection.hashes, ids, split_seed) if split == "paper" else None
    return replace(collection, name="pbc", classes=CLASSES, ids=ids, splits=splits), left_out


def paper_split(labels: Ints, hashes: Sequence[str], ids: Sequence[str], seed: int) -> tuple[str, ...]:
    """Train, val or test for each row, with the published share of each class and no image on two sides.

    Copies of an image go to training while there is room, so that no score counts an image twice.
    """
    num_classes = len(CLASSES)
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
            "PBC cannot be split as published: copies of an image do not fit on one side.",
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


def _home(root: Path) -> PurePosixPath:
    """The folder of the eight class folders inside `root`; whatever else holds images is refused unread."""
    with open_files(root) as files:
        holders = Counter(PurePosixPath(path).parent for path in files.listing() if is_image(path))
    homes = {holder.parent for holder in holders if holder.name in CLASSES}
    not_classes = [
        f"not a class: {holder}/ ({n} image(s))" for holder, n in holders.items() if holder.name not in CLASSES
    ]
    missing = [f"missing: {name}" for name in CLASSES if name not in {holder.name for holder in holders}]
    scattered = [f"classes in: {home}" for home in sorted(homes)] if len(homes) > 1 else []
    if not holders:
        raise DataError(f"{root} holds no image.", hint=f"Download PBC from {WHERE}.")
    if not_classes or missing or scattered:
        raise DataError(
            f"{root} is not laid out as PBC, with its images in one folder for each of eight classes.",
            details=[*missing, *not_classes, *scattered],
            hint=f'The classes are {", ".join(CLASSES)}. Other images can be read with data.source = "folder".',
        )
    return homes.pop()
