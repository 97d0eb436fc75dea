"""The cache of decoded images: each dataset is decoded once into raw files that every process maps.

An entry is <key>.images, <key>.masks (segmentation) and <key>.json, the last written last: without it there is no
entry. The key is of the content, so that moved or touched files are found again and changed ones never are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossward.data import decode
from crossward.data.archives import Files
from crossward.data.collection import map_images
from crossward.data.decode import Frame
from crossward.data.decode_pool import Piece, decoded_segments
from crossward.data.reading_progress import reading
from crossward.data.sealed_files import SealedNotes, digest, new_part, read_sealed, storage, sweep, write_sealed
from crossward.data.segments import VERSION, Digests, cache_key, paths_of, segment_file, split_rows
from crossward.data.segments import ImagePaths as ImagePaths
from crossward.disk import Draft
from crossward.errors import DataError

FRESH = 2_000_000_000  # ns: a file may change again within one tick of its clock, so that its stamp proves nothing yet
GIVEN_UP = 7 * 24 * 3600  # s: a segment this old is of a reading that nobody goes on with

Reasons = dict[str, str]  # path -> why it cannot be read


@dataclass(frozen=True)
class DecodedImages:
    images: Tensor  # (n, S, S, C) uint8 of the rows that could be decoded, mapped
    masks: Tensor | None  # (n, S, S) uint8, mapped
    hashes: tuple[str, ...]
    file: Path | None
    rows: tuple[int, ...]  # which of the wanted rows these are
    problems: tuple[tuple[int, str], ...]  # row and reason of the others
    notes: tuple[str, ...] = ()  # what a person should know of the images and masks
    masks_file: Path | None = None


@dataclass(frozen=True)
class CacheEntry:
    """The JSON beside the raw files."""

    version: int
    shape: list[int]
    hashes: list[str]
    ids: list[str]
    bad: list[list[Any]]  # [position among the rows, reason]
    habits: list[list[Any]] = field(default_factory=list)  # [position among the rows, habit of its image or mask]


def decode_files(files: Files, rows: Sequence[ImagePaths], frame: Frame, cache: Path) -> DecodedImages:
    """Every row decoded, from the cache when it has them; with masks when the frame counts their classes."""
    with storage(cache):
        cache.mkdir(parents=True, exist_ok=True)
    digests, unreadable = _digests(files, rows, cache)
    problems = [(place, reason) for place, row in enumerate(rows) for reason in _reasons(row, unreadable)]
    usable = [place for place, row in enumerate(rows) if not _reasons(row, unreadable)]
    wanted = [rows[place] for place in usable]
    key = cache_key(wanted, frame, digests)
    entry = _stored_entry(cache, key, frame)
    if entry is None:
        key, entry = _build(files, wanted, frame, cache, digests)
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
        masks if frame.classes else None,
    )


def _habits(rows: Sequence[ImagePaths], entry: CacheEntry) -> Iterator[tuple[str, str]]:
    for place, habit in entry.habits:
        row = rows[place]
        yield (row.name if habit in decode.IMAGE_HABITS else row.name_of(row.mask)), habit


def _reasons(row: ImagePaths, unreadable: Reasons) -> list[str]:
    named = [(row.image, ""), *((mask, f"mask {row.name_of(mask)}: ") for mask in row.masks)]
    return [prefix + unreadable[path] for path, prefix in named if path in unreadable]


def _digests(files: Files, rows: Sequence[ImagePaths], cache: Path) -> tuple[Digests, Reasons]:
    """The content hash of every file, remembered by its stamp, and why some could not be read."""
    file = cache / f"index-{digest(str(files.root.resolve()).encode())}.json"
    notes = SealedNotes(file)
    digests: Digests = {}
    unreadable: Reasons = {}
    names = {path: row.name_of(path) for row in rows for path in row.files}
    with reading("looking at files", len(names)) as count:
        for path, name in names.items():
            count(1)
            try:
                stamp = list(files.stamp(path))
                if notes.known.get(name, [])[:-1] == stamp:
                    digests[path] = notes.known[name][-1]
                    continue
                digests[path] = digest(files.read(path))
            except DataError as error:
                unreadable[path] = error.what
                continue
            if time.time_ns() - stamp[-1] > FRESH:
                notes.learn(name, [*stamp, digests[path]])
    notes.write()
    return digests, unreadable


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


def _build(
    files: Files, rows: Sequence[ImagePaths], frame: Frame, cache: Path, expected: Digests
) -> tuple[str, CacheEntry]:
    """Decode everything; a row that fails is noted in the entry. Nothing is stored when all of them do. `expected` is
    what the files held when they were looked at."""
    pieces = [Piece(some, cache_key(some, frame, expected)) for some in split_rows(rows, frame)]
    digests: Digests = {}
    entry = CacheEntry(VERSION, [0, frame.size, frame.size, frame.channels], [], [], [])
    with storage(cache), ExitStack() as stack:
        sweep(cache)
        sweep(cache, "segment-*", GIVEN_UP)
        images = stack.enter_context(new_part(cache))
        masks = stack.enter_context(new_part(cache)) if frame.classes else None
        count = stack.enter_context(reading("decoding images", len(rows)))
        segments = stack.enter_context(closing(decoded_segments(files, pieces, frame, cache)))
        start = 0
        for piece, segment in zip(pieces, segments, strict=True):
            digests |= {path: known for path, known in zip(paths_of(piece.rows), segment.digests) if known}
            images.stream.write(segment.images)
            if masks is not None:
                masks.stream.write(segment.masks)
            bad = {place for place, _ in segment.bad}
            entry.hashes.extend(segment.hashes)
            entry.ids.extend(row.name for place, row in enumerate(piece.rows) if place not in bad)
            entry.bad.extend([start + place, reason] for place, reason in segment.bad)
            entry.habits.extend([start + place, habit] for place, habit in segment.habits)
            start += len(piece.rows)
            count(len(piece.rows))
        # of what was really read: a file that changed since its stamp was taken gets the key of its new content
        key = cache_key(rows, frame, digests)
        entry.shape[0] = len(entry.ids)
        if entry.ids:
            _publish(cache, key, entry, [part for part in (images, masks) if part is not None])
        _remove_segments(cache, pieces)
    return key, entry


def _remove_segments(cache: Path, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        segment_file(cache, piece.key).unlink(missing_ok=True)


def _publish(cache: Path, key: str, entry: CacheEntry, parts: Iterable[Draft]) -> None:
    for part, target in zip(parts, _raw_files(cache, key), strict=False):
        part.publish(target)
    write_sealed(cache / f"{key}.json", asdict(entry))
