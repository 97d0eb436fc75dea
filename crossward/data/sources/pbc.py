"""Peripheral blood cells (8 classes, 17,092 images), from data.path or CROSSWARD_DATA.

PBC (Acevedo et al., Data in Brief 30, 2020, 105474).

https://data.mendeley.com/datasets/snkd93bnjr/1: one folder per class, as PBC_dataset_normal_DIB.zip or unpacked. The
split has the counts of each class that MedMNIST v2 (Yang et al., Scientific Data 10, 2023) published for this set as
BloodMNIST; which images they are is drawn anew. The set holds some images twice, one of them under two classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from crossward.core.image_size import Size
from crossward.data.archives import find_dataset
from crossward.data.bad_files import BadFile
from crossward.data.collection import Collection
from crossward.data.partition import Ints
from crossward.data.sources.class_folders import SIDES as SIDES
from crossward.data.sources.class_folders import ClassFolders, split_by_class
from crossward.data.sources.settings import ImageFileSettings, Loaded
from crossward.settings import AbsolutePath, Count, Seed
from crossward.user_folders import data_root

NAME = "PBC_dataset_normal_DIB"
WHERE = "https://data.mendeley.com/datasets/snkd93bnjr/1"
CLASSES = ("basophil", "eosinophil", "erythroblast", "ig", "lymphocyte", "monocyte", "neutrophil", "platelet")


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
    size: Size = 28,
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
    layout = ClassFolders("pbc", "PBC", WHERE, CLASSES)
    collection, left_out = layout.read(
        root, size=size, channels=channels, fit=fit, prepare=prepare, bad_files=bad_files, cache=cache
    )
    if split == "none":
        return collection, left_out
    splits = paper_split(collection.targets.numpy(), collection.hashes, collection.ids, split_seed)
    return replace(collection, splits=splits), left_out


def paper_split(labels: Ints, hashes: Sequence[str], ids: Sequence[str], seed: int) -> tuple[str, ...]:
    """Train, val or test for each row, with the published share of each class and no image on two sides."""
    return split_by_class(labels, hashes, ids, num_classes=len(CLASSES), seed=seed, title="PBC")
