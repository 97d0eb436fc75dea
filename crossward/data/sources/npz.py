"""Arrays in the layout of MedMNIST: one .npz with images and labels of train, val and test."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossward.core.image_size import MOST_CHANNELS, Size, sides
from crossward.core.memory_budgets import budget
from crossward.core.pixel_range import Depth
from crossward.data.collection import Collection
from crossward.data.decode import COLOURS
from crossward.data.prepare import EXAMPLE, Pixels, Preparation, by_parts, preparation
from crossward.data.sealed_files import digest
from crossward.data.sources.array_images import resize
from crossward.data.sources.mapped_arrays import file_stamp, mapped_arrays
from crossward.data.sources.settings import Channels, ImageSize, Loaded, Operations, SourceSettings
from crossward.data.value_range import PIXEL_TYPES, FromTags, ImageRange, StoredBits, ValueRange, as_pixels
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath

SPLITS = ("train", "val", "test")
UNPACKED = 32 << 20  # bytes of images that are unpacked at a time
UNREADABLE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class ArrayClaim:
    """What a file says of an array before it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def channels(self) -> int:
        return self.shape[3] if self.ndim == 4 else 1


class NpzSettings(SourceSettings):
    source: Literal["npz"]
    path: AbsolutePath
    prepare: Operations = ()
    size: ImageSize | None = None
    channels: Channels | None = None
    depth: Depth = 8  # bits of a pixel that are kept
    classes: tuple[str, ...] | None = None

    def load(self) -> Loaded:
        collection = read(
            self.path,
            size=self.size,
            channels=self.channels,
            prepare=self.prepare,
            depth=self.depth,
            classes=self.classes,
        )
        return collection, []


def read(
    file: Path,
    *,
    size: Size | None = None,
    channels: int | None = None,
    prepare: tuple[str, ...] = (),
    depth: int = 8,
    classes: Sequence[str] | None = None,
) -> Collection:
    """The arrays of `file` as one collection that keeps their splits; sizes and channels as they are unless given."""
    if size is not None and min(sides(size)) < 1:
        raise ConfigError(f"size is {size}.", hint="Use a number of pixels, such as 28.")
    if channels is not None and not 1 <= channels <= MOST_CHANNELS:
        raise ConfigError(
            f"channels is {channels}.", hint=f"Use 1 (grey), 3 (colour), or another up to {MOST_CHANNELS}."
        )
    asked = preparation(prepare, channels)  # refused before anything is read
    if isinstance(asked.value_range, FromTags):
        raise ConfigError(f'"{prepare[0]}" is for DICOM: arrays carry no tags.', hint=f"Use a window, as in {EXAMPLE}.")
    labels_by_split, claims = _labels_and_claims(file)
    _check(file, labels_by_split, claims, asked, depth)
    _check_channels(file, claims["train"].channels, channels)
    prepared = preparation(prepare, channels or claims["train"].channels)
    counts = [len(claims[split]) for split in SPLITS]
    labels = np.concatenate([_targets(labels_by_split[split]) for split in SPLITS])
    parts = partial(_shaped_parts, file, size, channels, prepared, depth)
    shape = _shape_read(claims, size, channels)
    if math.prod(shape) * depth // 8 > budget("images"):  # more are mapped from the cache
        images, hashes, stored = mapped_arrays(parts, shape, [*file_stamp(file), size, channels, prepare], depth)
    else:
        images, stored = torch.cat([*parts()]), None
        hashes = tuple(digest(image.data) for image in images.numpy())
    return Collection(
        name=file.stem,
        task="multi-label" if labels.ndim == 2 else "classification",
        classes=_class_names(file, labels, classes),
        images=images,
        targets=torch.from_numpy(labels),
        ids=tuple(f"{split}/{row}" for split, count in zip(SPLITS, counts, strict=True) for row in range(count)),
        hashes=hashes,
        splits=tuple(split for split, count in zip(SPLITS, counts, strict=True) for _ in range(count)),
        file=stored,
    )


