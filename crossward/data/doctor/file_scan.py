"""A look at the files of a folder without decoding them: formats, sizes, bits, colours, orientation, modalities."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from crossward.data.archives import Files, open_files
from crossward.data.doctor.layout import Layout, sampled
from crossward.data.file_format import DICOM, HEAD, NAMED_AFTER_PATIENTS, PICTURES, content_format
from crossward.data.site_key import shown_name
from crossward.errors import DataError

BITS = {"1": 1, "I;16": 16, "I;16B": 16, "I": 32, "F": 32}  # of a channel, by Pillow's mode; others have 8
SHOWN = 5


@dataclass(frozen=True)
class FileFacts:
    """What the files are; of many files, so many as were looked at."""

    files: int = 0
    looked_at: int = 0
    others: int = 0  # that are no images
    formats: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)  # "512 x 512" -> files
    bits: Mapping[str, int] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)  # colours, as Pillow calls them
    modalities: Mapping[str, int] = field(default_factory=dict)  # of DICOM
    turned: tuple[str, ...] = ()  # pictures whose camera was turned, by EXIF
    portrait: int = 0
    landscape: int = 0
    links_out: tuple[str, ...] = ()  # links that lead out of the folder, as they are called outside of it

    def document(self) -> dict[str, Any]:
        return asdict(self)


def scan_files(path: Path, layout: Layout) -> FileFacts:
    """What the files below `path` are."""
    top = path if path.is_dir() or path.suffix.lower() == ".zip" else path.parent
    if not layout.files:
        return FileFacts(others=layout.others)
    sizes: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    modalities: Counter[str] = Counter()
    turned: list[str] = []
    links_out: list[str] = []
    shapes: Counter[str] = Counter()
    formats: Counter[str] = Counter()
    with open_files(top) as files:
        chosen = sampled(layout.files)
        for name in chosen:
            kind = _kind(files, name)
            formats.update([kind] if kind else [])
            if _leads_out(top, name):
                links_out.append(shown_name(name, private=kind in NAMED_AFTER_PATIENTS))
            if kind == DICOM:
                modalities.update([_modality(files, name)])
            elif kind in PICTURES and (seen := _picture(files, name)) is not None:
                width, height, mode, orientation = seen
                sizes.update([f"{width} x {height}"])
                modes.update([mode])
                shapes.update(["landscape" if width > height else "portrait" if width < height else "square"])
                turned += [name] if orientation not in (0, 1) else []
    return FileFacts(
        files=len(layout.files),
        looked_at=len(chosen),
        others=layout.others,
        formats=dict(formats.most_common()),
        sizes=dict(sizes.most_common()),
        bits={f"{bits} bits": n for bits, n in _bits(modes).items()},
        modes=dict(modes.most_common()),
        modalities=dict(modalities.most_common()),
        turned=tuple(turned),
        portrait=shapes["portrait"],
        landscape=shapes["landscape"],
        links_out=tuple(links_out),
    )


def _bits(modes: Counter[str]) -> Counter[int]:
    bits: Counter[int] = Counter()
    for mode, count in modes.items():
        bits[BITS.get(mode, 8)] += count
    return bits


def _kind(files: Files, name: str) -> str:
    try:
        return content_format(files.head(name, HEAD))
    except DataError:
        return ""


def _picture(files: Files, name: str) -> tuple[int, int, str, int] | None:
    """Width, height, mode and EXIF orientation; None if the file cannot be opened, which decoding says better."""
    from PIL import Image
    from PIL.ExifTags import Base

    try:
        with Image.open(BytesIO(files.read(name)), formats=list(PICTURES)) as picture:
            return *picture.size, picture.mode, int(picture.getexif().get(Base.Orientation, 1))
    except Exception:  # Pillow raises errors of every kind at damaged bytes
        return None


def _modality(files: Files, name: str) -> str:
    from crossward.data.dicom_reading import parse_dicom

    try:
        found = str(getattr(parse_dicom(files.read(name), pixels=False), "Modality", "") or "")
    except DataError:
        return "unreadable"
    return found if found.isalnum() and len(found) <= 16 else "unknown"


def _leads_out(top: Path, name: str) -> bool:
    """Whether a file of a folder is a link to somewhere else; nothing in an archive is one."""
    return top.is_dir() and not os.path.realpath(top / name).startswith(os.path.realpath(top) + os.sep)
