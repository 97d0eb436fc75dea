"""PBC by name: where it is looked for, its layout, its published split, and what is refused."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crossward.config.reading import config_from
from crossward.data.federate import federate
from crossward.data.sources import pbc
from crossward.errors import ConfigError, DataError

PUBLISHED = {  # train, val, test
    "basophil": (852, 122, 244),
    "eosinophil": (2181, 312, 624),
    "erythroblast": (1085, 155, 311),
    "ig": (2026, 290, 579),
    "lymphocyte": (849, 122, 243),
    "monocyte": (993, 143, 284),
    "neutrophil": (2330, 333, 666),
    "platelet": (1643, 235, 470),
}
TINY = {  # images, and what floor(0.7 n), the rest, ceil(0.2 n) make of them
    "basophil": (10, (7, 1, 2)),
    "eosinophil": (6, (4, 0, 2)),
    "erythroblast": (4, (2, 1, 1)),
    "ig": (3, (2, 0, 1)),
    "lymphocyte": (1, (0, 0, 1)),
    "monocyte": (2, (1, 0, 1)),
    "neutrophil": (11, (7, 1, 3)),
    "platelet": (20, (14, 2, 4)),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A folder that holds PBC_dataset_normal_DIB, every image of a colour of its own."""
    top = tmp_path_factory.mktemp("data")
    for number, (name, (count, _)) in enumerate(TINY.items()):
        (top / pbc.NAME / name).mkdir(parents=True)
        for value in range(count):
            Image.new("RGB", (6, 4), (10 * number, 10 * value, 7)).save(top / pbc.NAME / name / f"{value:02d}.png")
    return top


@pytest.fixture
def altered(tiny, tmp_path) -> Path:
    """A copy of the class folders that a test may change."""
    return Path(shutil.copytree(tiny / pbc.NAME, tmp_path / "altered"))


@pytest.fixture
def read(tmp_path):
    return lambda root, **more: pbc.read(root, cache=tmp_path / "cache", **{"size": 4} | more)


def shares(targets, splits) -> dict[str, tuple[int, ...]]:
    """class -> how many rows are train, val, test."""
    held = Counter(zip(targets.tolist(), splits, strict=True))
    return {name: tuple(held[number, side] for side in pbc.SIDES) for number, name in enumerate(pbc.CLASSES)}


def rows_of(counts: dict[str, tuple[int, ...]]) -> tuple[np.ndarray, list[str]]:
    """Labels and ids of a set whose sides have these counts."""
    labels = np.repeat(range(len(pbc.CLASSES)), [sum(sides) for sides in counts.values()])
    return labels, [f"{pbc.CLASSES[label]}/{row}" for row, label in enumerate(labels)]


# what is read --------------------------------------------------------------------------------------------------------
def test_classes_rows_and_images(tiny, read):
    collection, left_out = read(tiny / pbc.NAME)
    assert collection.name == "pbc"
    assert collection.task == "classification"
    assert left_out == []
    assert collection.classes == tuple(TINY)
    assert collection.ids[9:12] == ("basophil/09.png", "eosinophil/00.png", "eosinophil/01.png")
    assert collection.targets.tolist()[9:12] == [0, 1, 1]
    assert collection.images.shape == (57, 4, 4, 3)
    assert collection.images.dtype == torch.uint8
    assert collection.images[11, 0, 0].tolist() == [10, 10, 7]
    assert collection.groups is None
    assert collection.sites is None


@pytest.mark.parametrize("wrap", ["", "PBC_dataset_normal_DIB", "a/train"])
@pytest.mark.parametrize("zipped", [False, True])
def test_however_it_is_packed(tiny, read, tmp_path, wrap, zipped, zip_folder):
    plain, _ = read(tiny / pbc.NAME)
    shutil.copytree(tiny / pbc.NAME, tmp_path / "top" / wrap, dirs_exist_ok=True)
    (tmp_path / "top" / wrap / "neutrophil" / ".DS_169665.jpg").write_bytes(b"litter of the official archive")
    collection, _ = read(zip_folder(tmp_path / "top", tmp_path / pbc.NAME) if zipped else tmp_path / "top")
    for part in ("name", "ids", "hashes", "splits", "classes"):
        assert getattr(collection, part) == getattr(plain, part)
    assert collection.targets.equal(plain.targets)