def label_arrays(file: Path) -> dict[str, NDArray[np.generic]]:
    """split -> its labels, of a file whose arrays fit each other; images are not read into memory."""
    if not zipfile.is_zipfile(file):
        raise DataError("is not a whole .npz archive")
    try:
        with np.load(file, allow_pickle=False) as content:
            labels = {split: content[f"{split}_labels"] for split in SPLITS}
        counts = _image_counts(file)
    except (KeyError, *UNREADABLE) as error:
        raise DataError(f"it lacks one of its six arrays, or they are damaged ({error})") from error
    if wrong := [f"{n} images, but {len(labels[side])} labels" for side, n in counts.items() if n != len(labels[side])]:
        raise DataError(f"it has {'; '.join(wrong)}")
    return {split: _targets(some) for split, some in labels.items()}


def label_counts(labels: NDArray[np.generic], classes: int) -> list[int]:
    """How many rows have each class, or each label."""
    if labels.ndim == 2:
        return [int(n) for n in labels.sum(0)]
    return [int(n) for n in np.bincount(labels.astype(np.int64), minlength=classes)]


def _image_counts(file: Path) -> dict[str, int]:
    """split -> how many images its array has, by the header of it."""
    counts = {}
    with zipfile.ZipFile(file) as archive:
        for split in SPLITS:
            with archive.open(f"{split}_images.npy") as stream:
                counts[split] = int(_array_header(stream)[0][0])
    return counts


def _targets(labels: NDArray[np.generic]) -> NDArray[np.generic]:
    """(N,) classes, or of several labels for each image (N, K) of 0 and 1."""
    if _labels_each(labels) > 1:
        return labels.astype(np.uint8)
    return labels.reshape(-1).astype(np.int64)


def _labels_each(labels: NDArray[np.generic]) -> int:
    return labels.shape[1] if labels.ndim == 2 else 1


