"""A MedMNIST set by name, from data.root or CROSSWARD_DATA.

Yang et al., Scientific Data 10, 2023, https://medmnist.com: the single-label sets of two dimensions.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Literal

from crossward.data.collection import Collection
from crossward.data.sources import npz
from crossward.data.sources.settings import Loaded, SourceSettings
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


class MedMnistSettings(SourceSettings):
    source: Literal["medmnist"]
    name: str
    root: AbsolutePath | None = None  # None: the folder in CROSSWARD_DATA
    prepare: tuple[str, ...] = ()
    size: Count = 28

    def load(self) -> Loaded:
        root = self.root or data_root()
        if root is None:
            raise ConfigError(
                "data.root is not set", hint="Set it, or CROSSWARD_DATA, to the folder of the .npz files."
            )
        return read(self.name, root=root, size=self.size, prepare=self.prepare), []


def read(name: str, *, root: Path, size: int, prepare: tuple[str, ...] = ()) -> Collection:
    """A set of MedMNIST by name, from root/<name>_<size>.npz, else from root/<name>.npz resized."""
    if name not in CLASSES:
        nearest = difflib.get_close_matches(name.lower(), CLASSES, n=1, cutoff=0)[0]
        raise ConfigError(
            f'"{name}" is not a single-label set of MedMNIST in two dimensions; the nearest is "{nearest}".',
            hint=f"Known: {', '.join(CLASSES)}.",
        )
    files = [root / f"{name}_{size}.npz", root / f"{name}.npz"]
    for file in files:
        if file.is_file():
            return replace(npz.read(file, size=size, prepare=prepare, classes=CLASSES[name]), name=name)
    raise DataError(
        f"The arrays of {name} are not in {root}.",
        hint=f"Download {name}.npz (28 pixels) or {name}_{size}.npz, where MedMNIST offers that size, "
        f"from https://medmnist.com and put it at {files[1]} or {files[0]}.",
    )
