"""OCT-C8 retinal scans (8 classes, 24,000 images), from data.path or CROSSWARD_DATA.

Subramanian et al., "Classification of Retinal OCT Images Using Deep Learning", ICCCI 2022.

https://www.kaggle.com/datasets/obulisainaren/retinal-oct-c8: RetinalOCT_Dataset/<train, val or test>/<class>/*.jpg with
2,300, 350 and 350 scans of each class, a folder or one .zip of it. It gathers scans of several public sets, and its
names tell no patients: a patient may be on both sides of the official split.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from crossward.data.archives import find_dataset
from crossward.data.sources.class_folders import ClassFolders
from crossward.data.sources.settings import ImageFileSettings, Loaded
from crossward.settings import AbsolutePath
from crossward.user_folders import data_root

NAMES = ("OCT-C8", "RetinalOCT_Dataset", "retinal-oct-c8", "OCTC8")
WHERE = "https://www.kaggle.com/datasets/obulisainaren/retinal-oct-c8"
CLASSES = ("AMD", "CNV", "CSR", "DME", "DR", "DRUSEN", "MH", "NORMAL")
LAYOUT = ClassFolders("oct-c8", "OCT-C8", WHERE, CLASSES, split=True)


class OctC8Settings(ImageFileSettings):
    source: Literal["oct-c8"]
    path: AbsolutePath | None = None  # None: OCT-C8.zip, or that folder, in CROSSWARD_DATA
    split: Literal["official", "none"] = "official"  # "none" leaves it to [partition]

    def load(self) -> Loaded:
        collection, left_out = LAYOUT.read(self.path or locate(data_root()), **self.decoding())
        splits = collection.splits if self.split == "official" else None
        return replace(collection, splits=splits), [str(file) for file in left_out]


def locate(root: Path | None) -> Path:
    """Where the set is in `root`, the folder of all datasets."""
    return find_dataset(root, NAMES, title="OCT-C8", where=WHERE)
