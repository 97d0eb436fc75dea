"""Miniatures of public sets of images with masks, and of folders that are easily taken for classes."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw
from public_layouts import picture, save
from wild_layouts import masked


def montgomery(root: Path) -> Path:
    """Radiographs with a mask for each lung, below a folder of their own; the class is the last digit of the name."""
    top = root / "MontgomerySet"
    for number in range(16):
        name = f"MCUCXR_{number:04d}_{number % 2}"
        save(picture(number, number % 2), top / "CXR_png" / f"{name}.png")
        for side, left in (("leftMask", 2), ("rightMask", 18)):
            mask = Image.new("1", (32, 32))
            ImageDraw.Draw(mask).rectangle((left, 5, left + 10, 25), fill=1)
            save(mask, top / "ManualMask" / side / f"{name}.png")
        readings = top / "ClinicalReadings" / f"{name}.txt"
        readings.parent.mkdir(exist_ok=True)
        readings.write_text("Patient's Sex: F\nnormal")
    return root


def shenzhen(root: Path) -> Path:
    """The same without masks."""
    for number in range(16):
        save(picture(number, number % 2), root / "CXR_png" / f"CHNCXR_{number:04d}_{number % 2}.png")
    return root


def isic_2018_masks(root: Path) -> Path:
    """Folders that are called after what is in them, masks with a suffix."""
    for number in range(16):
        image, mask = masked(number)
        split = "Training" if number < 12 else "Test"
        save(image, root / f"ISIC2018_Task1-2_{split}_Input" / f"ISIC_{number:07d}.jpg")
        save(mask, root / f"ISIC2018_Task1_{split}_GroundTruth" / f"ISIC_{number:07d}_segmentation.png")
    (root / "ISIC2018_Task1-2_Training_Input/LICENSE.txt").write_text("CC-0")
    return root


def nuclei(root: Path) -> Path:
    """The Data Science Bowl: a folder for each image, with a mask for each of its nuclei."""
    for number in range(12):
        image, _ = masked(number)
        case = root / "stage1_train" / f"{number * 7919:016x}"
        save(image, case / "images" / f"{case.name}.png")
        for place in range(3):
            mask = Image.new("L", image.size)
            ImageDraw.Draw(mask).ellipse((12 * place, 5, 12 * place + 8, 15), fill=255)
            save(mask, case / "masks" / f"{100 * number + place:016x}.png")
    return root


def covid_radiography(root: Path) -> Path:
    """Classes with images and masks in each, the masks of another size than the images."""
    for label, name in enumerate(("COVID", "Normal", "Viral Pneumonia")):
        for number in range(8):
            image, mask = masked(30 * label + number)
            top = root / "COVID-19_Radiography_Dataset" / name
            save(image, top / "images" / f"{name}-{number + 1}.png")
            save(mask.resize((25, 25)), top / "masks" / f"{name}-{number + 1}.png")
    (root / "COVID-19_Radiography_Dataset/README.md.txt").write_text("read")
    return root


def slices_of_patients(root: Path) -> Path:
    """The gliomas of TCGA: a folder for each patient, each slice beside its mask."""
    for number in range(6):
        case = f"TCGA_CS_{4941 + number}_19960909"
        for place in range(1, 4):
            image, mask = masked(5 * number + place)
            save(image, root / "kaggle_3m" / case / f"{case}_{place}.tif")
            save(mask, root / "kaggle_3m" / case / f"{case}_{place}_mask.tif")
    (root / "kaggle_3m/data.csv").write_text("Patient,death01\nTCGA_CS_4941,1\n")
    return root


def colon_and_lung(root: Path) -> Path:
    """LC25000: folders of classes in folders of organs, files named after their class."""
    seed = 0
    for organ, names in (("lung_image_sets", ("lung_aca", "lung_n")), ("colon_image_sets", ("colon_aca", "colon_n"))):
        for label, name in enumerate(names):
            for number in range(10):
                seed += 1
                file = f"{name.replace('_', '')}{number + 1}.jpeg"
                save(picture(seed, label), root / "lung_colon_image_set" / organ / name / file)
    return root


MASKS = {
    "montgomery": montgomery,
    "shenzhen": shenzhen,
    "isic 2018 masks": isic_2018_masks,
    "nuclei": nuclei,
    "covid radiography": covid_radiography,
    "slices of patients": slices_of_patients,
    "colon and lung": colon_and_lung,
}