def test_options_reach_the_images(tiny, read):
    grey, _ = read(tiny / pbc.NAME, channels=1, size=5, fit="crop")
    assert grey.images.shape == (57, 5, 5, 1)
    neutral, _ = read(tiny / pbc.NAME, prepare=("shades-of-grey",))
    assert neutral.images[11, 0, 0].tolist() == [9, 9, 9]  # |(10, 10, 7)| / sqrt(3) = 9.1


def test_bad_files_are_named_or_set_aside(altered, read):
    (altered / "platelet" / "00.png").write_bytes(b"")
    with pytest.raises(DataError) as error:
        read(altered)
    assert error.value.details == ("platelet/00.png: is empty (0 bytes)",)
    collection, left_out = read(altered, bad_files="quarantine")
    assert [str(bad) for bad in left_out] == ["platelet/00.png: is empty (0 bytes)"]
    assert shares(collection.targets, collection.splits)["platelet"] == (13, 2, 4)  # of 19


# the split -----------------------------------------------------------------------------------------------------------
def test_the_published_split():
    labels, ids = rows_of(PUBLISHED)
    splits = pbc.paper_split(labels, ids, ids, seed=0)
    assert shares(labels, splits) == PUBLISHED
    assert Counter(splits) == {"train": 11959, "val": 1712, "test": 3421}


def test_the_split_of_a_small_set(tiny, read):
    collection, _ = read(tiny / pbc.NAME)
    assert shares(collection.targets, collection.splits) == {name: sides for name, (_, sides) in TINY.items()}


def test_a_seed_names_a_split(tiny, read):
    first, again, other = (read(tiny / pbc.NAME, split_seed=seed)[0] for seed in (3, 3, 4))
    assert first.splits == again.splits != other.splits
    assert shares(first.targets, first.splits) == shares(other.targets, other.splits)


def test_no_split(tiny, read):
    assert read(tiny / pbc.NAME, split="none")[0].splits is None


def test_a_copy_stays_with_its_original_in_the_same_class_and_in_another(altered, read):
    shutil.copy(altered / "basophil" / "00.png", altered / "basophil" / "10.png")  # 11 basophils: 7, 1, 3
    shutil.copy(altered / "platelet" / "07.png", altered / "neutrophil" / "11.png")  # 12 neutrophils: 8, 1, 3
    for seed in range(5):
        collection, _ = read(altered, split_seed=seed)
        side = dict(zip(collection.ids, collection.splits, strict=True))
        assert side["basophil/00.png"] == side["basophil/10.png"] == "train"
        assert side["platelet/07.png"] == side["neutrophil/11.png"] == "train"
        expected = {name: sides for name, (_, sides) in TINY.items()}
        expected |= {"basophil": (7, 1, 3), "neutrophil": (8, 1, 3)}
        assert shares(collection.targets, collection.splits) == expected
        federate(collection, partition="iid", sites=2)  # audits that no image is on both sides


def test_copies_that_training_has_no_room_for_go_elsewhere():
    counts = dict.fromkeys(pbc.CLASSES, (7, 1, 2))
    labels, ids = rows_of(counts)
    hashes = [*"aaabbbccdd", *ids[10:]]  # of ten basophils: 3 + 3 train, 2 test, and no side for the other two
    with pytest.raises(DataError, match="do not fit on one side") as error:
        pbc.paper_split(labels, hashes, ids, seed=0)
    assert error.value.details == ("basophil/8 = basophil/9",)
    splits = pbc.paper_split(labels, [*"aaabbbccde", *ids[10:]], ids, seed=0)
    assert splits[:8] == ("train",) * 6 + ("test",) * 2
    assert sorted(splits[8:10]) == ["train", "val"]
    assert shares(labels, splits) == counts


def test_the_sites_train_and_the_server_tests(tiny, read):
    collection, _ = read(tiny / pbc.NAME)
    federation = federate(collection, partition="iid", sites=3)
    assert sum(len(site.train) for site in federation.sites) == 7 + 4 + 2 + 2 + 0 + 1 + 7 + 14
    assert len(federation.server.val) == 5
    assert len(federation.server.test) == 15


# where it is ---------------------------------------------------------------------------------------------------------
def test_the_archive_is_found_before_the_folder(tmp_path):
    (tmp_path / pbc.NAME).mkdir()
    assert pbc.locate(tmp_path) == tmp_path / pbc.NAME
    (tmp_path / f"{pbc.NAME}.zip").touch()
    assert pbc.locate(tmp_path) == tmp_path / f"{pbc.NAME}.zip"


