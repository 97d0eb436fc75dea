"""The cache of decoded images: each dataset is decoded once into raw files that every process maps.

An entry is <key>.images, <key>.masks (segmentation) and <key>.json, the last written last: without it there is no
entry. The key is of the content, so that moved or touched files are found again and changed ones never are.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from crossward.data import decode
from crossward.data.archives import Files
from crossward.data.collection import map_images
from crossward.data.decode import Frame
from crossward.data.prepare import Pixels
from crossward.disk import Draft, draft_file
from crossward.errors import DataError, StorageError

VERSION = 1  # of the decoding and of the files: entries of another version are never found
CHUNK = 256  # rows in flight, which bounds the memory
FRESH = 2_000_000_000  # ns: a file may change again within one tick of its clock, so that its stamp proves nothing yet
ABANDONED = 24 * 3600  # s: a part file this old belongs to a process that was killed

Digests = dict[str, str]  # path -> hash of the file
Reasons = dict[str, str]  # path -> why it cannot be read


@dataclass(frozen=True)
class ImagePaths:
    image: str  # paths inside the Files
    mask: str = ""


@dataclass(frozen=True)
class DecodedImages:
    images: Tensor  # (n, S, S, C) uint8 of the rows that could be decoded, mapped
    masks: Tensor | None  # (n, S, S) uint8, mapped
    hashes: tuple[str, ...]
    file: Path | None
    rows: tuple[int, ...]  # which of the wanted rows these are
    problems: tuple[tuple[int, str], ...]  # row and reason of the others
    notes: tuple[str, ...] = ()  # what a person should know of the masks


@dataclass(frozen=True)
class CacheEntry:
    """The JSON beside the raw files."""

    version: int
    shape: list[int]
    hashes: list[str]
    ids: list[str]
    bad: list[list[Any]]  # [position among the rows, reason]
    habits: list[list[Any]] = field(default_factory=list)  # [position among the rows, habit of its mask]


@dataclass(frozen=True)
class _DecodedRow:
    """One decoded row: its pixels, or what is wrong; with the digests of the bytes that were really read."""

    image: Pixels | None
    mask: Pixels | None
    hash: str
    problems: tuple[str, ...]
    digests: Digests
    habit: str = ""


def decode_files(files: Files, rows: Sequence[ImagePaths], frame: Frame, cache: Path) -> DecodedImages:
    """Every row decoded, from the cache when it has them; with masks when the frame counts their classes."""
    with _storage(cache):
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
        decode.mask_notes((wanted[place].mask, habit) for place, habit in entry.habits),
    )


def digest(data: bytes | memoryview) -> str:
    """The hash of an image's pixels, or of a file."""
    return blake2b(data, digest_size=16).hexdigest()


def _reasons(row: ImagePaths, unreadable: Reasons) -> list[str]:
    named = [(row.image, "")] + ([(row.mask, f"mask {row.mask}: ")] if row.mask else [])
    return [prefix + unreadable[path] for path, prefix in named if path in unreadable]


def _digests(files: Files, rows: Sequence[ImagePaths], cache: Path) -> tuple[Digests, Reasons]:
    """The content hash of every file, remembered by its stamp, and why some could not be read."""
    file = cache / f"index-{digest(str(files.root.resolve()).encode())}.json"
    known: dict[str, list[Any]] = (_read_sealed(file) or {}).get("files", {})
    digests: Digests = {}
    unreadable: Reasons = {}
    learned: dict[str, list[Any]] = {}
    for path in dict.fromkeys(path for row in rows for path in (row.image, row.mask) if path):
        try:
            stamp = list(files.stamp(path))
            if path in known and known[path][:-1] == stamp:
                digests[path] = known[path][-1]
                continue
            digests[path] = digest(files.read(path))
        except DataError as error:
            unreadable[path] = error.what
            continue
        if time.time_ns() - stamp[-1] > FRESH:
            learned[path] = [*stamp, digests[path]]
    if learned:
        with _storage(cache):
            _write_sealed(file, {"root": str(files.root), "files": known | learned})
    return digests, unreadable