def _labels_and_claims(file: Path) -> tuple[dict[str, NDArray[np.generic]], dict[str, ArrayClaim]]:
    """The labels of each split, and what the file says of its images, which are not read yet."""
    if not file.is_file():
        raise DataError(f"There is no file {file}.", hint="Check the path.")
    if not zipfile.is_zipfile(file):
        raise DataError(
            f"{file} is not a whole .npz archive.", hint="Save the six arrays with numpy.savez, or copy it again."
        )
    wanted = [f"{split}_{what}" for split in SPLITS for what in ("images", "labels")]
    with _readable(file), np.load(file, allow_pickle=False) as content:
        if missing := [name for name in wanted if name not in content.files]:
            raise DataError(
                f"{file} lacks arrays.", details=missing, hint=f"It has {', '.join(content.files) or 'none'}."
            )
        claims = _claims(file, wanted)
        labels = {split: content[f"{split}_labels"] for split in SPLITS}
    return labels, {split: claims[f"{split}_images"] for split in SPLITS}


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Errors of reading the arrays inside, in words."""
    try:
        yield
    except UNREADABLE as error:
        raise DataError(
            f"{file} cannot be read as plain arrays ({error}).",
            hint="Save it again with numpy.savez; arrays of Python objects are refused.",
        ) from error


def _claims(file: Path, names: Sequence[str]) -> dict[str, ArrayClaim]:
    """What the headers say. Arrays that claim to be larger than what the archive holds of them are refused: numpy takes
    the memory for what a header claims before it reads anything."""
    claims = {}
    with zipfile.ZipFile(file) as archive:
        for name in names:
            entry = archive.getinfo(f"{name}.npy")
            with archive.open(entry) as stream:
                shape, _, dtype = _array_header(stream)
                if dtype.hasobject or stream.tell() + math.prod(shape) * dtype.itemsize != entry.file_size:
                    raise ValueError(f"{name} is {dtype} of the shape {shape}, which is not what the archive holds")
            claims[name] = ArrayClaim(shape, dtype)
    return claims


def _shaped_parts(
    file: Path, size: Size | None, channels: int | None, prepared: Preparation, depth: int
) -> Iterator[Tensor]:
    """The images of all splits in order, unpacked and shaped some at a time."""
    for split in SPLITS:
        with _readable(file), closing(_parts(file, f"{split}_images")) as parts:
            for part in parts:
                yield _shaped(part, size, channels, prepared, depth)


def _parts(file: Path, name: str) -> Generator[NDArray[np.generic]]:
    """An array, some rows at a time as they are unpacked; one that is stored by columns at once."""
    with zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as stream:
        shape, by_columns, dtype = _array_header(stream)
        rows = math.prod(shape[1:]) * dtype.itemsize
        step = shape[0] if by_columns else max(1, UNPACKED // rows)
        for start in range(0, shape[0], step):
            count = min(step, shape[0] - start)
            values = np.frombuffer(stream.read(count * rows), dtype)
            whole = values.reshape((count, *shape[1:]), order="F" if by_columns else "C")
            yield np.array(whole)  # of our own, to be written to


def _shape_read(claims: Mapping[str, ArrayClaim], size: Size | None, channels: int | None) -> tuple[int, ...]:
    """The shape that the images are read in."""
    train = claims["train"]
    height, width = sides(size) if size else train.shape[1:3]
    return sum(map(len, claims.values())), height, width, channels or train.channels


def _array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of an array."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(stream)
    return header


def _check(
    file: Path,
    labels: Mapping[str, NDArray[np.generic]],
    claims: Mapping[str, ArrayClaim],
    asked: Preparation,
    depth: int,
) -> None:
    problems = [
        problem
        for split in SPLITS
        for problem in (
            *_image_problems(split, claims[split], asked, depth),
            *_problems(split, claims[split], labels[split]),
        )
    ]
    shapes = {claim.shape[1:] for claim in claims.values()}
    if not problems and len(shapes) > 1:
        problems.append(f"images differ in shape between splits: {', '.join(map(str, sorted(shapes)))}")
    if not problems and len({_labels_each(some) for some in labels.values()}) > 1:
        problems.append("images differ in their number of labels between splits")
    if not problems and not len(claims["train"]):
        problems.append("train_images is empty")
    if problems:
        raise DataError(
            f"{file} is not in the layout of MedMNIST.",
            details=problems,
            hint=f"Images are uint8 (N, H, W) or (N, H, W, C), C up to {MOST_CHANNELS}; labels are integers (N,) or "
            "(N, 1), or (N, K) of 0 and 1 for several labels an image. Networks see 8 bits, or with depth = 16 uint16: "
            f"Hounsfield units as int16 need a window, as in {EXAMPLE}, other numbers a range, as in prepare = "
            '["range:0:4095"].',
        )


def _check_channels(file: Path, held: int, wanted: int | None) -> None:
    if wanted in (None, held) or (held in COLOURS and wanted in COLOURS):
        return
    raise ConfigError(
        f"channels = {wanted}, but the images of {file} have {held}.",
        hint=f"Leave channels out, or set it to {held}: only grey and colour images can become each other.",
    )


def _image_problems(split: str, images: ArrayClaim, asked: Preparation, depth: int) -> list[str]:
    """What is wrong with the type and the shape of images, for what is to be done to them."""
    problems = []
    if asked.wanted_range and images.dtype == np.uint8:
        problems.append(
            f"{split}_images is already 8 bits: the {'window' if asked.window else 'range'} cannot be applied"
        )
    elif depth == 16 and images.dtype == np.uint8:
        problems.append(f"{split}_images is uint8, which data.depth = 16 would make no finer: set data.depth = 8")
    elif asked.window and images.dtype not in (np.int16, np.uint16):
        problems.append(
            f"{split}_images is {images.dtype}, not int16 (Hounsfield units) or uint16 (Hounsfield units + 1024)"
        )
    elif not asked.wanted_range and images.dtype != PIXEL_TYPES[depth]:
        problems.append(f"{split}_images is {images.dtype}, not uint{depth}")
    elif images.dtype.kind not in "iuf" or (images.dtype.kind == "f" and isinstance(asked.value_range, StoredBits)):
        problems.append(f"{split}_images is {images.dtype}, which has no bits to go by: use range:LOW:HIGH")
    elif asked.window and images.channels != 1:
        is_ = "is in colour" if images.channels == 3 else f"has {images.channels} channels"
        problems.append(f"{split}_images {is_}, but a window needs grey images")
    if images.ndim not in (3, 4) or images.channels > MOST_CHANNELS or 0 in images.shape[1:]:
        problems.append(f"{split}_images has the shape {images.shape}")
    return problems


def _problems(split: str, images: ArrayClaim, labels: NDArray[np.generic]) -> list[str]:
    problems = []
    if labels.dtype.kind not in "iu":
        problems.append(f"{split}_labels is {labels.dtype}, not whole numbers")
    elif labels.size and int(labels.min()) < 0:
        problems.append(f"{split}_labels has the negative label {labels.min()}")
    if _labels_each(labels) > 1 and labels.dtype.kind in "iu" and labels.size and int(labels.max()) > 1:
        problems.append(
            f"{split}_labels has {labels.shape[1]} labels for each image, and the value {labels.max()} where 0 or 1 "
            "belongs"
        )
    elif labels.ndim not in (1, 2):
        problems.append(f"{split}_labels has the shape {labels.shape}")
    if not problems and len(images) != len(labels):
        problems.append(f"{split} has {len(images)} images, but {len(labels)} labels")
    return problems


def _class_names(file: Path, labels: NDArray[np.generic], classes: Sequence[str] | None) -> tuple[str, ...]:
    count = labels.shape[1] if labels.ndim == 2 else int(labels.astype(np.int64).max()) + 1
    if classes is None:
        return tuple(str(label) for label in range(count))
    if count > len(classes):
        raise DataError(
            f"{file} has the label {count - 1}, but {len(classes)} classes are named (0 to {len(classes) - 1}).",
            details=[", ".join(classes)],
            hint="Name every class, or check that this is the right file.",
        )
    return tuple(classes)


def _shaped(
    array: NDArray[np.generic], size: Size | None, channels: int | None, prepared: Preparation, depth: int
) -> Tensor:
    """(N, H, W) or (N, H, W, C) -> (N, size, size, channels) uint8 or uint16: windowed, resized, then prepared
    otherwise."""
    pixels: Pixels
    if prepared.window:
        pixels = by_parts(partial(prepared.window, depth=depth), array, depth)
    elif prepared.value_range:
        pixels = _in_range(array, prepared.value_range, depth)
    else:
        pixels = np.ascontiguousarray(array, dtype=PIXEL_TYPES[depth])
    return torch.from_numpy(prepared(resize(torch.from_numpy(pixels), size, channels).numpy()))


def _in_range(array: NDArray[np.generic], wanted: ValueRange, depth: int) -> Pixels:
    """Each image, and each of its channels, by the range."""
    flat = array if array.ndim == 4 else array[..., None]
    image = ImageRange(None if array.dtype.kind == "f" else 8 * array.dtype.itemsize, array.dtype.kind == "i")
    ranged: Pixels = np.empty(flat.shape, dtype=PIXEL_TYPES[depth])
    for row, pixels in enumerate(flat):
        if not np.isfinite(pixels).all():
            raise DataError("has pixels that are no numbers (NaN or infinite)")
        for channel in range(flat.shape[3]):
            ranged[row, ..., channel] = as_pixels(pixels[..., channel], image, wanted, depth=depth)[0]
    return ranged.reshape(array.shape)