def test_a_set_that_is_nowhere(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path is not set, nor is CROSSWARD_DATA"):
        pbc.locate(None)
    with pytest.raises(ConfigError) as error:
        pbc.locate(tmp_path)
    assert error.value.what == f"PBC is not in {tmp_path}."
    assert f"{tmp_path / pbc.NAME}.zip" in error.value.hint


def test_the_source_of_a_configuration(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path))
    monkeypatch.delenv("CROSSWARD_DATA", raising=False)
    with pytest.raises(ConfigError, match="CROSSWARD_DATA"):
        config_from({"data": {"source": "pbc"}}).data.load()
    monkeypatch.setenv("CROSSWARD_DATA", str(tiny))
    by_name, left_out = config_from({"data": {"source": "pbc"}}).data.load()
    assert by_name.name == "pbc"
    assert by_name.images.shape == (57, 28, 28, 3)
    assert left_out == []
    assert Counter(by_name.splits) == {"train": 37, "val": 5, "test": 15}
    options = {"path": str(tiny / pbc.NAME), "size": 8, "channels": 1, "split": "none"}
    by_path, _ = config_from({"data": {"source": "pbc"} | options}).data.load()
    assert by_path.images.shape == (57, 8, 8, 1)
    assert by_path.splits is None
    reseeded, _ = config_from({"data": {"source": "pbc", "split_seed": 1}}).data.load()
    assert reseeded.splits != by_name.splits
    with pytest.raises(ConfigError, match=r"data\.split"):
        config_from({"data": {"source": "pbc", "split": "half"}})


# what is refused -----------------------------------------------------------------------------------------------------
def test_other_and_missing_classes_are_told_before_anything_is_decoded(altered, read, tmp_path):
    (altered / "ig").rename(altered / "immature")
    shutil.rmtree(altered / "lymphocyte")
    shutil.copy(altered / "platelet" / "00.png", altered / "loose.png")
    with pytest.raises(DataError, match="is not laid out as PBC") as error:
        read(altered, bad_files="quarantine")
    assert error.value.details == (
        "missing: ig",
        "missing: lymphocyte",
        "not a class: immature/ (3 image(s))",
        "not a class: ./ (1 image(s))",
    )
    assert not (tmp_path / "cache").exists()


def test_two_sets_in_one_are_refused(altered, read, tmp_path):
    shutil.copytree(altered, tmp_path / "two" / "old")
    altered.rename(tmp_path / "two" / "new")
    with pytest.raises(DataError, match="is not laid out as PBC") as error:
        read(tmp_path / "two")
    assert error.value.details == ("classes in: new", "classes in: old")


def test_no_images_and_no_archive(read, tmp_path):
    (tmp_path / "empty" / "ig").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no image"):
        read(tmp_path / "empty")
    (tmp_path / "broken.zip").write_bytes(b"PK, but not a zip")
    with pytest.raises(DataError, match=r"neither a folder nor a readable \.zip archive"):
        read(tmp_path / "broken.zip")
    with pytest.raises(DataError, match="There is no folder or archive"):
        read(tmp_path / "nowhere.zip")


# the real one --------------------------------------------------------------------------------------------------------
def test_the_real_set(read, real_file):
    archive = real_file(f"{pbc.NAME}.zip")
    collection, left_out = read(archive, size=28)
    assert collection.images.shape == (17092, 28, 28, 3)
    assert collection.classes == pbc.CLASSES
    assert left_out == []
    assert collection.images[::100].float().std() > 20
    assert shares(collection.targets, collection.splits) == PUBLISHED
    sides: dict[str, set[str]] = {}
    for image, side in zip(collection.hashes, collection.splits, strict=True):
        sides.setdefault(image, set()).add(side)
    assert all(len(held) == 1 for held in sides.values())
    assert len(sides) == 17092 - 17  # as many are there twice, one as an eosinophil and as a neutrophil
    federation = federate(collection, partition="dirichlet", sites=12, beta=0.1)
    assert federation.counts().sum(0).tolist() == [train for train, _, _ in PUBLISHED.values()]
    assert len(federation.server.val) == 1712
    assert len(federation.server.test) == 3421
