"""The cache of decoded images: each dataset is decoded once into raw files that every process maps.

An entry is <key>.images, <key>.masks (segmentation) and <key>.json, the last written last: without it there is no
entry. The key is of the content, so that moved or touched files are found again and changed ones never are.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from crossward.data import decode
from crossward.data.archives import Files
from crossward.data.collection import map_images
from crossward.data.decode import Decoded, Frame
from crossward.data.prepare import Pixels
from crossward.data.site_key import shown_name
from crossward.disk import Draft, draft_file
from crossward.errors import DataError, StorageError

VERSION = 2  # of the decoding and of the files: entries of another version are never found
PARTS_VERSION = 1  # the same of DICOM and volumes
CHUNK = 256  # rows in flight, which bounds the memory
FRESH = 2_000_000_000  # ns: a file may change again within one tick of its clock, so that its stamp proves nothing yet
ABANDONED = 24 * 3600  # s: a part file this old belongs to a process that was killed

Digests = dict[str, str]  # path -> hash of the file
Reasons = dict[str, str]  # path -> why it cannot be read
Decoder = Callable[[bytes, str, Frame, Sequence[str]], list[Decoded | DataError]]


@dataclass(frozen=True)
class ImagePaths:
    image: str  # paths inside the Files
    mask: str = ""
    part: str = ""  # of a file with several images: the number of a frame, or "axial:17"
    private: bool = False  # neither is called by its path, whatever its extension says

    def shown(self, path: str) -> str:
        """What one of its files is called outside of their folder, where it may be named after a patient."""
        return shown_name(path, private=self.private)

    @property
    def name(self) -> str:
        """What the image is called outside of its folder."""
        return f"{self.shown(self.image)}/{self.part}" if self.part else self.shown(self.image)


@dataclass(frozen=True)
class DecodedImages:
    images: Tensor  # (n, S, S, C) uint8 of the rows that could be decoded, mapped
    masks: Tensor | None  # (n, S, S) uint8, mapped
    hashes: tuple[str, ...]
    file: Path | None
    rows: tuple[int, ...]  # which of the wanted rows these are
    problems: tuple[tuple[int, str], ...]  # row and reason of the others
    notes: tuple[str, ...] = ()  # what a person should know of the images and masks


@dataclass(frozen=True)
class CacheEntry:
    """The JSON beside the raw files."""

    version: int
    shape: list[int]
    hashes: list[str]
    ids: list[str]
    bad: list[list[Any]]  # [position among the rows, reason]
    habits: list[list[Any]] = field(default_factory=list)  # [position among the rows, habit of its image or mask]


@dataclass(frozen=True)
class _DecodedRow:
    """One decoded row: its pixels, or what is wrong; with the digests of the bytes that were really read."""

    image: Pixels | None
    mask: Pixels | None
    hash: str
    problems: tuple[str, ...]
    digests: Digests
    habits: tuple[str, ...] = ()


def decode_files(files: Files, rows: Sequence[ImagePaths], frame: Frame, cache: Path) -> DecodedImages:
    """Every row decoded, from the cache when it has them; with masks when the frame counts their classes."""
    with storage(cache):
        cache.mkdir(parents=True, exist_ok=True)
    digests, unreadable = _digests(files, rows, cache)
    problems = [(place, reason) for place, row in enumerate(rows) for reason in _reasons(row, unreadable)]
    usable = [place for place, row in enumerate(rows) if not _reasons(row, unreadable)]
    wanted = [rows[place] for place in usable]
    key = _cache_key(wanted, frame, digests)
    entry = _stored_entry(cache, key, frame)
    if entry is None:
        key, entry = _build(files, wanted, frame, cache)
    bad = {place for place, _ in entry.bad}
    problems += [(usable[place], reason) for place, reason in entry.bad]
    decoded_rows = tuple(place for position, place in enumerate(usable) if position not in bad)
    images, masks = _raw_files(cache, key)
    shape = tuple(entry.shape)
    if not decoded_rows:
        return DecodedImages(torch.empty(shape, dtype=torch.uint8), None, (), None, (), tuple(sorted(problems)))
    return DecodedImages(
        map_images(images, shape),
        map_images(masks, shape[:3]) if frame.classes else None,
        tuple(entry.hashes),
        images,
        decoded_rows,
        tuple(sorted(problems)),
        decode.habit_notes(_habits(wanted, entry)),
    )


def _habits(rows: Sequence[ImagePaths], entry: CacheEntry) -> Iterator[tuple[str, str]]:
    for place, habit in entry.habits:
        row = rows[place]
        yield (row.name if habit in decode.IMAGE_HABITS else row.shown(row.mask)), habit


def digest(data: bytes | memoryview) -> str:
    """The hash of an image's pixels, or of a file."""
    return blake2b(data, digest_size=16).hexdigest()


