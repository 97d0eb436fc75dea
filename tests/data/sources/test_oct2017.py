"""OCT2017 by name: its layout, patients and split, and what is refused."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from pathlib import Path, PurePosixPath

import pytest
import torch
from PIL import Image

from crossward.data.archives import open_files
from crossward.data.federate import federate
from crossward.data.sources import oct2017
from crossward.errors import ConfigError, DataError

torch.set_num_threads(1)
SCANS = (  # patient 7 is found under two classes
    *(f"train/{kind}/{kind}-{patient}-{n}.jpeg" for kind in oct2017.CLASSES for patient in (1, 2, 3) for n in (1, 2)),
    "train/DRUSEN/DRUSEN-7-1.jpeg",
    "train/NORMAL/NORMAL-7-1.jpeg",
    *(f"val/{kind}/{kind}-5-1.jpeg" for kind in oct2017.CLASSES),
    *(f"test/{kind}/{kind}-6-1.jpeg" for kind in oct2017.CLASSES),
)


def lay(top: Path, *scans: str) -> Path:
    for value, path in enumerate(scans):
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 6), 5 * value).save(top / path)
    return top


@pytest.fixture
def tiny(tmp_path) -> Path:
    return lay(tmp_path / oct2017.NAME, *SCANS)


@pytest.fixture
def read(tmp_path):
    return lambda place, **more: oct2017.read(place, cache=tmp_path / "cache", **{"size": 4} | more)


# what is read --------------------------------------------------------------------------------------------------------
def test_classes_patients_and_no_split(tiny, read):
    collection, left_out = read(tiny)
    assert collection.name == "oct2017"
    assert collection.task == "classification"
    assert left_out == []
    assert collection.classes == ("CNV", "DME", "DRUSEN", "NORMAL")
    assert set(collection.ids) == set(SCANS)
    assert collection.images.shape == (34, 4, 4, 1)
    assert collection.images.dtype == torch.uint8
    assert collection.targets.bincount().tolist() == [8, 8, 9, 9]
    assert Counter(collection.groups) == {"1": 8, "2": 8, "3": 8, "5": 4, "6": 4, "7": 2}
    assert collection.sites is None
    assert collection.splits is None
    row = collection.ids.index("train/NORMAL/NORMAL-7-1.jpeg")
    assert collection.groups[row] == "7"
    assert collection.targets[row] == 3
    assert collection.images[row, 0, 0, 0] == 5 * SCANS.index("train/NORMAL/NORMAL-7-1.jpeg")


def test_a_number_under_two_classes_is_on_one_side(tiny, read):
    collection, _ = read(tiny)
    for seed in range(3):
        federation = federate(collection, partition="iid", sites=1, seed=seed)
        sides = [
            {collection.groups[row] for row in getattr(federation.sites[0], part)} for part in ("train", "val", "test")
        ]
        assert sum(map(len, sides)) == len(set().union(*sides)) == 6


def test_the_official_split(tiny, read):
    collection, _ = read(tiny, split="official")
    assert Counter(collection.splits) == {"train": 26, "val": 4, "test": 4}
    federation = federate(collection, partition="group", sites=2)
    tested = {collection.ids[row] for row in federation.server.test.tolist()}
    assert tested == {path for path in SCANS if path.startswith("test/")}


def test_an_official_split_with_a_patient_on_both_sides_is_refused_unless_accepted(tiny, read):
    Image.new("L", (8, 6), 250).save(tiny / "test" / "CNV" / "CNV-2-9.jpeg")
    collection, _ = read(tiny, split="official")
    with pytest.raises(DataError, match="not sound") as error:
        federate(collection, partition="iid", sites=1)
    assert error.value.details == ("group in train and test: 2 (train: site-1; test: server)",)
    federate(collection, partition="iid", sites=1, group_aware=False)


@pytest.mark.parametrize("wrap", ["", "OCT2017 ", "CellData/OCT"])
@pytest.mark.parametrize("zipped", [False, True])
def test_however_it_is_packed(tiny, read, tmp_path, wrap, zipped, zip_folder):
    plain, _ = read(tiny, split="official")
    shutil.copytree(tiny, tmp_path / "top" / wrap, dirs_exist_ok=True)
    (tmp_path / "top" / wrap / "train" / ".DS_Store").write_bytes(b"litter of the official archive")
    top = tmp_path / "top"
    place = zip_folder(top, tmp_path / "packed") if zipped else top
    collection, _ = read(place, split="official")
    for part in ("ids", "hashes", "groups", "splits", "classes"):
        assert getattr(collection, part) == getattr(plain, part)
    assert collection.targets.equal(plain.targets)


@pytest.mark.parametrize("change", [str.lower, str.upper, str.title])
def test_names_in_any_case(read, tiny, tmp_path, change):
    plain, _ = read(tiny, split="official")
    collection, left_out = read(lay(tmp_path / "other", *(change(path) for path in SCANS)), split="official")
    assert collection.classes == plain.classes
    assert collection.groups == plain.groups
    assert collection.splits == plain.splits
    assert left_out == []
    assert collection.targets.equal(plain.targets)
    assert collection.images.equal(plain.images)
    assert [name.casefold() for name in collection.ids] == [name.casefold() for name in plain.ids]
    assert {name.rsplit("/", 1)[0] for name in collection.ids} == {name.rsplit("/", 1)[0] for name in plain.ids}


def test_a_folder_in_two_cases(read, tiny):
    lay(tiny, "Train/cnv/CNV-9-1.jpeg")
    if not (tiny / "train" / "CNV" / "CNV-9-1.jpeg").exists():  # the disk tells them apart
        assert "train/CNV/CNV-9-1.jpeg" in read(tiny)[0].ids
        lay(tiny, "Train/cnv/CNV-1-1.jpeg")
        with pytest.raises(DataError) as error:
            read(tiny)
        assert error.value.details == (
            "there twice: Train/cnv/CNV-1-1.jpeg",
            "there twice: train/CNV/CNV-1-1.jpeg",
        )


def test_options_reach_the_images(tiny, read):
    assert read(tiny, channels=3, size=5, fit="crop")[0].images.shape == (34, 5, 5, 3)
    assert read(tiny, prepare=("brightness:0.2",))[0].images.unique().tolist() == [0, 51]  # one scan is black
    with pytest.raises(ConfigError, match="bad_files"):
        read(tiny, bad_files="ignore")


# what is refused -----------------------------------------------------------------------------------------------------
def test_bad_files_are_named_or_set_aside(tiny, read):
    (tiny / "train" / "CNV" / "CNV-1-1.jpeg").write_bytes(b"")
    with pytest.raises(DataError) as error:
        read(tiny)
    assert error.value.details == ("train/CNV/CNV-1-1.jpeg: is empty (0 bytes)",)
    collection, left_out = read(tiny, bad_files="quarantine")
    assert len(collection) == 33
    assert len(left_out) == 1


def test_whatever_does_not_belong_is_told_before_anything_is_decoded(tiny, read, tmp_path):
    shutil.rmtree(tiny / "train" / "DME")
    shutil.rmtree(tiny / "test" / "DME")
    shutil.rmtree(tiny / "val" / "DME")
    lay(tiny, "train/GLAUCOMA/GLAUCOMA-1-1.jpeg", "train/CNV/DME-1-1.jpeg", "train/CNV/scan.jpeg", "loose.png")
    with pytest.raises(DataError, match="is not laid out as OCT2017") as error:
        read(tiny, bad_files="quarantine")
    assert error.value.details == (
        "missing: DME",
        "not a class of train, val or test: ./ (1 image(s))",
        "not a class of train, val or test: train/GLAUCOMA/ (1 image(s))",
        "train/CNV/DME-1-1.jpeg: is named as DME",
        "train/CNV/scan.jpeg: is not named <class>-<patient>-<n>",
    )
    assert not (tmp_path / "cache").exists()


def test_misnamed_files_are_told_before_anything_is_decoded_or_set_aside(tiny, read, tmp_path):
    plain, _ = read(tiny)
    shutil.rmtree(tmp_path / "cache")
    lay(tiny, "train/CNV/DME-1-1.jpeg", "train/CNV/scan.jpeg", "val/CNV/xCNV-1-1.jpeg")
    with pytest.raises(DataError, match="3 problems") as error:
        read(tiny)
    assert error.value.details == (
        "train/CNV/DME-1-1.jpeg: is named as DME",
        "train/CNV/scan.jpeg: is not named <class>-<patient>-<n>",
        "val/CNV/xCNV-1-1.jpeg: is not named <class>-<patient>-<n>",
    )
    assert "quarantine" in error.value.hint
    assert not (tmp_path / "cache").exists()
    (tiny / "train" / "CNV" / "CNV-1-1.jpeg").write_bytes(b"")
    collection, left_out = read(tiny, bad_files="quarantine")
    assert [str(bad) for bad in left_out] == ["train/CNV/CNV-1-1.jpeg: is empty (0 bytes)", *error.value.details]
    assert set(plain.ids) - set(collection.ids) == {"train/CNV/CNV-1-1.jpeg"}


def test_a_class_whose_files_are_all_misnamed(tiny, read, tmp_path):
    for number, path in enumerate(tiny.rglob("DME-*.jpeg")):
        path.rename(path.with_name(f"{number}.jpeg"))
    with pytest.raises(DataError, match="no image is left of DME"):
        read(tiny, bad_files="quarantine")
    assert not (tmp_path / "cache").exists()


def test_two_sets_and_none(tiny, read, tmp_path):
    shutil.copytree(tiny, tmp_path / "two" / "old")
    shutil.copytree(tiny, tmp_path / "two" / "new")
    with pytest.raises(DataError, match="is not laid out as OCT2017") as error:
        read(tmp_path / "two")
    assert error.value.details == ("splits in: new", "splits in: old")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no image"):
        read(tmp_path / "empty")


def test_no_official_split(tiny, read):
    shutil.rmtree(tiny / "test")
    with pytest.raises(DataError, match="no official split: it holds train, val alone") as error:
        read(tiny, split="official")
    assert 'data.split = "none"' in error.value.hint
    assert len(read(tiny)[0]) == 30


# where it is ---------------------------------------------------------------------------------------------------------
def test_the_archive_is_found_before_the_folder(tmp_path):
    (tmp_path / oct2017.NAME).mkdir()
    assert oct2017.locate(tmp_path) == tmp_path / oct2017.NAME
    (tmp_path / f"{oct2017.NAME}.zip").touch()
    assert oct2017.locate(tmp_path) == tmp_path / f"{oct2017.NAME}.zip"


def test_a_set_that_is_nowhere(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path is not set, nor is CROSSWARD_DATA"):
        oct2017.locate(None)
    with pytest.raises(ConfigError) as error:
        oct2017.locate(tmp_path)
    assert error.value.what == f"OCT2017 is not in {tmp_path}."
    assert f"{tmp_path / oct2017.NAME}.zip" in error.value.hint


# the real one --------------------------------------------------------------------------------------------------------
def test_some_of_the_real_set(tmp_path, read, real_file):
    archive = real_file(f"{oct2017.NAME}.zip")
    with open_files(archive) as files:
        listing = files.listing()
        for path in listing[::250]:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(files.read(path))
    classes_of = defaultdict(set)
    for path in map(PurePosixPath, listing):
        classes_of[path.name.split("-")[1]].add(path.parent.name)
    assert len(listing) == 10000
    assert len(classes_of) == 2581
    assert sum(len(classes) > 1 for classes in classes_of.values()) == 372
    collection, left_out = read(tmp_path / oct2017.NAME, size=16)
    assert collection.targets.bincount().tolist() == [10, 10, 10, 10]
    assert left_out == []
    assert collection.images.float().std() > 20
    assert set(collection.groups) <= set(classes_of)
