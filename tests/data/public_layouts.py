"""Miniatures of public datasets in their official layouts, with the faults that these have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDE = 32


def picture(seed: int, label: int = 0, side: int = SIDE) -> Image.Image:
    """A grey picture of its own: bright in one half, which tells its class, over noise of its own."""
    rng = np.random.RandomState(seed)
    coarse = rng.randint(20, 160, (6, 6)).astype(np.uint8)
    pixels = np.array(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)).astype(int)
    pixels[:, side // 2 * label : side // 2 * (label + 1)] += 60
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def save(image: Image.Image, file: Path, **options: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file, **options)


def chest_xray(root: Path) -> Path:
    """Folders train, val and test of two classes; a picture twice in training, and one in training and in testing."""
    seed = 0
    for split, count in (("train", 12), ("val", 3), ("test", 6)):
        for label, name in enumerate(("NORMAL", "PNEUMONIA")):
            for number in range(count):
                seed += 1
                save(picture(seed, label), root / "chest_xray" / split / name / f"IM-{seed:04d}-{number:04d}.jpeg")
    save(picture(1, 0), root / "chest_xray/train/NORMAL/copy.jpeg")
    save(picture(2, 0), root / "chest_xray/test/NORMAL/trained.jpeg")
    (root / "chest_xray/train/.DS_Store").write_bytes(b"\0")
    save(picture(999), root / "__MACOSX/chest_xray/train/NORMAL/._IM-0001-0000.jpeg")
    return root


def kvasir_seg(root: Path) -> Path:
    """Folders train, validation and test, each with images and masks."""
    seed = 0
    for split, count in (("train", 12), ("validation", 4), ("test", 5)):
        for _ in range(count):
            seed += 1
            mask = Image.new("L", (SIDE, SIDE))
            left = seed % 12
            ImageDraw.Draw(mask).ellipse((left, 6, left + 14, 22), fill=255)
            image = Image.composite(Image.new("L", (SIDE, SIDE), 240), picture(seed), mask).convert("RGB")
            save(image, root / split / "images" / f"cju{seed:03d}.jpg", quality=95)
            save(mask, root / split / "masks" / f"cju{seed:03d}.jpg", quality=95)
    return root


def breast_mnist(root: Path) -> Path:
    """The six arrays of BreastMNIST's layout: an image in train and test with two labels, and one with the same."""
    root.mkdir(parents=True, exist_ok=True)
    arrays = {}
    seed = 0
    for split, count in (("train", 40), ("val", 8), ("test", 14)):
        labels = np.arange(count) % 2
        images = [np.array(picture(seed + number, int(label), 28)) for number, label in enumerate(labels)]
        seed += count
        arrays[f"{split}_images"] = np.stack(images)
        arrays[f"{split}_labels"] = labels[:, None].astype(np.uint8)
    arrays["test_images"][1] = arrays["train_images"][0]  # label 1 in test, 0 in train
    arrays["test_images"][2] = arrays["train_images"][2]  # label 0 in both
    np.savez(root / "breastmnist.npz", **arrays)
    return root / "breastmnist.npz"


def mixed_extensions(root: Path) -> Path:
    """Folders of classes whose PNG files are named .jpg."""
    for label, name in enumerate(("benign", "malignant")):
        for number in range(14):
            file = root / name / f"{number}.jpg"
            save(picture(100 * label + number, label), file, format="PNG" if number % 2 else "JPEG")
    return root


def other_columns(root: Path) -> Path:
    """A table with the columns of a hospital's export, in latin-1, with semicolons; and paths of Windows."""
    lines = ["filename;diagnosis;patient_id;hospital;age"]
    for number in range(40):
        label, hospital, patient = number % 2, ("Köln", "Graz")[number // 20], number // 2
        save(picture(number, label), root / "pictures" / f"{number}.png")
        lines.append(f"pictures\\{number}.png;{('benign', 'malignant')[label]};P{patient:03d};{hospital};{40 + number}")
    (root / "export.csv").write_bytes("\r\n".join(lines).encode("latin-1"))
    return root / "export.csv"


LAYOUTS = {
    "splits": chest_xray,
    "segmentation": kvasir_seg,
    "duplicates": breast_mnist,
    "extensions": mixed_extensions,
    "columns": other_columns,
}