def _reasons(row: ImagePaths, unreadable: Reasons) -> list[str]:
    named = [(row.image, "")] + ([(row.mask, f"mask {row.shown(row.mask)}: ")] if row.mask else [])
    return [prefix + unreadable[path] for path, prefix in named if path in unreadable]


def _digests(files: Files, rows: Sequence[ImagePaths], cache: Path) -> tuple[Digests, Reasons]:
    """The content hash of every file, remembered by its stamp, and why some could not be read."""
    file = cache / f"index-{digest(str(files.root.resolve()).encode())}.json"
    known: dict[str, list[Any]] = (read_sealed(file) or {}).get("files", {})
    digests: Digests = {}
    unreadable: Reasons = {}
    learned: dict[str, list[Any]] = {}
    for path, name in {path: row.shown(path) for row in rows for path in (row.image, row.mask) if path}.items():
        try:
            stamp = list(files.stamp(path))
            if name in known and known[name][:-1] == stamp:
                digests[path] = known[name][-1]
                continue
            digests[path] = digest(files.read(path))
        except DataError as error:
            unreadable[path] = error.what
            continue
        if time.time_ns() - stamp[-1] > FRESH:
            learned[name] = [*stamp, digests[path]]
    if learned:
        with storage(cache):
            write_sealed(file, {"files": known | learned})
    return digests, unreadable


def _cache_key(rows: Sequence[ImagePaths], frame: Frame, digests: Digests) -> str:
    # entries of images that nothing was done to have the keys they always had; those of two-class masks knew no habits
    defaults = asdict(Frame(1))
    later = ("prepare", "max_pixels", "burned_in")
    framing = {name: value for name, value in asdict(frame).items() if name not in later or value != defaults[name]}
    framing |= {"masks": 2} if frame.classes else {}  # as VERSION, of the decoding of masks alone
    state = blake2b(json.dumps([VERSION, framing]).encode(), digest_size=20)
    for row in rows:
        for path in (row.image, row.mask):
            state.update(json.dumps([path, digests.get(path, "")]).encode())
        if row.part:
            state.update(json.dumps([row.part, PARTS_VERSION]).encode())
    return state.hexdigest()


def _raw_files(cache: Path, key: str) -> tuple[Path, Path]:
    return cache / f"{key}.images", cache / f"{key}.masks"


