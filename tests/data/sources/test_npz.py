"""Arrays in the layout of MedMNIST."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch

from crossward.data.collection import Collection
from crossward.data.sources import medmnist
from crossward.data.sources.npz import read
from crossward.errors import ConfigError, DataError

SIZES = {"train": 2, "val": 1, "test": 1}


def arrays(shape: tuple[int, ...] = (2, 2), **other: np.ndarray) -> dict[str, np.ndarray]:
    """Two training images of 10 and 20, one of 30 to validate, one of 40 to test; labels 0, 1, 1, 0."""
    content = {}
    for split, values, labels in (("train", [10, 20], [0, 1]), ("val", [30], [1]), ("test", [40], [0])):
        content[f"{split}_images"] = np.stack([np.full(shape, value, dtype=np.uint8) for value in values])
        content[f"{split}_labels"] = np.array(labels, dtype=np.uint8)[:, None]
    return content | other


def saved(file: Path, content: dict[str, np.ndarray]) -> Path:
    np.savez_compressed(file, **content)
    return file


def refused(file: Path, **more: object) -> DataError:
    with pytest.raises(DataError) as error:
        read(file, **more)
    return error.value


def test_splits_follow_each_other(tmp_path):
    collection = read(saved(tmp_path / "toy.npz", arrays()))
    assert collection.name == "toy"
    assert collection.task == "classification"
    assert collection.classes == ("0", "1")
    assert collection.images.shape == (4, 2, 2, 1)
    assert collection.images[:, 0, 0, 0].tolist() == [10, 20, 30, 40]
    assert collection.targets.tolist() == [0, 1, 1, 0]
    assert collection.targets.dtype == torch.int64
    assert collection.ids == ("train/0", "train/1", "val/0", "test/0")
    assert collection.splits == ("train", "train", "val", "test")
    assert collection.hashes[1] == blake2b(bytes([20] * 4), digest_size=16).hexdigest()


def test_flat_labels_and_colour(tmp_path):
    content = arrays((2, 2, 3))
    flat = {name: array.reshape(-1) for name, array in content.items() if name.endswith("labels")}
    collection = read(saved(tmp_path / "toy.npz", content | flat), classes=("benign", "malignant", "unseen"))
    assert collection.channels == 3
    assert collection.classes == ("benign", "malignant", "unseen")
    assert collection.targets.tolist() == [0, 1, 1, 0]


def test_shrinking_by_a_whole_factor_takes_block_means(tmp_path):
    image = np.array([[[0, 10, 100, 100], [20, 30, 100, 100], [0, 0, 8, 8], [0, 0, 8, 10]]], dtype=np.uint8)
    content = arrays((4, 4), val_images=image)
    assert read(saved(tmp_path / "toy.npz", content), size=2).images[2, ..., 0].tolist() == [[15, 100], [0, 8]]


def test_other_sizes_and_channels(tmp_path):
    collection = read(saved(tmp_path / "toy.npz", arrays((4, 4))), size=3, channels=3)
    assert collection.images.shape == (4, 3, 3, 3)
    assert collection.images[:, 1, 1].tolist() == [[10] * 3, [20] * 3, [30] * 3, [40] * 3]
    red = np.zeros((1, 2, 2, 3), dtype=np.uint8)
    red[..., 0] = 200
    grey = read(saved(tmp_path / "red.npz", arrays((2, 2, 3), val_images=red)), channels=1)
    assert grey.images[2].unique().tolist() == [60]  # 0.299 * 200 = 59.8


def test_an_empty_validation_split_is_allowed(tmp_path):
    none = {"val_images": np.zeros((0, 4, 4), np.uint8), "val_labels": np.zeros((0, 1), np.uint8)}
    assert read(saved(tmp_path / "toy.npz", arrays((4, 4), **none)), size=2).splits == ("train", "train", "test")


def test_missing_arrays_are_all_named(tmp_path):
    content = arrays()
    del content["val_images"], content["test_labels"]
    assert refused(saved(tmp_path / "toy.npz", content)).details == ("val_images", "test_labels")


def test_every_wrong_array_is_named(tmp_path):
    wrong = {
        "train_images": np.zeros((2, 2, 2), np.float32),
        "train_labels": np.full((2, 14), 3, np.uint8),
        "val_images": np.zeros((1, 2, 2, 17), np.uint8),
        "val_labels": np.zeros((1, 1), np.float64),
        "test_images": np.zeros((3, 2, 2), np.uint8),
    }
    assert refused(saved(tmp_path / "toy.npz", arrays(**wrong))).details == (
        "train_images is float32, not uint8",
        "train_labels has 14 labels for each image, and the value 3 where 0 or 1 belongs",
        "val_images has the shape (1, 2, 2, 17)",
        "val_labels is float64, not whole numbers",
        "test has 3 images, but 1 labels",
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"val_images": np.zeros((1, 3, 3), np.uint8)}, "differ in shape"),
        ({"val_labels": np.array([[-1]])}, "negative label -1"),
        ({"val_labels": np.uint8(1), "val_images": np.uint8(1)}, "has the shape ()"),
        (
            {"train_images": np.zeros((0, 2, 2), np.uint8), "train_labels": np.zeros(0, np.uint8)},
            "train_images is empty",
        ),
    ],
)
def test_other_wrong_arrays(tmp_path, wrong, words):
    assert any(words in line for line in refused(saved(tmp_path / "toy.npz", arrays(**wrong))).details)


def scans(dtype: type = np.int16, offset: int = 0) -> dict[str, np.ndarray]:
    """Hounsfield units: training images of -1000 and 20, one of 40 to validate, one of 1000 to test."""
    units = {"train": [-1000, 20], "val": [40], "test": [1000]}
    collection = {f"{name}_images": np.array(values)[:, None, None] + offset for name, values in units.items()}
    return arrays() | {name: np.tile(values, (1, 2, 2)).astype(dtype) for name, values in collection.items()}


def test_hounsfield_units_through_a_window(tmp_path):
    for content in (scans(), scans(np.uint16, 1024)):
        collection = read(saved(tmp_path / "ct.npz", content), size=4, prepare=("window:40:80",))
        assert collection.images[:, 0, 0, 0].tolist() == [0, 64, 128, 255]
        assert collection.images.shape == (4, 4, 4, 1)
        assert collection.images.dtype == torch.uint8
        assert collection.hashes[3] == blake2b(bytes([255] * 16), digest_size=16).hexdigest()
    none = {"val_images": np.zeros((0, 2, 2), np.int16), "val_labels": np.zeros((0, 1), np.uint8)}
    assert len(read(saved(tmp_path / "ct.npz", scans() | none), prepare=("window:40:80",)).images) == 3


def test_hounsfield_units_without_a_window_and_windows_without_them(tmp_path):
    ct = refused(saved(tmp_path / "ct.npz", scans()))
    assert ct.details == tuple(f"{split}_images is int16, not uint8" for split in ("train", "val", "test"))
    assert 'prepare = ["window:40:80"]' in ct.hint
    eight = refused(saved(tmp_path / "toy.npz", arrays()), prepare=("window:40:80",))
    assert eight.details[0] == "train_images is already 8 bits: the window cannot be applied"
    colour = arrays((2, 2, 3)) | {f"{name}_images": np.zeros((n, 2, 2, 3), np.int16) for name, n in SIZES.items()}
    coloured = refused(saved(tmp_path / "colour.npz", colour), channels=1, prepare=("window:40:80",))
    assert coloured.details[0] == "train_images is in colour, but a window needs grey images"
    floats = refused(saved(tmp_path / "f.npz", scans(np.float32)), prepare=("window:40:80",))
    assert floats.details[0].startswith("train_images is float32, not int16 (Hounsfield units)")


def test_colours_are_prepared_after_resizing(tmp_path):
    seen = np.tile(np.array([100, 200, 50], dtype=np.uint8), (1, 4, 4, 1))
    file = saved(tmp_path / "toy.npz", arrays((4, 4, 3), val_images=seen))
    collection = read(file, size=2, prepare=("shades-of-grey",))
    assert collection.images[2].unique().tolist() == [132]  # |(100, 200, 50)| / sqrt(3) = 132.3
    assert collection.images[:2, 0, 0, 0].tolist() == [10, 20]
    assert medmnist_like(tmp_path).images[:, 0, 0, 0].tolist() == [51, 51, 51, 51]


def medmnist_like(folder: Path) -> Collection:
    saved(folder / "pneumoniamnist.npz", arrays())
    return medmnist.read("pneumoniamnist", root=folder, size=2, prepare=("brightness:0.2",))


def test_colour_operations_need_colour(tmp_path):
    file = saved(tmp_path / "toy.npz", arrays())
    for wrong in ({"prepare": ("shades-of-grey",)}, {"channels": 3, "prepare": ("window:40:80",)}):
        with pytest.raises(ConfigError, match="prepare cannot be carried out"):
            read(file, **wrong)


def test_labels_beyond_the_classes(tmp_path):
    file = saved(tmp_path / "toy.npz", arrays(val_labels=np.array([[5]])))
    assert "has the label 5, but 2 classes are named (0 to 1)" in refused(file, classes=("a", "b")).what


def test_files_that_are_no_arrays(tmp_path):
    objects = saved(tmp_path / "objects.npz", arrays(val_labels=np.array([{"a": 1}], dtype=object)))
    assert "Python objects" in refused(objects).hint
    (tmp_path / "text.npz").write_text("hello")
    assert "not a whole .npz" in refused(tmp_path / "text.npz").what
    whole = saved(tmp_path / "cut.npz", arrays()).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert "not a whole .npz" in refused(tmp_path / "cut.npz").what
    damaged = bytearray(whole)
    damaged[120] ^= 255
    (tmp_path / "damaged.npz").write_bytes(damaged)
    assert "cannot be read" in refused(tmp_path / "damaged.npz").what
    np.save(tmp_path / "bare.npy", np.zeros(3))
    assert "not a whole .npz" in refused(tmp_path / "bare.npy").what
    assert "There is no file" in refused(tmp_path / "gone.npz").what


@pytest.mark.parametrize("wrong", [{"size": 0}, {"channels": 2}])
def test_wrong_options(tmp_path, wrong):
    with pytest.raises(ConfigError):
        read(saved(tmp_path / "toy.npz", arrays()), **wrong)


def test_medmnist_prefers_the_file_of_the_size(tmp_path):
    saved(tmp_path / "pneumoniamnist.npz", arrays((4, 4)))
    small = medmnist.read("pneumoniamnist", root=tmp_path, size=2)
    assert small.name == "pneumoniamnist"
    assert small.size == (2, 2)
    assert small.classes == ("normal", "pneumonia")
    saved(tmp_path / "pneumoniamnist_8.npz", arrays((8, 8), val_images=np.full((1, 8, 8), 77, np.uint8)))
    large = medmnist.read("pneumoniamnist", root=tmp_path, size=8)
    assert large.name == "pneumoniamnist"
    assert large.images[2].unique().tolist() == [77]


def test_medmnist_takes_the_next_larger_size_else_the_largest(tmp_path):
    for size in (64, 128):
        saved(
            tmp_path / f"pneumoniamnist_{size}.npz",
            arrays((size, size), test_images=np.full((1, size, size), size, np.uint8)),
        )
    read_at = {size: medmnist.read("pneumoniamnist", root=tmp_path, size=size) for size in (32, 100, 224)}
    assert {size: read_at[size].size for size in read_at} == {32: (32, 32), 100: (100, 100), 224: (224, 224)}
    assert {size: int(read_at[size].images[3].max()) for size in read_at} == {32: 64, 100: 128, 224: 128}


def test_several_labels_for_each_image(tmp_path):
    several = {f"{side}_labels": (np.arange(3 * n).reshape(n, 3) % 2).astype(np.int64) for side, n in SIZES.items()}
    collection = read(saved(tmp_path / "toy.npz", arrays(**several)), classes=("effusion", "edema", "mass"))
    assert collection.task == "multi-label"
    assert collection.targets.dtype == torch.uint8
    assert collection.targets.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0], [0, 1, 0]]
    assert read(tmp_path / "toy.npz").classes == ("0", "1", "2")
    other = refused(saved(tmp_path / "odd.npz", arrays(**several | {"val_labels": np.zeros((1, 2), np.uint8)})))
    assert other.details == ("images differ in their number of labels between splits",)


def test_medmnist_names_what_is_nearest_and_what_is_missing(tmp_path):
    with pytest.raises(ConfigError, match='the nearest is "bloodmnist"'):
        medmnist.read("BloodMnist", root=tmp_path, size=28)
    with pytest.raises(DataError, match="bloodmnist are not in") as error:
        medmnist.read("bloodmnist", root=tmp_path, size=64)
    assert str(tmp_path / "bloodmnist_64.npz") in error.value.hint


def test_medmnist_counts_of_classes():
    assert {name: len(classes) for name, classes in medmnist.CLASSES.items()} == {
        "bloodmnist": 8, "breastmnist": 2, "chestmnist": 14, "dermamnist": 7, "octmnist": 4,
        "organamnist": 11, "organcmnist": 11, "organsmnist": 11, "pathmnist": 9, "pneumoniamnist": 2,
        "retinamnist": 5, "tissuemnist": 8,
    }  # fmt: skip
    assert all(len(set(classes)) == len(classes) for classes in medmnist.CLASSES.values())


@pytest.mark.parametrize("size", [None, 14])
def test_large_arrays_are_mapped_from_the_cache_and_equal(tmp_path, monkeypatch, size):
    from crossward.data.sources import npz

    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 9), ("val", 2), ("test", 3)):
        arrays[f"{split}_images"] = rng.integers(0, 255, (count, 28, 28, 3)).astype(np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count) % 2)[:, None]
    arrays["val_images"] = np.asfortranarray(arrays["val_images"])
    np.savez_compressed(tmp_path / "set.npz", **arrays)
    held = npz.read(tmp_path / "set.npz", size=size)
    assert held.file is None
    monkeypatch.setattr(npz, "budget", lambda of: 1000)
    monkeypatch.setattr(npz, "UNPACKED", 5000)  # two images at a time
    mapped = npz.read(tmp_path / "set.npz", size=size)
    assert mapped.file is not None
    assert torch.equal(mapped.images, held.images)
    assert mapped.hashes == held.hashes
    monkeypatch.setattr(npz, "_parts", lambda *_: pytest.fail("it was unpacked again"))
    again = npz.read(tmp_path / "set.npz", size=size)
    assert (again.hashes, torch.equal(again.images, held.images)) == (held.hashes, True)
