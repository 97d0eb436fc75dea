"""What paths in folders say: classes in file names, folders of hospitals, splits below classes, two spellings of one
class, and masks that lie beside their images."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crossward.data.sources import folder
from crossward.errors import ConfigError, DataError


@pytest.fixture
def read(cache):
    return partial(folder.read, size=8, channels=1, cache=cache / "images")


def draw(root: Path, *names: str, value: int = 0) -> None:
    """A different picture for each name."""
    for number, name in enumerate(names):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng([number, len(name), value]).integers(0, 255, (8, 8)).astype(np.uint8)
        Image.fromarray(pixels).save(file)


def labels(collection) -> dict[str, int]:
    return dict(Counter(collection.classes[number] for number in collection.targets.tolist()))


def test_the_class_is_a_part_of_the_file_name(tmp_path, read):
    draw(tmp_path, "train/CNV-12-1.png", "train/DRUSEN-12-1.png", "test/CNV-3-1.png", "test/DRUSEN-3-2.png")
    collection, left_out = read(tmp_path, label=r"([A-Z]+)-\d", group=r"-(\d+)-")
    assert labels(collection) == {"CNV": 2, "DRUSEN": 2}
    assert collection.splits == ("test", "test", "train", "train")
    assert collection.groups == ("3", "3", "12", "12")
    assert left_out == []


def test_a_file_name_without_a_class_is_a_problem(tmp_path, read):
    draw(tmp_path, "a-1.png", "b-1.png", "17.png")
    with pytest.raises(DataError) as refusal:
        read(tmp_path, label=r"([a-z])-")
    assert refusal.value.details == ("17.png: the label pattern ([a-z])- finds no class in its path",)
    with pytest.raises(ConfigError, match="names no class"):
        read(tmp_path, label="[a-z]")
    with pytest.raises(ConfigError, match="label is not a regular expression"):
        read(tmp_path, label="(")


@pytest.mark.parametrize(
    "order", ["{site}/{split}/{label}", "{split}/{site}/{label}", "set/{site}/img/{split}/{label}"]
)
def test_folders_of_hospitals(tmp_path, read, order):
    kinds = [(site, split, label) for site in ("Graz", "Linz") for split in ("train", "test") for label in "ab"]
    draw(tmp_path, *(f"{order.format(site=s, split=p, label=k)}/1.png" for s, p, k in kinds))
    collection, _ = read(tmp_path, site="folder")
    assert Counter(zip(collection.sites, collection.splits, strict=True)) == Counter(
        {("Graz", "train"): 2, ("Graz", "test"): 2, ("Linz", "train"): 2, ("Linz", "test"): 2}
    )
    assert labels(collection) == {"a": 4, "b": 4}


def test_bad_files_are_counted_for_each_hospital(tmp_path, read):
    draw(tmp_path, *(f"{site}/{label}/{n}.png" for site in ("Graz", "Linz") for label in "ab" for n in range(3)))
    (tmp_path / "Linz/a/0.png").write_bytes(b"")
    (tmp_path / "Linz/b/0.png").write_bytes(b"nothing")
    (tmp_path / "Graz/b/0.png").write_bytes(b"")
    _, left_out = read(tmp_path, site="folder", bad_files="quarantine")
    assert [(str(bad).split(": ")[0], bad.site) for bad in left_out] == [
        ("Graz/b/0.png", "Graz"),
        ("Linz/a/0.png", "Linz"),
        ("Linz/b/0.png", "Linz"),
    ]
    assert str(left_out[0]) == "Graz/b/0.png: is empty (0 bytes) (site Graz)"
    with pytest.raises(DataError, match=r"3 problems \(Graz 1, Linz 2\)"):
        read(tmp_path, site="folder")


def test_splits_below_classes(tmp_path, read):
    draw(tmp_path, *(f"{label}/{split}/{n}.png" for label in "ab" for split in ("train", "Test") for n in range(2)))
    collection, _ = read(tmp_path)
    assert labels(collection) == {"a": 4, "b": 4}
    assert Counter(collection.splits) == {"train": 4, "test": 4}


def test_folders_below_classes_that_are_one_split_are_no_split(tmp_path, read):
    draw(tmp_path, "a/test/1.png", "a/test/2.png", "b/test/1.png")
    assert read(tmp_path)[0].splits is None


def test_classes_in_two_spellings_are_refused_with_the_setting_that_joins_them(tmp_path, read):
    draw(tmp_path, "benign/1.png", "benign/2.png", "Benign /3.png", "malignant/4.png")
    with pytest.raises(DataError) as refusal:
        read(tmp_path)
    (line,) = refusal.value.details
    assert line == (
        'the class "Benign " (1 images) looks like "benign" (2 images): set rename = { "Benign " = "benign" }, or name '
        "both in classes"
    )
    joined, _ = read(tmp_path, rename={"Benign ": "benign"})
    assert labels(joined) == {"benign": 3, "malignant": 1}
    apart, _ = read(tmp_path, classes=("benign", "Benign ", "malignant"))
    assert labels(apart) == {"benign": 2, "Benign ": 1, "malignant": 1}


def test_an_accent_that_is_stored_in_two_ways_is_a_spelling(tmp_path, read):
    draw(tmp_path, "l\u00e9sion/1.png", "le\u0301sion/2.png", "sain/3.png")
    with pytest.raises(DataError, match="one problem"):
        read(tmp_path)


def test_a_class_to_rename_that_is_not_there(tmp_path, read):
    draw(tmp_path, "benign/1.png", "malignant/2.png")
    with pytest.raises(ConfigError) as refusal:
        read(tmp_path, rename={"Benin": "benign"})
    assert "benign" in refusal.value.details[0]


def test_masks_beside_images_are_for_segmentation_or_ignored(tmp_path, read):
    names = [f"{label}/{label} ({n})" for label in ("benign", "malignant") for n in range(1, 4)]
    draw(tmp_path, *(f"{name}.png" for name in names))
    mask = Image.fromarray(np.eye(8, dtype=np.uint8) * 255)
    for name in names:
        mask.save(tmp_path / f"{name}_mask.png")
    second = Image.fromarray(np.eye(8, dtype=np.uint8)[::-1] * 255)
    second.save(tmp_path / "benign/benign (1)_mask_1.png")
    collection, left_out = read(tmp_path)
    assert (collection.task, len(collection), left_out) == ("segmentation", 6, [])
    both = np.maximum(np.eye(8), np.eye(8)[::-1]).astype(int)
    assert [target.tolist() for target in collection.targets[:2]] == [both.tolist(), np.eye(8).astype(int).tolist()]
    plain, left_out = read(tmp_path, masks="ignore")
    assert (labels(plain), left_out) == ({"benign": 3, "malignant": 3}, [])


def test_a_second_mask_that_cannot_be_read_or_changes_is_noticed(tmp_path, read):
    draw(tmp_path, "images/1.png", "images/2.png")
    mask = Image.fromarray(np.eye(8, dtype=np.uint8) * 255)
    for name in ("1", "2"):
        for side in ("left", "right"):
            (tmp_path / "masks" / side).mkdir(parents=True, exist_ok=True)
            mask.save(tmp_path / "masks" / side / f"{name}.png")
    for side in ("left", "right"):  # ManualMask/leftMask of the Montgomery set
        (tmp_path / "masks" / side).rename(tmp_path / "masks" / f"{side}Mask")
    (tmp_path / "images").rename(tmp_path / "CXR_png")
    (tmp_path / "masks").rename(tmp_path / "ManualMask")
    first, _ = read(tmp_path)
    assert (first.task, len(first)) == ("segmentation", 2)
    Image.fromarray(np.full((8, 8), 255, np.uint8)).save(tmp_path / "ManualMask/rightMask/2.png")
    again, _ = read(tmp_path)
    assert again.targets.flatten(1).sum(1).tolist() == [8, 64]
    (tmp_path / "ManualMask/rightMask/1.png").write_bytes(b"no picture")
    _, [bad] = read(tmp_path, bad_files="quarantine")
    assert str(bad).startswith("CXR_png/1.png: mask ManualMask/rightMask/1.png: ")


def test_a_few_names_like_masks_make_no_segmentation(tmp_path, read):
    draw(tmp_path, "a/1.png", "a/1_mask.png", "a/2.png", "a/3.png", "b/4.png")
    assert read(tmp_path)[0].task == "classification"


def test_a_folder_of_masks_beside_one_of_any_name(tmp_path, read):
    draw(tmp_path, *(f"CXR/{n}.png" for n in range(3)))
    for number in range(3):
        (tmp_path / "lung_masks").mkdir(exist_ok=True)
        Image.fromarray(np.eye(8, dtype=np.uint8) * 255).save(tmp_path / f"lung_masks/{number}_mask.png")
    collection, left_out = read(tmp_path)
    assert (collection.task, len(collection), left_out) == ("segmentation", 3, [])


def test_a_class_that_is_called_after_masks_is_a_class(tmp_path, read):
    draw(tmp_path, "with_mask/1.png", "with_mask/2.png", "without_mask/3.png", "without_mask/4.png")
    collection, _ = read(tmp_path)
    assert labels(collection) == {"with_mask": 2, "without_mask": 2}
