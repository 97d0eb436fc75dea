"""MNIST, Fashion-MNIST and EMNIST in their idx files."""

from __future__ import annotations

import gzip
import struct
import tarfile
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from crossward.data.federate import federate
from crossward.data.sealed_files import digest
from crossward.data.sources import idx
from crossward.errors import ConfigError, DataError

IMAGES = np.random.RandomState(0).randint(0, 256, (5, 4, 4)).astype(np.uint8)  # 3 to train on, 2 to test on
LABELS = [5, 0, 4, 9, 5]


def packed_array(array: np.ndarray, kind: int = 8) -> bytes:
    array = np.asarray(array, dtype=np.uint8)
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(folder: Path, name: str = "mnist", *, gz: bool = False, images=IMAGES, labels=LABELS) -> Path:
    folder.mkdir(parents=True)
    arrays = [images[:3], labels[:3], images[3:], labels[3:]]
    for file, array in zip(idx.file_names(name), arrays, strict=True):
        data = packed_array(array)
        (folder / f"{file}{'.gz' if gz else ''}").write_bytes(gzip.compress(data) if gz else data)
    return folder


def problems(root: Path, name: str = "mnist") -> tuple[str, ...]:
    with pytest.raises(DataError) as error:
        idx.read(root, name=name)
    return error.value.details


# what is read --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("gz", [False, True])
def test_images_labels_and_rows(tmp_path, gz):
    read = idx.read(write(tmp_path / "mnist", gz=gz), name="mnist")
    assert read.name == "mnist"
    assert read.task == "classification"
    assert read.classes == tuple("0123456789")
    assert read.images.dtype == torch.uint8
    assert read.targets.dtype == torch.int64
    assert read.images[..., 0].equal(torch.from_numpy(IMAGES))
    assert read.targets.tolist() == LABELS
    assert read.ids == ("train/0", "train/1", "train/2", "test/0", "test/1")
    assert read.splits == ("train",) * 3 + ("test",) * 2
    assert read.hashes == tuple(digest(image.tobytes()) for image in IMAGES)
    assert read.sites is None
    assert read.groups is None


def test_however_it_is_packed(tmp_path, zip_folder):
    folder = write(tmp_path / "top" / "MNIST" / "raw", gz=True)
    plain = idx.read(folder, name="mnist")
    (folder / "train-images-idx3-ubyte.gz").rename(folder / "train-images.idx3-ubyte.gz")
    with tarfile.open(tmp_path / "mnist.tgz", "w:gz") as federation:
        federation.add(tmp_path / "top", "package")
    zip_folder(tmp_path / "top", tmp_path / "mnist")
    for root in (tmp_path / "top", tmp_path / "mnist.tgz", tmp_path / "mnist.zip"):
        read = idx.read(root, name="mnist")
        assert read.ids == plain.ids
        assert read.hashes == plain.hashes


def test_an_unpacked_file_goes_before_its_gz(tmp_path):
    folder = write(tmp_path / "mnist")
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"not looked at")
    assert idx.read(folder, name="mnist").targets.tolist() == LABELS


def test_emnist_letters_are_turned_and_counted_from_0(tmp_path):
    folder = write(tmp_path / "emnist", "emnist-letters", labels=[1, 26, 2, 13, 1], gz=True)
    write(folder / "other", "emnist-digits")
    read = idx.read(folder, name="emnist-letters")
    assert "".join(read.classes) == "abcdefghijklmnopqrstuvwxyz"
    assert [read.classes[label] for label in read.targets] == ["a", "z", "b", "m", "a"]
    assert read.images[2, 0, 3, 0] == IMAGES[2, 3, 0]
    assert read.images[..., 0].equal(torch.from_numpy(IMAGES).transpose(1, 2))
    assert read.hashes[1] == digest(IMAGES[1].T.tobytes())


@pytest.mark.parametrize(
    ("name", "count", "last"), [("balanced", 47, "t"), ("bymerge", 47, "t"), ("byclass", 62, "z"), ("digits", 10, "9")]
)
def test_other_parts_of_emnist_count_from_0(tmp_path, name, count, last):
    folder = write(tmp_path / name, f"emnist-{name}", labels=[0, 1, 2, count - 1, 0])
    read = idx.read(folder, name=f"emnist-{name}")
    assert len(read.classes) == count
    assert read.classes[-1] == last
    assert read.targets[3] == count - 1


def test_fashion_has_names(tmp_path):
    read = idx.read(write(tmp_path / "fashion"), name="fashion-mnist")
    assert [read.classes[label] for label in read.targets] == ["sandal", "T-shirt/top", "coat", "ankle boot", "sandal"]