def _cache_key(rows: Sequence[ImagePaths], frame: Frame, digests: Digests) -> str:
    # entries of images that nothing was done to have the keys they always had; those of two-class masks knew no habits
    framing = {name: value for name, value in asdict(frame).items() if name != "prepare" or value}
    framing |= {"masks": 2} if frame.classes else {}  # as VERSION, of the decoding of masks alone
    state = blake2b(json.dumps([VERSION, framing]).encode(), digest_size=20)
    for row in rows:
        for path in (row.image, row.mask):
            state.update(json.dumps([path, digests.get(path, "")]).encode())
    return state.hexdigest()


def _raw_files(cache: Path, key: str) -> tuple[Path, Path]:
    return cache / f"{key}.images", cache / f"{key}.masks"


def _stored_entry(cache: Path, key: str, frame: Frame) -> CacheEntry | None:
    """The entry, if it is there and whole."""
    body = _read_sealed(cache / f"{key}.json")
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
    with _storage(cache), ExitStack() as stack:
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
            ids.append(rows[position].image)
            habits += [[position, done.habit]] if done.habit else []
        # of what was really read: a file that changed since its stamp was taken gets the key of its new content
        key = _cache_key(rows, frame, digests)
        entry = CacheEntry(VERSION, [len(ids), frame.size, frame.size, frame.channels], hashes, ids, bad, habits)
        if ids:
            _publish(cache, key, entry, [part for part in (images, masks) if part is not None])
    return key, entry


def _decode_all(files: Files, rows: Sequence[ImagePaths], frame: Frame) -> Iterator[_DecodedRow]:
    with ThreadPoolExecutor(2) as pool:
        for start in range(0, len(rows), CHUNK):
            yield from pool.map(partial(_decode_row, files, frame), rows[start : start + CHUNK])


def _decode_row(files: Files, frame: Frame, row: ImagePaths) -> _DecodedRow:
    digests: Digests = {}
    problems: list[str] = []
    image = mask = None
    size = (0, 0)
    mask_size = (0, 0)
    habit = ""
    try:
        image, size = decode.decode_image(_read_and_digest(files, row.image, digests), row.image, frame)
    except DataError as error:
        problems.append(error.what)
    if row.mask:
        try:
            mask, mask_size, habit = decode.decode_mask(_read_and_digest(files, row.mask, digests), row.mask, frame)
        except DataError as error:
            problems.append(f"mask {row.mask}: {error.what}")
        if image is not None and mask is not None and size != mask_size:
            is_, should_be = (f"{width} x {height} pixels" for width, height in (mask_size, size))
            problems.append(f"its mask {row.mask} is {is_}, but the image is {should_be}")
    if problems or image is None:
        return _DecodedRow(None, None, "", tuple(problems), digests)
    return _DecodedRow(image, mask, digest(image.data), (), digests, habit)


def _read_and_digest(files: Files, path: str, digests: Digests) -> bytes:
    data = files.read(path)
    digests[path] = digest(data)
    return data


def _publish(cache: Path, key: str, entry: CacheEntry, parts: Iterable[Draft]) -> None:
    for part, target in zip(parts, _raw_files(cache, key), strict=False):
        part.publish(target)
    _write_sealed(cache / f"{key}.json", asdict(entry))


def _read_sealed(file: Path) -> dict[str, Any] | None:
    """The body of a sealed JSON file; None when it is absent or damaged, which only costs the work again."""
    try:
        content = json.loads(file.read_bytes())
        body: dict[str, Any] = content["body"]
        return body if content["seal"] == digest(_canonical(body)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_sealed(file: Path, body: dict[str, Any]) -> None:
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
def _storage(cache: Path) -> Iterator[None]:
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
