"""Folders of classes, with and without splits, unpacked and packed."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections import Counter
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crossward.data.bad_files import BadFile
from crossward.data.cache import VERSION
from crossward.data.sources import folder
from crossward.errors import ConfigError, DataError


def planted(root: Path, *names: str) -> Path:
    """Grey images, each of its own value in the order given."""
    for value, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (6, 4), 10 * value).save(root / name)
    return root


@pytest.fixture
def read(tmp_path):
    return lambda root, **more: folder.read(root, cache=tmp_path / "cache", **{"size": 4, "channels": 1} | more)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("wrap", ["", "PBC/", "v1/slides/breast/"])
def test_classes_are_folders(tmp_path, read, zipped, wrap, zip_folder):
    root = planted(tmp_path / "set", f"{wrap}benign/2.png", f"{wrap}malignant/x/y/1.PNG", f"{wrap}benign/deep/1.png")
    (root / "readme.txt").write_text("not an image")
    (root / "__MACOSX" / "benign").mkdir(parents=True)
    (root / "__MACOSX" / "benign" / "._2.png").write_bytes(b"litter")
    collection, left_out = read(zip_folder(root, root) if zipped else root)
    assert collection.name == "set"
    assert collection.task == "classification"
    assert collection.classes == ("benign", "malignant")
    assert collection.ids == (f"{wrap}benign/2.png", f"{wrap}benign/deep/1.png", f"{wrap}malignant/x/y/1.PNG")
    assert collection.targets.tolist() == [0, 0, 1]
    assert collection.targets.dtype == torch.int64
    assert collection.images[:, 0, 0, 0].tolist() == [0, 20, 10]
    assert collection.images.shape == (3, 4, 4, 1)
    assert collection.images.dtype == torch.uint8
    assert collection.splits is None
    assert collection.groups is None
    assert collection.sites is None
    assert left_out == []


@pytest.mark.parametrize("zipped", [False, True])
def test_splits_at_the_top(tmp_path, read, zipped, zip_folder):
    root = planted(
        tmp_path / "set", "oct/Train/cnv/1.png", "oct/valid/cnv/2.png", "oct/test/dme/3.png", "oct/test/cnv/4.png"
    )
    collection, _ = read(zip_folder(root, root) if zipped else root)
    assert collection.classes == ("cnv", "dme")
    assert dict(zip(collection.ids, collection.splits, strict=True)) == {
        "oct/Train/cnv/1.png": "train",
        "oct/valid/cnv/2.png": "val",
        "oct/test/dme/3.png": "test",
        "oct/test/cnv/4.png": "test",
    }


def test_splits_beside_classes_are_refused(tmp_path, read):
    root = planted(tmp_path / "set", "train/a/1.png", "test/a/1.png", "masks/a/1.png")
    with pytest.raises(DataError, match="splits beside others") as error:
        read(root)
    assert error.value.details == ("splits: test, train", "others: masks")


def test_groups_from_the_path(tmp_path, read):
    root = planted(tmp_path / "set", "cnv/CNV-17-1.png", "cnv/CNV-17-2.png", "dme/DME-4-1.png")
    assert read(root, group=r"[A-Z]+-(\d+)-")[0].groups == ("17", "17", "4")


def test_a_path_without_group_is_a_problem(tmp_path, read):
    root = planted(tmp_path / "set", "cnv/CNV-17-1.png", "cnv/stray.png", "dme/DME-4-1.png")
    with pytest.raises(DataError) as error:
        read(root, group=r"-(\d+)-")
    assert error.value.details == (r"cnv/stray.png: the group pattern -(\d+)- finds no patient in its path",)
    collection, left_out = read(root, group=r"-(\d+)-", bad_files="quarantine")
    assert collection.groups == ("17", "4")
    assert [bad.where for bad in left_out] == ["cnv/stray.png"]
    with pytest.raises(DataError, match="no image is left of dme"):
        read(root, group=r"CNV-(\d+)-", bad_files="quarantine")


@pytest.mark.parametrize("group", ["(", "no brackets"])
def test_group_must_be_a_pattern_with_a_group(tmp_path, read, group):
    with pytest.raises(ConfigError, match="group"):
        read(planted(tmp_path / "set", "a/1.png"), group=group)


@pytest.mark.parametrize("zipped", [False, True])
def test_bad_files_are_all_named_or_set_aside(tmp_path, read, zipped, zip_folder):
    root = planted(tmp_path / "set", "a/1.png", "b/1.png", "b/2.png", "loose.png")
    (root / "a" / "empty.jpg").write_bytes(b"")
    (root / "a" / "text.jpg").write_text("hello")
    (root / "b" / "other.jpg").write_bytes(b"%PDF-1.7")
    (root / "b" / "2.png").write_bytes((root / "b" / "2.png").read_bytes()[:60])
    source = zip_folder(root, root) if zipped else root
    with pytest.raises(DataError, match="5 problems") as error:
        read(source)
    assert [line.split(":")[0] for line in error.value.details] == [
        "a/empty.jpg", "a/text.jpg", "b/2.png", "b/other.jpg", "loose.png",
    ]  # fmt: skip
    collection, left_out = read(source, bad_files="quarantine")
    assert collection.ids == ("a/1.png", "b/1.png")
    assert left_out[0] == BadFile("a/empty.jpg", None, "is empty (0 bytes)")
    assert [bad.reason for bad in left_out][3:] == [
        "has the extension .jpg of JPEG, but its content is not an image", "is not in a class folder",
    ]  # fmt: skip


def test_quarantine_never_loses_a_class(tmp_path, read):
    root = planted(tmp_path / "set", "a/1.png", "b/1.png")
    (root / "b" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match="no image is left of b"):
        read(root, bad_files="quarantine")
    (root / "a" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match="no usable image is left"):
        read(root, bad_files="quarantine")


def test_no_images_at_all(tmp_path, read):
    (tmp_path / "set" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no image"):
        read(tmp_path / "set")


def test_equal_images_have_equal_hashes_and_mapped_rows(tmp_path, read):
    root = planted(tmp_path / "set", "a/1.png", "b/1.png")
    shutil.copy(root / "a" / "1.png", root / "a" / "copy.png")
    collection, _ = read(root)
    one, copy, other = collection.hashes
    assert one == copy != other
    assert collection.file is not None
    assert collection.file.stat().st_size == 3 * 4 * 4


def test_prepared_images_have_entries_of_their_own_and_others_the_old_ones(tmp_path, read):
    root = planted(tmp_path / "set", "a/1.png", "b/1.png")
    plain, _ = read(root, size=2)
    (entry,) = (tmp_path / "cache").glob("*.images")
    framing = {"size": 2, "channels": 1, "fit": "stretch", "classes": 0}
    key = blake2b(json.dumps([VERSION, framing]).encode(), digest_size=20)
    for path in ("a/1.png", "b/1.png"):
        printed = blake2b((root / path).read_bytes(), digest_size=16).hexdigest()
        key.update(json.dumps([path, printed]).encode() + json.dumps(["", ""]).encode())
    assert entry.stem == key.hexdigest()
    bright, _ = read(root, size=2, prepare=("brightness:0.2",))
    assert plain.images[:, 0, 0, 0].tolist() == [0, 10]
    assert bright.images[:, 0, 0, 0].tolist() == [0, 51]
    assert plain.hashes[0] == bright.hashes[0]
    assert plain.hashes[1] != bright.hashes[1]
    assert len(list((tmp_path / "cache").glob("*.images"))) == 2
    assert read(root, size=2)[0].file == entry


def test_a_window_refuses_each_file_of_eight_bits(tmp_path, read):
    root = planted(tmp_path / "set", "a/1.png", "b/1.png")
    Image.fromarray(np.full((4, 4), 1064, dtype=np.uint16)).save(root / "b" / "2.png")  # 40 Hounsfield units
    with pytest.raises(DataError) as error:
        read(root, prepare=("window:40:80",))
    assert error.value.details == tuple(
        f"{name}/1.png: is already 8 bits: the window cannot be applied" for name in ("a", "b")
    )
    (root / "a" / "1.png").unlink()
    collection, _ = read(root, prepare=("window:40:80",), bad_files="quarantine")
    assert collection.ids == ("b/2.png",)
    assert collection.images.unique().tolist() == [128]


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"prepare": ("sepia",)}, {"channels": 17}, {"fit": "pad"}, {"bad_files": "skip"}]
)
def test_wrong_options(tmp_path, read, wrong):
    with pytest.raises(ConfigError):
        read(planted(tmp_path / "set", "a/1.png"), **wrong)


def sample(archive: Path, every: int, to: Path) -> Path:
    """Every n-th file of an archive, so that the real layout is read in a moment."""
    with zipfile.ZipFile(archive) as whole, zipfile.ZipFile(to, "w") as part:
        for entry in whole.infolist()[::every]:
            part.writestr(entry, whole.read(entry))
    return to


def test_real_blood_cells(tmp_path, read, real_file):
    collection, left_out = read(
        sample(real_file("PBC_dataset_normal_DIB.zip"), 200, tmp_path / "pbc.zip"), size=28, channels=3
    )
    assert collection.classes == (
        "basophil", "eosinophil", "erythroblast", "ig", "lymphocyte", "monocyte", "neutrophil", "platelet",
    )  # fmt: skip
    assert collection.images.shape == (86, 28, 28, 3)
    assert left_out == []
    assert collection.images.float().std() > 20


def test_real_oct_has_splits_and_patients(tmp_path, read, real_file):
    collection, _ = read(sample(real_file("OCT2017.zip"), 200, tmp_path / "oct.zip"), group=r"/[A-Z]+-(\d+)-\d+\.jpeg")
    assert collection.classes == ("CNV", "DME", "DRUSEN", "NORMAL")
    assert Counter(collection.splits) == {"train": 50}
    assert all(group.isdecimal() for group in collection.groups)


def test_real_slides_are_wrapped_three_times(tmp_path, read, real_file):
    collection, _ = read(sample(real_file("BreaKHis_v1.zip"), 100, tmp_path / "b.zip"), group="/(SOB_[^/]+)/400X/")
    assert collection.classes == ("benign", "malignant")
    assert len(collection) == 17


def test_classes_that_are_named_need_no_folder_here(tmp_path, read):
    planted(tmp_path, "b/1.png", "a/1.png", "b/2.png")
    collection, _ = read(tmp_path, classes=["c", "b", "a"])
    assert collection.classes == ("c", "b", "a")
    assert sorted(collection.targets.tolist()) == [1, 1, 2]
    with pytest.raises(DataError, match=r"folders that data.classes does not name(.|\n)*b: "):
        read(tmp_path, classes=["a"])
    with pytest.raises(ConfigError, match="twice"):
        read(tmp_path, classes=["a", "b", "a"])


def test_every_name_of_a_split_and_few_others_beside_them(tmp_path, read):
    root = tmp_path / "set"
    names = [
        f"{split}/{label}/{n}.png" for split in ("Training", "validation", "test") for label in "ab" for n in range(4)
    ]
    planted(root, *names, "extra/a/1.png")
    with pytest.raises(DataError, match="splits beside others") as error:
        read(root)
    assert 'bad_files = "quarantine"' in error.value.hint
    collection, left_out = read(root, bad_files="auto")
    assert {*collection.splits} == {"train", "val", "test"}
    assert collection.classes == ("a", "b")
    assert [str(bad) for bad in left_out] == ["extra/a/1.png: lies beside the folders of splits"]


def test_a_folder_of_unlabelled_images_is_no_class(tmp_path, read):
    root = planted(tmp_path / "set", "a/1.png", "b/1.png", "NaN/1.png")
    with pytest.raises(DataError) as error:
        read(root)
    assert error.value.details == ('NaN/1.png: its folder "NaN" says that there is no label',)
    assert read(root, bad_files="quarantine")[0].classes == ("a", "b")
    assert read(root, classes=("NaN", "a", "b"))[0].classes == ("NaN", "a", "b")


def test_files_named_after_another_format_are_read_with_one_notice(tmp_path, read):
    root = planted(tmp_path / "set", "a/1.png", "b/1.png", "b/2.png")
    for file in (root / "b").iterdir():
        file.rename(file.with_suffix(".jpg"))
    collection, _ = read(root)
    assert len(collection) == 3
    assert [note.split(";")[0] for note in collection.notes] == [
        "2 image(s) have the extension of another format: read by their content"
    ]


def test_images_beside_their_masks_are_for_segmentation(tmp_path, read, zip_folder):
    root = tmp_path / "set"
    for split in ("train", "validation", "test"):
        for number in range(2):
            for place, name, value in (("images", f"{number}.png", 90), ("masks", f"{number}_mask.png", 255)):
                file = root / split / place / name
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (4, 4), value if number else value - 90).save(file)
    for place in (root, zip_folder(root, root)):
        collection, left_out = read(place)
        assert collection.task == "segmentation"
        assert collection.classes == ("background", "foreground")
        assert collection.targets.shape == (6, *collection.size)
        assert sorted(collection.splits) == ["test", "test", "train", "train", "val", "val"]
        assert collection.ids[0] == "test/images/0.png"
        assert left_out == []
    (root / "train/masks/1_mask.png").unlink()
    with pytest.raises(DataError, match="one problem") as error:
        read(root)
    assert error.value.details == ("train/images/1.png: has no mask",)
