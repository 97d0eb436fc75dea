"""Kvasir-v2 endoscopy (8 classes, 8,000 images), from data.path or CROSSWARD_DATA.

Landmarks, findings and polyp removal in the gastrointestinal tract (Pogorelov et al., MMSys 2017, 164-169).

https://datasets.simula.no/kvasir: kvasir-dataset-v2.zip, one folder with 1,000 images for each class, or unpacked. It
has no official split; the papers draw 7:1:2, which is done here for each class: 5,600, 800 and 1,600 images. Names tell
no patients, so that one may be on both sides; copies of an image are on one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from crossward.data.archives import find_dataset
from crossward.data.sources.class_folders import ClassFolders, split_by_class
from crossward.data.sources.settings import ImageFileSettings, Loaded
from crossward.settings import AbsolutePath, Seed
from crossward.user_folders import data_root

NAMES = ("kvasir-dataset-v2", "kvasir-v2")
WHERE = "https://datasets.simula.no/kvasir"
CLASSES = (
    "dyed-lifted-polyps", "dyed-resection-margins", "esophagitis", "normal-cecum", "normal-pylorus", "normal-z-line",
    "polyps", "ulcerative-colitis",
)  # fmt: skip
LAYOUT = ClassFolders("kvasir-v2", "Kvasir-v2", WHERE, CLASSES)


class KvasirV2Settings(ImageFileSettings):
    source: Literal["kvasir-v2"]
    path: AbsolutePath | None = None  # None: kvasir-dataset-v2.zip, or that folder, in CROSSWARD_DATA
    split: Literal["paper", "none"] = "paper"  # "none" leaves it to [partition]
    split_seed: Seed = 0

    def load(self) -> Loaded:
        collection, left_out = LAYOUT.read(self.path or locate(data_root()), **self.decoding())
        if self.split == "paper":
            splits = split_by_class(
                collection.targets.numpy(),
                collection.hashes,
                collection.ids,
                num_classes=len(CLASSES),
                seed=self.split_seed,
                title="Kvasir-v2",
            )
            collection = replace(collection, splits=splits)
        return collection, [str(file) for file in left_out]


def locate(root: Path | None) -> Path:
    """Where the set is in `root`, the folder of all datasets."""
    return find_dataset(root, NAMES, title="Kvasir-v2", where=WHERE)
