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

Reasons = dict[str, str]


@dataclass(frozen=True)
class Row:
    image: str  # paths inside the Files
    mask: str = ""


@dataclass(frozen=True)
class Decoded:
    images: Tensor  # (n, S, S, C) uint8 of the rows that could be decoded, mapped
    masks: Tensor | None  # (n, S, S) uint8, mapped
    hashes: tuple[str, ...]
    file: Path | None
    kept: tuple[int, ...]  # which of the asked rows these are
    problems: tuple[tuple[int, str], ...]  # row and reason of the others
    notes: tuple[str, ...] = ()  # what a person should know of the masks


@dataclass(frozen=True)
class Entry:
    """The JSON beside the raw files."""

    version: int
    shape: list[int]
    hashes: list[str]
    ids: list[str]
    bad: list[list[Any]]  # [position among the rows, reason]
    habits: list[list[Any]] = field(default_factory=list)  # [position among the rows, habit of its mask]


@dataclass(frozen=True)
class _Done:
    """One decoded row: its pixels, or what is wrong; with the prints of the bytes that were really read."""

    image: Pixels | None
    mask: Pixels | None
    hash: str
    problems: tuple[str, ...]
    prints: Reasons
    habit: str = ""


def decoded(files: Files, rows: Sequence[Row], frame: Frame, cache: Path) -> Decoded:
    """Every row decoded, from the cache when it has them; with masks when the frame counts their classes."""
    with _storage(cache):
        cache.mkdir(parents=True, exist_ok=True)
    prints, unread = _prints(files, rows, cache)
    problems = [(place, reason) for place, row in enumerate(rows) for reason in _unread(row, unread)]
    usable = [place for place, row in enumerate(rows) if not _unread(row, unread)]
    wanted = [rows[place] for place in usable]
    key = _key(wanted, frame, prints)
    entry = _stored(cache, key, frame)
    if entry is None:
        key, entry = _build(files, wanted, frame, cache)
    bad = {place for place, _ in entry.bad}
    problems += [(usable[place], reason) for place, reason in entry.bad]
    kept = tuple(place for position, place in enumerate(usable) if position not in bad)
    (images, masks), shape = _raw(cache, key), tuple(entry.shape)
    if not kept:
        return Decoded(torch.empty(shape, dtype=torch.uint8), None, (), None, (), tuple(sorted(problems)))
    return Decoded(
        map_images(images, shape),
        map_images(masks, shape[:3]) if frame.classes else None,
        tuple(entry.hashes),
        images,
        kept,
        tuple(sorted(problems)),
        decode.notices((wanted[place].mask, habit) for place, habit in entry.habits),
    )


def digest(data: bytes | memoryview) -> str:
    """The hash of an image's pixels, or of a file."""
    return blake2b(data, digest_size=16).hexdigest()


def _unread(row: Row, unread: Reasons) -> list[str]:
    named = [(row.image, "")] + ([(row.mask, f"mask {row.mask}: ")] if row.mask else [])
    return [prefix + unread[path] for path, prefix in named if path in unread]


def _prints(files: Files, rows: Sequence[Row], cache: Path) -> tuple[Reasons, Reasons]:
    """The content hash of every file, remembered by its stamp, and why some could not be read."""
    file = cache / f"index-{digest(str(files.root.resolve()).encode())}.json"
    known: dict[str, list[Any]] = (_sealed(file) or {}).get("files", {})
    prints: Reasons = {}
    unread: Reasons = {}
    learned: dict[str, list[Any]] = {}
    for path in dict.fromkeys(path for row in rows for path in (row.image, row.mask) if path):
        try:
            stamp = list(files.stamp(path))
            if path in known and known[path][:-1] == stamp:
                prints[path] = known[path][-1]
                continue
            prints[path] = digest(files.read(path))
        except DataError as error:
            unread[path] = error.what
            continue
        if time.time_ns() - stamp[-1] > FRESH:
            learned[path] = [*stamp, prints[path]]
    if learned:
        with _storage(cache):
            _seal(file, {"root": str(files.root), "files": known | learned})
    return prints, unread