def test_other_sizes_and_channels(tmp_path):
    folder = write(tmp_path / "mnist")
    read = idx.read(folder, name="mnist", size=2, channels=3)
    assert read.images.shape == (5, 2, 2, 3)
    assert abs(read.images[1, 0, 1, 2].item() - IMAGES[1, :2, 2:].mean()) <= 0.5
    assert idx.read(folder, name="mnist", size=8).images.shape == (5, 8, 8, 1)
    with pytest.raises(ConfigError, match="channels is 4"):
        idx.read(folder, name="mnist", channels=4)


def test_the_server_tests_on_the_official_test_images(tmp_path):
    federation = federate(idx.read(write(tmp_path / "mnist"), name="mnist"), partition="iid", sites=3)
    assert [len(site.train) for site in federation.sites] == [1, 1, 1]
    assert federation.server.test.tolist() == [3, 4]


# where it is ---------------------------------------------------------------------------------------------------------
def test_places(tmp_path, monkeypatch):
    monkeypatch.setattr(idx, "DEBIAN", tmp_path / "debian")
    for name, place in (("mnist", "MNIST"), ("fashion-mnist", "fashion-mnist"), ("emnist-letters", "gzip.zip")):
        with pytest.raises(ConfigError) as error:
            idx.locate(tmp_path, name)
        assert error.value.what == f"{name} is not in {tmp_path}."
        assert idx.file_names(name)[3] in error.value.hint
        (tmp_path / place).mkdir()
        assert idx.locate(tmp_path, name) == tmp_path / place
    with pytest.raises(ConfigError, match=r"data\.path is not set, nor is CROSSWARD_DATA"):
        idx.locate(None, "fashion-mnist")
    (tmp_path / "debian").mkdir()
    assert idx.locate(None, "fashion-mnist") == tmp_path / "debian"
    assert idx.locate(tmp_path, "fashion-mnist") == tmp_path / "fashion-mnist"


def test_unknown_names(tmp_path):
    for wrong in (idx.locate, lambda root, name: idx.read(root, name=name)):
        with pytest.raises(ConfigError, match='There is no set "emnist-letter"') as error:
            wrong(tmp_path, "emnist-letter")
        assert "Did you mean 'emnist-letters'?" in error.value.hint


# what is refused -----------------------------------------------------------------------------------------------------
def test_missing_files_are_all_named(tmp_path):
    folder = write(tmp_path / "mnist")
    (folder / "t10k-images-idx3-ubyte").unlink()
    (folder / "train-labels-idx1-ubyte").unlink()
    files = ("train-labels-idx1-ubyte", "t10k-images-idx3-ubyte")
    assert problems(folder) == tuple(f"missing: {file} (or {file}.gz)" for file in files)


def test_two_sets_in_one(tmp_path):
    write(tmp_path / "mnist")
    write(tmp_path / "fashion-mnist")
    assert problems(tmp_path) == ("fashion-mnist", "mnist")


@pytest.mark.parametrize("gz", [False, True])
def test_files_cut_short_or_too_long_are_all_told(tmp_path, gz):
    folder = write(tmp_path / "mnist")
    end = ".gz" if gz else ""
    changes = {
        "t10k-images-idx3-ubyte": lambda data: data[:40],
        "t10k-labels-idx1-ubyte": lambda data: data + b"\0",
        "train-images-idx3-ubyte": lambda data: data[:3],
        "train-labels-idx1-ubyte": lambda data: data[:-1],
    }
    for file, change in changes.items():
        data = change((folder / file).read_bytes())
        (folder / file).unlink()
        (folder / f"{file}{end}").write_bytes(gzip.compress(data) if gz else data)
    assert problems(folder) == (
        f"t10k-images-idx3-ubyte{end}: should have 2 x 4 x 4 = 32 bytes after its header and has 24: 1 of 2 records",
        f"t10k-labels-idx1-ubyte{end}: should have 2 = 2 bytes after its header and has more",
        f"train-images-idx3-ubyte{end}: has 3 bytes, fewer than its header",
        f"train-labels-idx1-ubyte{end}: should have 3 = 3 bytes after its header and has 2: 2 of 3 records",
    )


