"""A look at the files of a folder without decoding them: formats, sizes, bits, colours, orientation, modalities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossward.data.archives import Files, FolderFiles, open_files
from crossward.data.decode import MOST_PIXELS
from crossward.data.doctor.layout import Layout, sampled
from crossward.data.file_format import DICOM, HEAD, NIFTI, PICTURES, content_format
from crossward.data.site_key import shown_name
from crossward.errors import DataError

BITS = {"1": 1, "I;16": 16, "I;16B": 16, "I": 32, "F": 32}  # of a channel, by Pillow's mode; others have 8
MEASURED = 50  # files of more than 8 bits whose values are looked at
MEASURED_SIDE = 512  # pixels of each side of these, evenly over all
EIGHT_BITS = 256  # grey levels


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
    measured: int = 0  # files of more than 8 bits whose values were looked at
    fine: int = 0  # of these, those that show more grey levels than 8 bits have

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
        measured=counts.measured,
        fine=counts.fine,
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
    fine: int = 0

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
                    values = np.asarray(picture)
                    self.measure(values)
                    self.largest = max(self.largest, int(values.max()))
                    self.bits_said |= b"sBIT" in data[:HEAD]
        except Exception:  # Pillow raises errors of every kind at damaged bytes
            return
        self.sizes.update([f"{width} x {height}"])
        self.modes.update([picture.mode])
        self.bits.update([BITS.get(picture.mode, 8)])
        self.shapes.update(["landscape" if width > height else "portrait" if width < height else "square"])
        self.turned += [name] if turned else []

    def measure(self, values: NDArray[Any]) -> None:
        """Look at (H, W) values of a file of more than 8 bits."""
        down, right = (max(1, side // MEASURED_SIDE) for side in values.shape)
        self.measured += 1
        self.fine += len(np.unique(values[::down, ::right])) > EIGHT_BITS

    def add_dicom(self, files: Files, name: str) -> None:
        from crossward.data.dicom_reading import number, parse_dicom

        try:
            data = files.read(name)
            dataset = parse_dicom(data, pixels=False)
            found = str(getattr(dataset, "Modality", "") or "")
            self.modalities.update([found if found.isalnum() and len(found) <= 16 else "unknown"])
            if "Rows" not in dataset:
                return
            bits = number(dataset, "BitsStored", number(dataset, "BitsAllocated", 16))
            self.sizes.update([f"{number(dataset, 'Columns')} x {number(dataset, 'Rows')}"])
            self.bits.update([bits])
        except DataError:
            self.modalities.update(["unreadable"])
            return
        if bits > 8 and self.measured < MEASURED:
            self._measure_dicom(data)

    def _measure_dicom(self, data: bytes) -> None:
        """Look at the first frame by its own window; one that cannot be decoded is left out, which decoding says."""
        from crossward.data.dicom_pixels import open_dicom

        try:
            pixels, _ = open_dicom(data, most_pixels=MOST_PIXELS, burned_in=True).pixels(0, None, depth=16)
        except DataError:
            return
        if pixels.ndim == 2:
            self.measure(pixels)

    def add_volume(self, files: Files, name: str) -> None:
        from crossward.data.volumes import open_volume

        try:
            volume = open_volume(files.read(name))
        except DataError:
            return
        voxels = volume.voxels
        if voxels.dtype.itemsize > 1 and self.measured < MEASURED:
            self.measure(volume.slice("axial", volume.count("axial") // 2))
        self.sizes.update([" x ".join(map(str, voxels.shape))])
        self.bits.update([8 * voxels.dtype.itemsize])


def _kind(files: Files, name: str) -> str:
    try:
        return content_format(files.head(name, HEAD))
    except DataError:
        return ""
