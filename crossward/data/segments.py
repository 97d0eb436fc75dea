"""Segments: a cache entry is decoded in pieces of some rows, each stored by itself, so that a reading that was stopped
goes on where it was.

A segment is known by its rows, by what they become, and by the content of their files. This module needs no torch:
processes that decode start in a fraction of a second.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from crossward.core.image_size import sides
from crossward.data import decode
from crossward.data.archives import Files
from crossward.data.decode import Decoded, Frame
from crossward.data.prepare import Pixels
from crossward.data.sealed_files import digest, new_part, opened_seal, sealed
from crossward.data.site_key import shown_name
from crossward.errors import DataError

VERSION = 2  # of the decoding and of the files: entries of another version are never found
PARTS_VERSION = 1  # the same of DICOM and volumes
ROWS = 64  # of a segment, unless its last file holds more
MOST_BYTES = 32 << 20  # of the pixels of a segment, which bounds the memory

Digests = dict[str, str]  # path -> hash of the file
Decoder = Callable[[bytes, str, Frame, Sequence[str]], list[Decoded | DataError]]


@dataclass(frozen=True)
class ImagePaths:
    image: str  # paths inside the Files
    mask: str = ""
    part: str = ""  # of a file with several images: the number of a frame, or "axial:17"
    private: bool = False  # neither is called by its path, whatever its extension says
    more_masks: Sequence[
        str
    ] = ()  # of the same image, one for each of its objects: the mask is what any of them covers

    @property
    def masks(self) -> tuple[str, ...]:
        return (self.mask, *self.more_masks) if self.mask else ()

    @property
    def files(self) -> tuple[str, ...]:
        """The image, then its masks."""
        return (self.image, *self.masks)

    def name_of(self, path: str) -> str:
        """What one of its files is called outside of their folder, where it may be named after a patient."""
        return shown_name(path, private=self.private)

    @property
    def name(self) -> str:
        """What the image is called outside of its folder."""
        return f"{self.name_of(self.image)}/{self.part}" if self.part else self.name_of(self.image)


@dataclass(frozen=True)
class Segment:
    """Some rows, decoded. Positions are those among these rows."""

    hashes: list[str]  # of the rows that could be decoded
    bad: list[list[Any]]  # [position, reason]
    habits: list[list[Any]]  # [position, habit of its image or mask]
    digests: list[str]  # of the bytes that were really read, file by file in order; "" of files that could not be read
    images: bytes  # one after the other
    masks: bytes = b""


@dataclass(frozen=True)
class _DecodedRow:
    image: Pixels | None
    mask: Pixels | None
    problems: tuple[str, ...] = ()
    habits: tuple[str, ...] = ()


def cache_key(rows: Sequence[ImagePaths], frame: Frame, digests: Mapping[str, str]) -> str:
    """What names these rows, decoded so, from files of this content."""
    # entries of images that nothing was done to have the keys they always had; those of two-class masks knew no habits
    defaults = asdict(Frame(1))
    later = ("prepare", "max_pixels", "burned_in", "depth")
    framing = {name: value for name, value in asdict(frame).items() if name not in later or value != defaults[name]}
    framing |= {"masks": 2} if frame.classes else {}  # as VERSION, of the decoding of masks alone
    framing |= {"centre": 2} if frame.fit.startswith("centre:") else {}  # entries of before did not know small images
    state = blake2b(json.dumps([VERSION, framing]).encode(), digest_size=20)
    for row in rows:
        for path in (row.image, row.mask):
            state.update(json.dumps([path, digests.get(path, "")]).encode())
        for path in row.more_masks:
            state.update(json.dumps(["and", path, digests.get(path, "")]).encode())
        if row.part:
            state.update(json.dumps([row.part, PARTS_VERSION]).encode())
    return state.hexdigest()


def paths_of(rows: Sequence[ImagePaths]) -> list[str]:
    """Every file of the rows once, in order."""
    return list(dict.fromkeys(path for row in rows for path in row.files))


def split_rows(rows: Sequence[ImagePaths], frame: Frame) -> list[Sequence[ImagePaths]]:
    """The rows, cut into segments: small ones first, by which the time of all is judged, then larger ones. The rows of
    one file stay together as far as the memory allows: it is opened once."""
    most = max(1, MOST_BYTES // (math.prod(sides(frame.size)) * (frame.channels * frame.depth // 8 + 1)))
    wanted = 1
    start = 0
    pieces: list[Sequence[ImagePaths]] = []
    for end in range(1, len(rows) + 1):
        length = end - start
        file_ends = end == len(rows) or rows[end].files != rows[end - 1].files
        if length == most or (file_ends and length >= wanted) or end == len(rows):
            pieces.append(rows[start:end])
            start = end
            wanted = min(2 * wanted, ROWS)
    return pieces


def decode_segment(files: Files, frame: Frame, rows: Sequence[ImagePaths]) -> Segment:
    """The rows, decoded here and now."""
    digests: Digests = {}
    decoded = [row for some in by_file(rows) for row in _decode_file_rows(files, frame, some, digests)]
    usable = [row for row in decoded if row.image is not None]
    return Segment(
        hashes=[digest(row.image.data) for row in usable if row.image is not None],
        bad=[[place, reason] for place, row in enumerate(decoded) for reason in row.problems],
        habits=[[place, habit] for place, row in enumerate(decoded) for habit in row.habits],
        digests=[digests.get(path, "") for path in paths_of(rows)],
        images=b"".join(row.image.tobytes() for row in usable if row.image is not None),
        masks=b"".join(row.mask.tobytes() for row in usable if row.mask is not None),
    )


def key_of(segment: Segment, rows: Sequence[ImagePaths], frame: Frame) -> str:
    """The key of a segment by what was really read."""
    return cache_key(rows, frame, dict(zip(paths_of(rows), segment.digests, strict=True)))


def joined_segments(pieces: Sequence[tuple[Sequence[ImagePaths], Segment]]) -> Segment:
    """Rows with their segments, one after the other, as one segment."""
    segments = [segment for _, segment in pieces]
    bad: list[list[Any]] = []
    habits: list[list[Any]] = []
    digests: Digests = {}
    start = 0
    for rows, segment in pieces:
        bad += [[start + place, reason] for place, reason in segment.bad]
        habits += [[start + place, habit] for place, habit in segment.habits]
        digests |= dict(zip(paths_of(rows), segment.digests, strict=True))
        start += len(rows)
    return Segment(
        hashes=[each for segment in segments for each in segment.hashes],
        bad=bad,
        habits=habits,
        digests=list(digests.values()),
        images=b"".join(segment.images for segment in segments),
        masks=b"".join(segment.masks for segment in segments),
    )


def by_file(rows: Sequence[ImagePaths]) -> list[list[ImagePaths]]:
    """The rows, those of one file that follow each other together: it is opened once."""
    return [list(some) for _, some in groupby(rows, key=lambda row: row.files)]


def segment_file(cache: Path, key: str) -> Path:
    return cache / f"segment-{key}"


def store_segment(cache: Path, key: str, segment: Segment) -> None:
    """Store a segment. It need not outlive a power cut: its content is checked when it is read."""
    about = {name: value for name, value in vars(segment).items() if name not in ("images", "masks")}
    lengths = {"images": len(segment.images), "masks": len(segment.masks)}
    content = digest(segment.images + segment.masks)
    with new_part(cache) as part:
        part.stream.write(sealed(about | {"lengths": lengths, "content": content}) + b"\n")
        part.stream.write(segment.images)
        part.stream.write(segment.masks)
        part.publish(segment_file(cache, key), durable=False)


def stored_segment(cache: Path, key: str) -> Segment | None:
    """A stored segment; None if it is absent or damaged."""
    try:
        head, _, pixels = segment_file(cache, key).read_bytes().partition(b"\n")
    except OSError:
        return None
    body = opened_seal(head)
    if body is None or digest(pixels) != body.pop("content"):
        return None
    images = body.pop("lengths")["images"]
    return Segment(**body, images=pixels[:images], masks=pixels[images:])


def _decode_file_rows(files: Files, frame: Frame, rows: Sequence[ImagePaths], digests: Digests) -> list[_DecodedRow]:
    """The rows of one file, and of its masks."""
    parts = [row.part for row in rows]
    images = _decode_file(decode.decode_parts, files, rows[0].image, frame, parts, digests)
    by_mask = [
        [
            (rows[0].name_of(path), mask)
            for mask in _decode_file(decode.decode_mask_parts, files, path, frame, parts, digests)
        ]
        for path in rows[0].masks
    ]
    return [_joined(image, [masks[place] for masks in by_mask]) for place, image in enumerate(images)]


def _decode_file(
    decoder: Decoder, files: Files, path: str, frame: Frame, parts: Sequence[str], digests: Digests
) -> list[Decoded | DataError]:
    try:
        data = files.read(path)
    except DataError as error:
        return [error] * len(parts)
    digests[path] = digest(data)
    return decoder(data, path, frame, parts)


def _joined(image: Decoded | DataError, masks: Sequence[tuple[str, Decoded | DataError]]) -> _DecodedRow:
    """An image and its masks, which errors call by their names, as a row."""
    problems = [image.what] if isinstance(image, DataError) else []
    problems += [problem for name, mask in masks if (problem := _mask_problem(image, name, mask))]
    read = [mask for _, mask in masks if isinstance(mask, Decoded)]
    if problems or isinstance(image, DataError):
        return _DecodedRow(None, None, tuple(problems))
    habits = tuple(dict.fromkeys(one.habit for one in (image, *read) if one.habit))
    return _DecodedRow(image.pixels, np.maximum.reduce([mask.pixels for mask in read]) if read else None, (), habits)


def _mask_problem(image: Decoded | DataError, name: str, mask: Decoded | DataError) -> str:
    """Why a mask cannot be that of the image; empty if it can."""
    if isinstance(mask, DataError):
        return f"mask {name}: {mask.what}"
    if isinstance(image, DataError):
        return ""
    if image.size != mask.size:
        is_, should_be = (f"{width} x {height} pixels" for width, height in (mask.size, image.size))
        return f"its mask {name} is {is_}, but the image is {should_be}"
    if image.placement and mask.placement and image.placement != mask.placement:
        return f"its mask {name} lies elsewhere in the patient: their affines differ"
    return ""