def test_a_gz_cut_short_or_damaged(tmp_path):
    folder = write(tmp_path / "mnist", gz=True)
    file = folder / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    for wrong, words in (
        (whole[:-10], "ended before the end-of-stream marker"),
        (whole[:-8] + b"\0" * 8, "CRC check failed"),
        (b"no gzip" + whole, "Not a gzipped file"),
        (b"", "has 0 bytes, fewer than its header"),
    ):
        file.write_bytes(wrong)
        (line,) = problems(folder)
        assert line.startswith("train-images-idx3-ubyte.gz: ")
        assert words in line


def test_wrong_magic_numbers(tmp_path):
    folder = write(tmp_path / "mnist")
    (folder / "train-images-idx3-ubyte").write_bytes(packed_array(np.zeros(30)))
    (folder / "train-labels-idx1-ubyte").write_bytes(packed_array(np.zeros((3, 4, 4))))
    (folder / "t10k-images-idx3-ubyte").write_bytes(packed_array(IMAGES[3:], kind=13))
    assert problems(folder) == (
        "t10k-images-idx3-ubyte: starts with the number 3331, not 2051",
        "train-images-idx3-ubyte: starts with the number 2049, not 2051: it holds labels",
        "train-labels-idx1-ubyte: starts with the number 2051, not 2049: it holds images",
    )


def test_counts_shapes_and_labels_that_disagree(tmp_path):
    folder = write(tmp_path / "mnist", labels=[5, 10, 4, 9, 5])
    (folder / "t10k-labels-idx1-ubyte").write_bytes(packed_array(np.array([1, 2, 255])))
    (folder / "t10k-images-idx3-ubyte").write_bytes(packed_array(np.zeros((2, 4, 5))))
    assert problems(folder) == (
        "train-labels-idx1-ubyte: record 1 has the label 10, not 0 to 9",
        "t10k-images-idx3-ubyte has 2 images, but t10k-labels-idx1-ubyte 3 labels",
        "t10k-labels-idx1-ubyte: record 2 has the label 255, not 0 to 9",
        "images to train on are (4, 4), those to test on (4, 5)",
    )
    letters = write(tmp_path / "emnist", "emnist-letters", labels=[0, 1, 27, 2, 3])
    file = "emnist-letters-train-labels-idx1-ubyte"
    assert problems(letters, "emnist-letters") == (
        f"{file}: record 0 has the label 0, not 1 to 26",
        f"{file}: record 2 has the label 27, not 1 to 26",
    )


@pytest.mark.parametrize("sides", [(1 << 31, 1 << 31, 1 << 31), (1 << 20, 32, 32), (0, 28, 28), (3, 0, 28)])
def test_what_a_file_claims_takes_no_memory(sides):
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", *sides)
    tracemalloc.start()
    with pytest.raises(DataError):
        idx.parse_idx(gzip.compress(header + bytes(100)), packed=True, images=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


# the real ones -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "first", "mean"), [("mnist", [5, 0, 4, 1, 9], 0.1307), ("fashion-mnist", [9, 0, 0, 3, 0], 0.2860)]
)
def test_the_real_sets(name, first, mean, real_data):
    try:
        place = idx.locate(real_data, name)
    except ConfigError as error:
        pytest.skip(f"{error.what} (set CROSSWARD_DATA)")
    collection = idx.read(place, name=name)
    assert collection.images.shape == (70000, 28, 28, 1)
    assert collection.targets[:5].tolist() == first
    assert Counter(collection.splits) == {"train": 60000, "test": 10000}
    assert abs(collection.images[:60000].float().mean().item() / 255 - mean) < 1e-4  # as published
    assert len(set(collection.hashes)) == 70000


@pytest.mark.parametrize(
    ("name", "first", "count"),
    [
        ("emnist-balanced", "0", 47),
        ("emnist-byclass", "0", 62),
        ("emnist-bymerge", "0", 47),
        ("emnist-digits", "0", 10),
        ("emnist-letters", "a", 26),
        ("emnist-mnist", "0", 10),
    ],
)
def test_every_split_of_emnist_is_a_source(tmp_path, monkeypatch, name, first, count):
    base = 1 if name == "emnist-letters" else 0
    write(tmp_path / "emnist", name, gz=True, labels=[base, base + 1, base + 2, base + 9, base])
    monkeypatch.setenv("CROSSWARD_DATA", str(tmp_path))
    collection, _ = idx.IdxSettings.model_validate({"source": name}).load()
    assert (collection.classes[0], len(collection.classes)) == (first, count)
    assert collection.targets.tolist() == [0, 1, 2, 9, 0]
    assert collection.images[0, :, :, 0].tolist() == IMAGES[0].T.tolist()  # lies on its side in the file
    assert Counter(collection.splits) == {"train": 3, "test": 2}
