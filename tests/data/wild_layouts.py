"""Miniatures of image folders as people really have them: what Kaggle, hospitals' exports and papers' supplements look
like once they are unpacked. Each builder fills a folder and gives back the path that a person would name."""

from __future__ import annotations

import unicodedata
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from public_layouts import picture, save


def chest_xray_of_kaggle(root: Path) -> Path:
    """The set of guangzhou children: everything a second time in a folder of its own name, colours in some files, names
    that tell the patient, and a validation set of almost nothing."""
    seed = 0
    for split, count in (("train", 14), ("val", 2), ("test", 6)):
        for label, name in enumerate(("NORMAL", "PNEUMONIA")):
            for number in range(count):
                seed += 1
                stem = f"person{seed // 2}_bacteria_{number}" if label else f"NORMAL2-IM-{seed:04d}-0001"
                image = picture(seed, label, 40 + seed % 7)
                for top in ("chest_xray", "chest_xray/chest_xray"):
                    file = root / top / split / name / f"{stem}.jpeg"
                    save(image.convert("RGB") if seed % 9 == 0 else image, file)
    return root


def breast_mnist_of_zenodo(root: Path) -> Path:
    """breastmnist_64.npz: compressed, labels (N, 1), copies within a split and over splits, one with two labels."""
    root.mkdir(parents=True)
    arrays = {}
    for place, (split, count) in enumerate((("train", 60), ("val", 8), ("test", 16))):
        labels = (np.arange(count) % 3 > 0).astype(np.uint8)
        images = [np.array(picture(1000 * place + n, int(one), 64)) for n, one in enumerate(labels)]
        arrays |= {f"{split}_images": np.stack(images), f"{split}_labels": labels[:, None]}
    arrays["test_images"][1] = arrays["train_images"][0]
    arrays["test_images"][4] = arrays["train_images"][5]
    arrays["val_images"][2] = arrays["train_images"][7]
    arrays["train_images"][8] = arrays["train_images"][10]
    np.savez_compressed(root / "breastmnist_64.npz", **arrays)
    return root / "breastmnist_64.npz"


def masked(seed: int, side: int = 48) -> tuple[Image.Image, Image.Image]:
    """A picture and the mask of the disc in it."""
    mask = Image.new("L", (side, side + seed % 5))
    left = seed % 20
    ImageDraw.Draw(mask).ellipse((left, 8, left + 18, 28), fill=255)
    ground = picture(seed, 0, side).resize(mask.size)
    return Image.composite(Image.new("L", mask.size, 235), ground, mask).convert("RGB"), mask


def kvasir_seg_in_splits(root: Path) -> Path:
    """train, validation and test with images and masks as .jpg; boxes and a licence beside them."""
    seed = 0
    for split, count in (("train", 16), ("validation", 4), ("test", 5)):
        for _ in range(count):
            seed += 1
            image, mask = masked(seed)
            save(image, root / "Kvasir-SEG" / split / "images" / f"cju0qkwl{seed:04d}.jpg")
            save(mask.convert("RGB"), root / "Kvasir-SEG" / split / "masks" / f"cju0qkwl{seed:04d}.jpg")
    (root / "Kvasir-SEG/kavsir_bboxes.json").write_text("{}")
    (root / "Kvasir-SEG/README.txt").write_text("for research")
    return root / "Kvasir-SEG"


def masks_below_splits(root: Path) -> Path:
    """images/train beside masks/train, where masks have a suffix and are PNG."""
    seed = 0
    for split, count in (("train", 12), ("val", 3), ("test", 4)):
        for _ in range(count):
            seed += 1
            image, mask = masked(seed)
            save(image, root / "Images" / split / f"case {seed}.JPG", format="JPEG")
            save(mask, root / "Masks" / split / f"case {seed}_mask.png")
    return root


def masks_beside_images(root: Path) -> Path:
    """BUSI: folders of classes, in each the images with their masks beside them, some with two."""
    for label, name in enumerate(("benign", "malignant")):
        for number in range(1, 11):
            image, mask = masked(20 * label + number)
            save(image, root / "Dataset_BUSI_with_GT" / name / f"{name} ({number}).png")
            save(mask, root / "Dataset_BUSI_with_GT" / name / f"{name} ({number})_mask.png")
    save(masked(3)[1], root / "Dataset_BUSI_with_GT/benign/benign (3)_mask_1.png")
    return root


