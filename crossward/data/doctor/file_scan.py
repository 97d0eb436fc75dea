"""A look at the files of a folder without decoding them: formats, sizes, bits, colours, orientation, modalities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from crossward.data.archives import Files, FolderFiles, open_files
from crossward.data.decode import MOST_PIXELS
from crossward.data.doctor.layout import Layout, sampled
from crossward.data.file_format import DICOM, HEAD, NIFTI, PICTURES, content_format
from crossward.data.site_key import shown_name
from crossward.errors import DataError

BITS = {"1": 1, "I;16": 16, "I;16B": 16, "I": 32, "F": 32}  # of a channel, by Pillow's mode; others have 8
MEASURED = 50  # pictures of more than 8 bits whose values are looked at


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
    largest: int = 0  # value of the pictures of 16 bits; 0 if there are none
    bits_said: bool = False  # whether one of these says how many of its bits are in use

    def document(self) -> dict[str, Any]:
        return asdict(self)


def scan_files(path: Path, layout: Layout) -> FileFacts:
    """What the files below `path` are."""
    top = path if path.is_dir() or path.suffix.lower() == ".zip" else path.parent
    if not layout.files:
        return FileFacts(others=layout.others)
    counts = _Counts()
    with open_files(top) as files:
        chosen = sampled(layout.files)
        for name in chosen:
            kind = _kind(files, name)
            counts.formats.update([kind] if kind else [])
            if isinstance(files, FolderFiles) and files.leads_out(name):
                counts.links_out.append(shown_name(name, private=layout.settings["source"] in ("dicom", "nifti")))
            if kind == DICOM:
                counts.add_dicom(files, name)
            elif kind == NIFTI:
                counts.add_volume(files, name)
            elif kind in PICTURES:
                counts.add_picture(files, name)
    return FileFacts(
        files=len(layout.files),
        looked_at=len(chosen),
        others=layout.others,
        formats=dict(counts.formats.most_common()),
        sizes=dict(counts.sizes.most_common()),
        bits={f"{bits} bits": n for bits, n in counts.bits.items()},
        modes=dict(counts.modes.most_common()),
        modalities=dict(counts.modalities.most_common()),
        turned=tuple(counts.turned),
        portrait=counts.shapes["portrait"],
        landscape=counts.shapes["landscape"],
        links_out=tuple(counts.links_out),
        largest=counts.largest,
        bits_said=counts.bits_said,
    )


@dataclass
class _Counts:
    """What was counted so far."""

    formats: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    bits: Counter[int] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    modalities: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    turned: list[str] = field(default_factory=list)
    links_out: list[str] = field(default_factory=list)
    largest: int = 0
    bits_said: bool = False
    measured: int = 0

    def add_picture(self, files: Files, name: str) -> None:
        """A picture; one that cannot be opened is left out, which decoding says better."""
        from PIL import Image
        from PIL.ExifTags import Base

        try:
            data = files.read(name)
            with Image.open(BytesIO(data), formats=list(PICTURES)) as picture:
                width, height = picture.size
                turned = int(picture.getexif().get(Base.Orientation, 1)) not in (0, 1)
                if picture.mode.startswith("I") and self.measured < MEASURED and width * height <= MOST_PIXELS:
                    self.measured += 1
                    self.largest = max(self.largest, int(np.asarray(picture).max()))
                    self.bits_said |= b"sBIT" in data[:HEAD]
        except Exception:  # Pillow raises errors of every kind at damaged bytes
            return
        self.sizes.update([f"{width} x {height}"])
        self.modes.update([picture.mode])
        self.bits.update([BITS.get(picture.mode, 8)])
        self.shapes.update(["landscape" if width > height else "portrait" if width < height else "square"])
        self.turned += [name] if turned else []

    def add_dicom(self, files: Files, name: str) -> None:
        from crossward.data.dicom_reading import number, parse_dicom

        try:
            dataset = parse_dicom(files.read(name), pixels=False)
            found = str(getattr(dataset, "Modality", "") or "")
            self.modalities.update([found if found.isalnum() and len(found) <= 16 else "unknown"])
            if "Rows" in dataset:
                self.sizes.update([f"{number(dataset, 'Columns')} x {number(dataset, 'Rows')}"])
                self.bits.update([number(dataset, "BitsStored", number(dataset, "BitsAllocated", 16))])
        except DataError:
            self.modalities.update(["unreadable"])

    def add_volume(self, files: Files, name: str) -> None:
        from crossward.data.volumes import open_volume

        try:
            voxels = open_volume(files.read(name)).voxels
        except DataError:
            return
        self.sizes.update([" x ".join(map(str, voxels.shape))])
        self.bits.update([8 * voxels.dtype.itemsize])


def _kind(files: Files, name: str) -> str:
    try:
        return content_format(files.head(name, HEAD))
    except DataError:
        return ""
