"""The cache of decoded images: each dataset is decoded once into raw files that every process maps.

An entry is <key>.images, <key>.masks (segmentation) and <key>.json, the last written last: without it there is no
entry. The key is of the content, so that moved or touched files are found again and changed ones never are.

Files that nobody has read before are read once: they are hashed while they are decoded. <key>.rows tells that a reading
of such rows has begun. After that, the files whose stamps are not known are hashed first, as their images may be here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossward.core.bit_depth import PIXEL_TYPES
from crossward.core.image_size import sides
from crossward.data import decode
from crossward.data.archives import Files
from crossward.data.collection import map_images
from crossward.data.decode import Frame
from crossward.data.decode_pool import Piece, decoded_segments
from crossward.data.file_digests import FileDigests, Reasons
from crossward.data.reading_progress import reading
from crossward.data.sealed_files import new_part, read_sealed, storage, sweep, write_sealed
from crossward.data.segments import VERSION, Digests, Segment, cache_key, key_of, paths_of, segment_file, split_rows
from crossward.data.segments import ImagePaths as ImagePaths
from crossward.disk import Draft

GIVEN_UP = 7 * 24 * 3600  # s: a segment this old is of a reading that nobody goes on with


@dataclass(frozen=True)
class DecodedImages:
    images: Tensor  # (n, S, S, C) uint8, or uint16, of the rows that could be decoded, mapped
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
    digests = FileDigests(files, rows, cache)
    begun = cache / f"{cache_key(rows, frame, {})}.rows"
    is_first = not digests.met_before and not begun.exists()
    if not is_first:
        digests.read_rest()
    problems = [(place, reason) for place, row in enumerate(rows) for reason in _reasons(row, digests.unreadable)]
    usable = [place for place, row in enumerate(rows) if not _reasons(row, digests.unreadable)]
    wanted = [rows[place] for place in usable]
    key = cache_key(wanted, frame, digests.known)
    entry = None if is_first else _stored_entry(cache, key, frame)
    if entry is None:
        with storage(cache):
            begun.touch()
        key, entry, unread = _build(files, wanted, frame, cache, digests, is_first)
        problems += [(usable[place], reason) for place, reason in unread]
        lost = {place for place, _ in unread}
        usable = [place for position, place in enumerate(usable) if position not in lost]
        wanted = [rows[place] for place in usable]
    bad = {place for place, _ in entry.bad}
    problems += [(usable[place], reason) for place, reason in entry.bad]
    decoded_rows = tuple(place for position, place in enumerate(usable) if position not in bad)
    images, masks = _raw_files(cache, key)
    shape = tuple(entry.shape)
    if not decoded_rows:
        none = torch.empty(shape, dtype=PIXEL_TYPES[frame.depth])
        return DecodedImages(none, None, (), None, (), tuple(sorted(problems)))
    return DecodedImages(
        map_images(images, shape, frame.depth),
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


def _raw_files(cache: Path, key: str) -> tuple[Path, Path]:
    return cache / f"{key}.images", cache / f"{key}.masks"


def _stored_entry(cache: Path, key: str, frame: Frame) -> CacheEntry | None:
    """The entry, if it is there and whole."""
    body = read_sealed(cache / f"{key}.json")
    if body is None or body.get("version") != VERSION:
        return None
    entry = CacheEntry(**body)
    pixels = int(torch.Size(entry.shape).numel())
    lengths = [pixels * frame.depth // 8, pixels // frame.channels][: 2 if frame.classes else 1]
    sizes = [file.stat().st_size if file.is_file() else -1 for file in _raw_files(cache, key)]
    return entry if sizes[: len(lengths)] == lengths else None


def _build(
    files: Files, rows: Sequence[ImagePaths], frame: Frame, cache: Path, known: FileDigests, is_first: bool
) -> tuple[str, CacheEntry, list[tuple[int, str]]]:
    """Decode everything; a row that fails is noted in the entry. Nothing is stored when all of them do. Rows of files
    that could not even be read are no part of the entry: they come back with their reasons. At the first reading nobody
    knows what the files hold, nor has stored a segment."""
    pieces = [Piece(some, "" if is_first else cache_key(some, frame, known.known)) for some in split_rows(rows, frame)]
    digests: Digests = {}
    keys = [piece.key for piece in pieces if piece.key]
    entry = CacheEntry(VERSION, [0, *sides(frame.size), frame.channels], [], [], [])
    with storage(cache), ExitStack() as stack:
        sweep(cache)
        sweep(cache, "segment-*", GIVEN_UP)
        images = stack.enter_context(new_part(cache))
        masks = stack.enter_context(new_part(cache)) if frame.classes else None
        count = stack.enter_context(reading("decoding images", len(rows)))
        segments = stack.enter_context(closing(decoded_segments(files, pieces, frame, cache)))
        start = 0
        for piece, segment in zip(pieces, segments, strict=True):
            read = {path: hashed for path, hashed in zip(paths_of(piece.rows), segment.digests) if hashed}
            for path, hashed in read.items():
                known.learn(path, hashed)
            digests |= read
            keys.append(key_of(segment, piece.rows, frame))
            images.stream.write(segment.images)
            if masks is not None:
                masks.stream.write(segment.masks)
            _add_segment(entry, piece, segment, start)
            start += len(piece.rows)
            count(len(piece.rows))
        known.write()
        entry, unread, readable = _without_unread(entry, rows, digests)
        # of what was really read: a file that changed since its stamp was taken gets the key of its new content
        key = cache_key(readable, frame, digests)
        if entry.ids:
            _publish(cache, key, entry, [part for part in (images, masks) if part is not None])
        _remove_segments(cache, keys)
    return key, entry, unread


def _add_segment(entry: CacheEntry, piece: Piece, segment: Segment, start: int) -> None:
    """Add what is known of the rows of a piece, the first of which is row number `start`."""
    bad = {place for place, _ in segment.bad}
    entry.hashes.extend(segment.hashes)
    entry.ids.extend(row.name for place, row in enumerate(piece.rows) if place not in bad)
    entry.bad.extend([start + place, reason] for place, reason in segment.bad)
    entry.habits.extend([start + place, habit] for place, habit in segment.habits)
    entry.shape[0] = len(entry.ids)


def _without_unread(
    entry: CacheEntry, rows: Sequence[ImagePaths], digests: Digests
) -> tuple[CacheEntry, list[tuple[int, str]], list[ImagePaths]]:
    """The entry without the rows of files that have no digest, these with their reasons, and the other rows."""
    lost = {place for place, row in enumerate(rows) if not all(path in digests for path in row.files)}
    unread = [(place, reason) for place, reason in entry.bad if place in lost]
    kept = [place for place in range(len(rows)) if place not in lost]
    place_of = {place: position for position, place in enumerate(kept)}
    bad = [[place_of[place], reason] for place, reason in entry.bad if place in place_of]
    habits = [[place_of[place], habit] for place, habit in entry.habits if place in place_of]
    return replace(entry, bad=bad, habits=habits), unread, [rows[place] for place in kept]


def _remove_segments(cache: Path, keys: Iterable[str]) -> None:
    for key in keys:
        segment_file(cache, key).unlink(missing_ok=True)


def _publish(cache: Path, key: str, entry: CacheEntry, parts: Iterable[Draft]) -> None:
    for part, target in zip(parts, _raw_files(cache, key), strict=False):
        part.publish(target)
    write_sealed(cache / f"{key}.json", asdict(entry))