def pictures_named_otherwise(root: Path) -> Path:
    """PNG that are called .jpg, JPEG that are called .png, extensions in capitals, and one file that is a web page."""
    for label, name in enumerate(("akiec", "nevus")):
        for number in range(15):
            kind, suffix = (("PNG", ".jpg"), ("JPEG", ".PNG"), ("TIFF", ".JPEG"))[number % 3]
            save(picture(50 * label + number, label), root / name / f"img{number}{suffix}", format=kind)
    (root / "nevus/404.jpg").write_bytes(b"<html><body>Not found</body></html>")
    return root


def table_of_a_registry(root: Path) -> Path:
    """A CSV with a BOM and semicolons; its file names stand without their folder; several images of a patient."""
    lines = ["patient_id;filename;diagnosis;age;sex"]
    for number in range(36):
        label = number // 3 % 2
        save(picture(number, label), root / "bilder" / "2021" / f"scan {number:03d}.png")
        lines.append(f"{4000 + number // 3};scan {number:03d}.png;{('Gesund', 'Krank')[label]};{30 + number};m")
    (root / "registry.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    return root


def tables_per_split(root: Path) -> Path:
    """train.csv, val.csv and test.csv beside a folder of images."""
    seed = 0
    for split, count in (("train", 20), ("val", 6), ("test", 8)):
        lines = ["image,class"]
        for number in range(count):
            seed += 1
            save(picture(seed, number % 2), root / "images" / f"{seed}.jpg")
            lines.append(f"{seed}.jpg,{('glaucoma', 'healthy')[number % 2]}")
        (root / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return root


def table_of_names_without_extension(root: Path) -> Path:
    """HAM10000 as Kaggle has it: two folders of images, a table of ids; names of lesions."""
    lines = ["lesion_id,image_id,dx,dx_type,age,sex,localization"]
    for number in range(30):
        label = number // 2 % 3
        part = 1 + number % 2
        save(picture(number, label % 2), root / f"HAM10000_images_part_{part}" / f"ISIC_{24300 + number}.jpg")
        lines.append(f"HAM_{number // 2:07d},ISIC_{24300 + number},{('nv', 'mel', 'bkl')[label]},histo,50,male,back")
    (root / "HAM10000_metadata.csv").write_text("\n".join(lines))
    return root


def one_column_per_class(root: Path) -> Path:
    """ISIC 2019: a table with a column of 0.0 and 1.0 for each class."""
    lines = ["image,MEL,NV,BCC,UNK"]
    for number in range(30):
        cells = ["1.0" if number % 3 == place else "0.0" for place in range(3)]
        save(picture(number, number % 2), root / "ISIC_2019_Training_Input" / f"ISIC_{number:07d}.jpg")
        lines.append(f"ISIC_{number:07d},{','.join(cells)},0.0")
    (root / "ISIC_2019_Training_GroundTruth.csv").write_text("\n".join(lines))
    return root


def classes_in_file_names(root: Path) -> Path:
    """One folder of files; their names begin with their class."""
    for label, name in enumerate(("CNV", "DRUSEN", "NORMAL")):
        for number in range(9):
            save(picture(30 * label + number, label % 2), root / f"{name}-{1000 + number // 2}-{number}.jpeg")
    return root


def classes_in_words(root: Path) -> Path:
    """Classes with spaces, accents and signs, one of them as macOS writes accents."""
    names = ("Lésion bénigne", "COVID-19 & pneumonia", unicodedata.normalize("NFD", "Grünes Gewebe"), "100% sain")
    for label, name in enumerate(names):
        for number in range(10):
            save(picture(20 * label + number, label % 2), root / "données (v2)" / name / f"n° {number}.png")
    return root / "données (v2)"


def two_spellings(root: Path) -> Path:
    """Two people sorted the images: benign and Benign, malignant and malignant_."""
    names: Sequence[tuple[str, int]] = (("benign", 12), ("Benign", 6), ("malignant", 12), ("Malignant ", 5))
    seed = 0
    for place, (name, count) in enumerate(names):
        for number in range(count):
            seed += 1
            save(picture(seed, place // 2), root / name / f"{place}-{number}.png")
    return root


def folders_of_hospitals(root: Path) -> Path:
    """A folder for each hospital, in each the same classes."""
    seed = 0
    for hospital in ("Graz", "Linz", "Wien"):
        for label, name in enumerate(("benign", "malignant")):
            for number in range(8):
                seed += 1
                save(picture(seed, label), root / hospital / name / f"{number}.png")
    (root / "Linz/benign/broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    return root


def zipped_classes(root: Path) -> Path:
    """An archive of class folders with splits."""
    folder = chest_xray_of_kaggle(root / "unpacked")
    with zipfile.ZipFile(root / "archive.zip", "w") as archive:
        for file in sorted((folder / "chest_xray").rglob("*.jpeg")):
            if file.parts.count("chest_xray") == 1:
                archive.write(file, file.relative_to(folder))
    return root / "archive.zip"


def zipped_table(root: Path) -> Path:
    """An archive that holds images and the table of their labels."""
    folder = table_of_names_without_extension(root / "unpacked")
    with zipfile.ZipFile(root / "archive.zip", "w") as archive:
        for file in sorted(folder.rglob("*.*")):
            archive.write(file, Path("ham") / file.relative_to(folder))
    return root / "archive.zip"


def twelve_bits(root: Path) -> Path:
    """PNG of 16 bits in which a detector of 12 bits left its values, without a word of it."""
    for label, name in enumerate(("fracture", "intact")):
        for number in range(10):
            values = np.array(picture(20 * label + number, label)).astype(np.uint16) * 16
            save(Image.fromarray(values), root / name / f"{number}.png")
    return root


def folders_of_patients(root: Path) -> Path:
    """The breast histology of Kaggle: a folder for each patient, in each the classes 0 and 1."""
    for patient in range(24):
        for label in (0, 1):
            for number in range(2):
                file = f"{10250 + patient}_idx5_x{number}_y1_class{label}.png"
                save(picture(100 * patient + 10 * label + number, label), root / f"{10250 + patient}/{label}/{file}")
    return root


def classes_before_splits(root: Path) -> Path:
    """Folders of classes, in each train and test."""
    seed = 0
    for label, name in enumerate(("glioma", "no tumour")):
        for split, count in (("Training", 12), ("Testing", 6)):
            for _ in range(count):
                seed += 1
                save(picture(seed, label), root / name / split / f"{seed}.jpg")
    return root


def studies_named_after_classes(root: Path) -> Path:
    """MURA: body parts, patients and studies, which are named after the class; lists without a header."""
    for part, count in (("train", 16), ("valid", 6)):
        names = []
        for number in range(count):
            region, result = ("XR_ELBOW", "XR_WRIST")[number % 4 // 2], ("negative", "positive")[number % 2]
            patient = number + (0 if part == "train" else 900)
            study = f"{part}/{region}/patient{patient:05d}/study1_{result}"
            for view in (1, 2):
                save(picture(100 * patient + view, number % 2), root / f"MURA-v1.1/{study}/image{view}.png")
                names.append(f"MURA-v1.1/{study}/image{view}.png")
        (root / f"MURA-v1.1/{part}_image_paths.csv").write_text("\n".join(names))
    return root


PICTURES = {
    "studies named after classes": studies_named_after_classes,
    "folders of patients": folders_of_patients,
    "classes before splits": classes_before_splits,
    "chest x-ray of kaggle": chest_xray_of_kaggle,
    "breastmnist of zenodo": breast_mnist_of_zenodo,
    "kvasir-seg in splits": kvasir_seg_in_splits,
    "masks below splits": masks_below_splits,
    "masks beside images": masks_beside_images,
    "pictures named otherwise": pictures_named_otherwise,
    "table of a registry": table_of_a_registry,
    "tables per split": tables_per_split,
    "names without extension": table_of_names_without_extension,
    "one column per class": one_column_per_class,
    "classes in file names": classes_in_file_names,
    "classes in words": classes_in_words,
    "two spellings": two_spellings,
    "folders of hospitals": folders_of_hospitals,
    "zipped classes": zipped_classes,
    "zipped table": zipped_table,
    "twelve bits": twelve_bits,
}