def _stored_entry(cache: Path, key: str, frame: Frame) -> CacheEntry | None:
    """The entry, if it is there and whole."""
    body = read_sealed(cache / f"{key}.json")
    if body is None or body.get("version") != VERSION:
        return None
    entry = CacheEntry(**body)
    pixels = int(torch.Size(entry.shape).numel())
    lengths = [pixels, pixels // frame.channels][: 2 if frame.classes else 1]
    sizes = [file.stat().st_size if file.is_file() else -1 for file in _raw_files(cache, key)]
    return entry if sizes[: len(lengths)] == lengths else None


def _build(files: Files, rows: Sequence[ImagePaths], frame: Frame, cache: Path) -> tuple[str, CacheEntry]:
    """Decode everything; a row that fails is noted in the entry. Nothing is stored when all of them do."""
    digests: Digests = {}
    hashes: list[str] = []
    ids: list[str] = []
    bad: list[list[Any]] = []
    habits: list[list[Any]] = []
    with storage(cache), ExitStack() as stack:
        _sweep(cache)
        images = stack.enter_context(_part(cache))
        masks = stack.enter_context(_part(cache)) if frame.classes else None
        for position, done in enumerate(_decode_all(files, rows, frame)):
            digests |= done.digests
            bad += [[position, reason] for reason in done.problems]
            if done.image is None:
                continue
            images.stream.write(done.image.data)
            if masks is not None and done.mask is not None:
                masks.stream.write(done.mask.data)
            hashes.append(done.hash)
            ids.append(rows[position].name)
            habits += [[position, habit] for habit in done.habits]
        # of what was really read: a file that changed since its stamp was taken gets the key of its new content
        key = _cache_key(rows, frame, digests)
        entry = CacheEntry(VERSION, [len(ids), frame.size, frame.size, frame.channels], hashes, ids, bad, habits)
        if ids:
            _publish(cache, key, entry, [part for part in (images, masks) if part is not None])
    return key, entry


def _decode_all(files: Files, rows: Sequence[ImagePaths], frame: Frame) -> Iterator[_DecodedRow]:
    with ThreadPoolExecutor(2) as pool:
        for start in range(0, len(rows), CHUNK):
            for decoded in pool.map(partial(_decode_rows, files, frame), _by_file(rows[start : start + CHUNK])):
                yield from decoded


def _by_file(rows: Sequence[ImagePaths]) -> list[list[ImagePaths]]:
    """The rows, those of one file that follow each other together: it is opened once."""
    return [list(some) for _, some in groupby(rows, key=lambda row: (row.image, row.mask))]


def _decode_rows(files: Files, frame: Frame, rows: Sequence[ImagePaths]) -> list[_DecodedRow]:
    """The rows of one file, and of one file of masks."""
    digests: Digests = {}
    parts = [row.part for row in rows]
    image_path, mask_path = rows[0].image, rows[0].mask
    images = _decode_file(decode.decode_parts, files, image_path, frame, parts, digests)
    if not mask_path:
        return [_joined(image, None, "", digests) for image in images]
    masks = _decode_file(decode.decode_mask_parts, files, mask_path, frame, parts, digests)
    mask_name = rows[0].shown(mask_path)
    return [_joined(image, mask, mask_name, digests) for image, mask in zip(images, masks, strict=True)]


def _decode_file(
    decoder: Decoder, files: Files, path: str, frame: Frame, parts: Sequence[str], digests: Digests
) -> list[Decoded | DataError]:
    try:
        data = _read_and_digest(files, path, digests)
    except DataError as error:
        return [error] * len(parts)
    return decoder(data, path, frame, parts)


def _joined(image: Decoded | DataError, mask: Decoded | DataError | None, name: str, digests: Digests) -> _DecodedRow:
    """An image and its mask, which errors call by its name, as a row."""
    problems = [image.what] if isinstance(image, DataError) else []
    if isinstance(mask, DataError):
        problems.append(f"mask {name}: {mask.what}")
    if isinstance(image, Decoded) and isinstance(mask, Decoded):
        if image.size != mask.size:
            is_, should_be = (f"{width} x {height} pixels" for width, height in (mask.size, image.size))
            problems.append(f"its mask {name} is {is_}, but the image is {should_be}")
        elif image.placement and mask.placement and image.placement != mask.placement:
            problems.append(f"its mask {name} lies elsewhere in the patient: their affines differ")
    if problems or isinstance(image, DataError) or isinstance(mask, DataError):
        return _DecodedRow(None, None, "", tuple(problems), digests)
    habits = tuple(one.habit for one in (image, mask) if one is not None and one.habit)
    pixels = image.pixels
    return _DecodedRow(pixels, mask.pixels if mask else None, digest(pixels.data), (), digests, habits)


def _read_and_digest(files: Files, path: str, digests: Digests) -> bytes:
    data = files.read(path)
    digests[path] = digest(data)
    return data


def _publish(cache: Path, key: str, entry: CacheEntry, parts: Iterable[Draft]) -> None:
    for part, target in zip(parts, _raw_files(cache, key), strict=False):
        part.publish(target)
    write_sealed(cache / f"{key}.json", asdict(entry))


def read_sealed(file: Path) -> dict[str, Any] | None:
    """The body of a sealed JSON file; None when it is absent or damaged, which only costs the work again."""
    try:
        content = json.loads(file.read_bytes())
        body: dict[str, Any] = content["body"]
        return body if content["seal"] == digest(_canonical(body)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_sealed(file: Path, body: dict[str, Any]) -> None:
    text = _canonical(body)
    with _part(file.parent) as part:
        part.stream.write(b'{"seal":"%b","body":%b}' % (digest(text).encode(), text))
        part.publish(file)


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _part(cache: Path) -> AbstractContextManager[Draft]:
    """A new file of our own in the cache folder."""
    return draft_file(cache / f"part-{uuid4().hex}")


def _sweep(cache: Path) -> None:
    for file in cache.glob("part-*"):
        try:
            if time.time() - file.stat().st_mtime > ABANDONED:
                file.unlink()
        except FileNotFoundError:  # another process renamed or swept it
            continue


@contextmanager
def storage(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"The disk of the image cache {cache} is full.", hint="Free some space, or choose another cache folder."
            ) from error
        raise StorageError(
            f"The image cache {cache} cannot be written ({error.strerror or error}).",
            hint="Choose a cache folder that you may write to.",
        ) from error