def _key(rows: Sequence[Row], frame: Frame, prints: Reasons) -> str:
    # entries of images that nothing was done to have the keys they always had; those of two-class masks knew no habits
    framing = {name: value for name, value in asdict(frame).items() if name != "prepare" or value}
    framing |= {"masks": 2} if frame.classes else {}  # as VERSION, of the decoding of masks alone
    state = blake2b(json.dumps([VERSION, framing]).encode(), digest_size=20)
    for row in rows:
        for path in (row.image, row.mask):
            state.update(json.dumps([path, prints.get(path, "")]).encode())
    return state.hexdigest()


def _raw(cache: Path, key: str) -> tuple[Path, Path]:
    return cache / f"{key}.images", cache / f"{key}.masks"


def _stored(cache: Path, key: str, frame: Frame) -> Entry | None:
    """The entry, if it is there and whole."""
    body = _sealed(cache / f"{key}.json")
    if body is None or body.get("version") != VERSION:
        return None
    entry = Entry(**body)
    pixels = int(torch.Size(entry.shape).numel())
    lengths = [pixels, pixels // frame.channels][: 2 if frame.classes else 1]
    found = [file.stat().st_size if file.is_file() else -1 for file in _raw(cache, key)]
    return entry if found[: len(lengths)] == lengths else None


def _build(files: Files, rows: Sequence[Row], frame: Frame, cache: Path) -> tuple[str, Entry]:
    """Decode everything; a row that fails is noted in the entry. Nothing is stored when all of them do."""
    prints: Reasons = {}
    hashes: list[str] = []
    ids: list[str] = []
    bad: list[list[Any]] = []
    habits: list[list[Any]] = []
    with _storage(cache), ExitStack() as stack:
        _sweep(cache)
        images = stack.enter_context(_part(cache))
        masks = stack.enter_context(_part(cache)) if frame.classes else None
        for position, done in enumerate(_all_done(files, rows, frame)):
            prints |= done.prints
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
        key = _key(rows, frame, prints)
        entry = Entry(VERSION, [len(ids), frame.size, frame.size, frame.channels], hashes, ids, bad, habits)
        if ids:
            _publish(cache, key, entry, [part for part in (images, masks) if part is not None])
    return key, entry


def _all_done(files: Files, rows: Sequence[Row], frame: Frame) -> Iterator[_Done]:
    with ThreadPoolExecutor(2) as pool:
        for start in range(0, len(rows), CHUNK):
            yield from pool.map(partial(_done, files, frame), rows[start : start + CHUNK])


def _done(files: Files, frame: Frame, row: Row) -> _Done:
    prints: Reasons = {}
    problems: list[str] = []
    image = mask = None
    size, mask_size, habit = (0, 0), (0, 0), ""
    try:
        image, size = decode.image(_noted(files, row.image, prints), row.image, frame)
    except DataError as error:
        problems.append(error.what)
    if row.mask:
        try:
            mask, mask_size, habit = decode.mask(_noted(files, row.mask, prints), row.mask, frame)
        except DataError as error:
            problems.append(f"mask {row.mask}: {error.what}")
        if image is not None and mask is not None and size != mask_size:
            is_, should_be = (f"{width} x {height} pixels" for width, height in (mask_size, size))
            problems.append(f"its mask {row.mask} is {is_}, but the image is {should_be}")
    if problems or image is None:
        return _Done(None, None, "", tuple(problems), prints)
    return _Done(image, mask, digest(image.data), (), prints, habit)


def _noted(files: Files, path: str, prints: Reasons) -> bytes:
    data = files.read(path)
    prints[path] = digest(data)
    return data


def _publish(cache: Path, key: str, entry: Entry, parts: Iterable[Draft]) -> None:
    for part, target in zip(parts, _raw(cache, key), strict=False):
        part.publish(target)
    _seal(cache / f"{key}.json", asdict(entry))


def _sealed(file: Path) -> dict[str, Any] | None:
    """The body of a sealed JSON file; None when it is absent or damaged, which only costs the work again."""
    try:
        content = json.loads(file.read_bytes())
        body: dict[str, Any] = content["body"]
        return body if content["seal"] == digest(_canonical(body)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _seal(file: Path, body: dict[str, Any]) -> None:
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
