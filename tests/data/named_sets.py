"""Miniatures of public datasets in their official layouts."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from crossward.data.sources import isic2019, kvasir_v2, oct_c8, rsna_ich

HEADER = ("image", *isic2019.CLASSES, "UNK")


def picture(file: Path, value: int) -> None:
    """A picture that differs from those of other values also after JPEG."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(value).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    Image.fromarray(pixels).resize((16, 16), Image.Resampling.NEAREST).save(file)


def table(file: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return file


def lay_oct_c8(root: Path, counts: Sequence[int] = (3, 1, 1)) -> Path:
    """RetinalOCT_Dataset as Kaggle unpacks it: one folder within another."""
    home = root / "RetinalOCT_Dataset" / "RetinalOCT_Dataset"
    value = 0
    for side, count in zip(("train", "val", "test"), counts, strict=True):
        for name in oct_c8.CLASSES:
            for n in range(count):
                picture(home / side / name / f"{name.lower()}_{side}_{1000 + n}.jpg", value)
                value += 1
    return root / "RetinalOCT_Dataset"


def lay_kvasir_v2(root: Path, count: int = 10) -> Path:
    home = root / "kvasir-dataset-v2"
    for number, name in enumerate(kvasir_v2.CLASSES):
        for n in range(count):
            picture(home / name / f"{number:04x}-{n:04x}.jpg", 100 * number + n)
    return home


def lay_isic2019(root: Path, *, test: bool = False) -> Path:
    """Two images of each class; the second image of the first class is of the first one's lesion."""
    home = root / "ISIC2019"
    rows, lesions = [], []
    for number in range(2 * len(isic2019.CLASSES)):
        image = f"ISIC_{number:07d}" + ("_downsampled" if number > 13 else "")
        picture(home / "ISIC_2019_Training_Input" / "ISIC_2019_Training_Input" / f"{image}.jpg", number)
        rows.append([image, *(float(place == number // 2) for place in range(9))])
        lesion = ("BCN_0000000", "BCN_0000000", "HAM_0000002", "MSK4_0000003")[number] if number < 4 else ""
        lesions.append([image, 55.0, "anterior torso", lesion, "female"])
    table(home / isic2019.TRUTH, HEADER, rows)
    table(home / isic2019.METADATA, ["image", "age_approx", "anatom_site_general", "lesion_id", "sex"], lesions)
    if test:
        held = []
        for number, label in enumerate((0, 1, 8)):  # the last is UNK
            image = f"ISIC_01{number:05d}"
            picture(home / "ISIC_2019_Test_Input" / f"{image}.jpg", 500 + number)
            held.append([image, *(float(place == label) for place in range(9)), 1.0, 0.0])
        table(home / isic2019.TEST_TRUTH, [*HEADER, "score_weight", "validation_weight"], held)
    return home


# slice, patient, kinds of bleeding
SLICES = (
    *((f"ID_{place:09x}", f"ID_p{place % 3}", (name,)) for place, name in enumerate(rsna_ich.CLASSES * 2)),
    ("ID_0000000aa", "ID_p3", ("epidural", "subdural")),
    ("ID_0000000bb", "ID_p3", ()),
)


def lay_rsna_ich(root: Path) -> Path:
    """Ten slices with one kind, one with two and one without, in uncompressed DICOM; a row of the table is twice."""
    from dicom_corpus import AXIAL, CT, HU, image, stored, with_pixels

    home = root / "rsna-intracranial-hemorrhage-detection"
    (home / "stage_2_train").mkdir(parents=True)
    rows = []
    for number, (name, patient, kinds) in enumerate(SLICES):
        pixels = np.random.default_rng(number).integers(1000, 1100, (8, 8)).astype(np.uint16)
        place = AXIAL | {"ImagePositionPatient": [0, 0, float(number)], "PatientID": patient, "InstanceNumber": number}
        dataset = with_pixels(image(CT, "CT", **place), pixels, **HU)
        (home / "stage_2_train" / f"{name}.dcm").write_bytes(stored(dataset))
        rows += [(f"{name}_{kind}", int(kind in kinds)) for kind in rsna_ich.CLASSES]
        rows.append((f"{name}_any", int(bool(kinds))))
    table(home / "stage_2_train.csv", ("ID", "Label"), [*rows, rows[0]])
    return home
