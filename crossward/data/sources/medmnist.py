"""A MedMNIST set by name, from data.root or CROSSWARD_DATA.

Yang et al., Scientific Data 10, 2023, https://medmnist.com: the twelve sets of two dimensions, in 28, 64, 128 and 224
pixels. ChestMNIST has several labels for each image.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Literal

from crossward.data.collection import Collection
from crossward.data.sources import npz
from crossward.data.sources.settings import Loaded, Operations, SourceSettings
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath, Count
from crossward.user_folders import data_root

ORGANS = (
    "bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left", "lung-right",
    "pancreas", "spleen",
)  # fmt: skip
CLASSES = {  # with the names of MedMNIST's info.py, some of them put shorter
    "bloodmnist": (
        "basophil", "eosinophil", "erythroblast", "immature granulocyte", "lymphocyte", "monocyte", "neutrophil",
        "platelet",
    ),
    "breastmnist": ("malignant", "normal or benign"),
    "chestmnist": (
        "atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax",
        "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia",
    ),
    "dermamnist": (
        "actinic keratoses and intraepithelial carcinoma", "basal cell carcinoma", "benign keratosis-like lesions",
        "dermatofibroma", "melanoma", "melanocytic nevi", "vascular lesions",
    ),
    "octmnist": ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    "organamnist": ORGANS,
    "organcmnist": ORGANS,
    "organsmnist": ORGANS,
    "pathmnist": (
        "adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
        "cancer-associated stroma", "colorectal adenocarcinoma epithelium",
    ),
    "pneumoniamnist": ("normal", "pneumonia"),
    "retinamnist": (
        "no diabetic retinopathy", "mild nonproliferative diabetic retinopathy",
        "moderate nonproliferative diabetic retinopathy", "severe nonproliferative diabetic retinopathy",
        "proliferative diabetic retinopathy",
    ),
    "tissuemnist": (
        "collecting duct or connecting tubule", "distal convoluted tubule", "glomerular endothelial cells",
        "interstitial endothelial cells", "leukocytes", "podocytes", "proximal tubule segments", "thick ascending limb",
    ),
}  # fmt: skip
SIZES = (28, 64, 128, 224)
MULTI_LABEL = ("chestmnist",)


class MedMnistSettings(SourceSettings):
    source: Literal["medmnist"]
    name: str
    root: AbsolutePath | None = None  # None: the folder in CROSSWARD_DATA
    prepare: Operations = ()
    size: Count = 28

    def load(self) -> Loaded:
        root = self.root or data_root()
        if root is None:
            raise ConfigError(
                "data.root is not set", hint="Set it, or CROSSWARD_DATA, to the folder of the .npz files."
            )
        return read(self.name, root=root, size=self.size, prepare=self.prepare), []


def read(name: str, *, root: Path, size: int, prepare: tuple[str, ...] = ()) -> Collection:
    """A set of MedMNIST by name, from the file of the size, else from the next larger one, else from the largest."""
    classes = classes_of(name)
    exact = root / f"{name}_{size}.npz"
    files = files_by_size(name, root)
    larger = [file for side, file in files.items() if side >= size]
    candidates = [*([exact] if exact.is_file() else []), *larger, *reversed(files.values())]
    if candidates:
        return replace(npz.read(candidates[0], size=size, prepare=prepare, classes=classes), name=name)
    usual = possible_files(name, root)[SIZES[0]]
    raise DataError(
        f"The arrays of {name} are not in {root}.",
        hint=f"Download {name}.npz (28 pixels) or {name}_{size}.npz, where MedMNIST offers that size, "
        f"from https://medmnist.com and put it at {usual} or {exact}.",
    )


def classes_of(name: str) -> tuple[str, ...]:
    """The classes of a set by name."""
    if name not in CLASSES:
        nearest = difflib.get_close_matches(name.lower(), CLASSES, n=1, cutoff=0)[0]
        raise ConfigError(
            f'"{name}" is not a set of MedMNIST in two dimensions; the nearest is "{nearest}".',
            hint=f"Known: {', '.join(CLASSES)}.",
        )
    return CLASSES[name]


def possible_files(name: str, root: Path) -> dict[int, Path]:
    """size -> what the file of this size is called in `root`."""
    return {size: root / (f"{name}.npz" if size == SIZES[0] else f"{name}_{size}.npz") for size in SIZES}


def files_by_size(name: str, root: Path) -> dict[int, Path]:
    """size -> its file, of those that are there, the smallest first."""
    return {size: file for size, file in possible_files(name, root).items() if file.is_file()}
