"""Recognising what a folder, an archive or a file of images is, and how it is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from crossward.data.archives import Files, open_files
from crossward.data.decode import is_image
from crossward.data.doctor.label_layout import label_layout
from crossward.data.doctor.layout import Layout, Reading, sampled
from crossward.data.doctor.picture_layout import picture_layout
from crossward.data.doctor.table_layout import folder_of_tables, is_table, table_layout
from crossward.data.doctor.ways_forward import NO_CLASSES, unread_files
from crossward.data.file_format import (
    DICOM,
    DICOMDIR,
    HEAD,
    NAMED_AFTER_PATIENTS,
    NIFTI,
    content_format,
    is_without_extension,
    name_format,
)
from crossward.data.site_key import shown_name
from crossward.data.sources.volume_files import contrasts, pair_volumes
from crossward.errors import DataError


def find_layout(path: Path) -> Layout:
    """How `path`, a folder, an archive, a table or arrays, is laid out."""
    if not path.exists():
        raise DataError(f"There is no {path}.", hint="Give a folder, a .zip, a .csv or an .npz file.")
    if path.is_file() and path.suffix.lower() == ".npz":
        return Layout({"source": "npz", "path": str(path)})
    if path.is_file() and is_table(path.name):
        with open_files(path.parent) as files:
            return table_layout(path, path.parent, files.listing())
    if path.is_file() and _content(path) in (DICOM, DICOMDIR):
        return _dicom_file(path)
    if path.is_file() and (kind := _content(path)):
        raise DataError(
            f"{path} is one file, of the format {kind}.", hint=f"Give the folder that holds it: {path.parent}"
        )
    with open_files(path) as files:
        return _folder_layout(path, files, files.listing())


def _content(path: Path) -> str:
    with path.open("rb") as stream:
        return content_format(stream.read(HEAD))


def _dicom_file(path: Path) -> Layout:
    """One file, or those that a DICOMDIR names."""
    from crossward.data.sources.dicom import open_dicom_files

    with open_dicom_files(path) as (files, listing):
        labels = label_layout(path, files, listing, "dicom")
    found = Layout({}, tuple(listing), {DICOM: len(listing)}, ways=(NO_CLASSES,))
    return _read_by(found, "dicom", path, labels or Reading())


def _folder_layout(path: Path, files: Files, listing: Sequence[str]) -> Layout:
    arrays = [name for name in listing if name.lower().endswith(".npz")]
    images = [name for name in listing if is_image(name) or is_without_extension(name)]
    if not images and arrays and path.is_dir():
        return _arrays(path, arrays)
    formats, misnamed = _formats(files, images)
    unread = unread_files(listing)
    ways = (*unread, NO_CLASSES)
    found = Layout({}, tuple(images), formats, misnamed, {}, len(listing) - len(images), ways=ways)
    if not formats:
        counted = [f"{suffix or 'no extension'}: {n} file(s)" for suffix, n in _suffixes(listing).most_common(10)]
        raise DataError(
            f"{path} holds no image that can be read.",
            details=[*counted, *unread],
            hint="Images are JPEG, PNG, TIFF, BMP, GIF, WebP, JPEG 2000, DICOM or NIfTI files.",
        )
    for source, names in (("dicom", (DICOM, DICOMDIR)), ("nifti", (NIFTI,))):
        if sum(formats.get(name, 0) for name in names) > sum(formats.values()) / 2:
            reading = label_layout(path, files, listing, source) or Reading()
            if source == "nifti":
                _choose_contrast(reading, images)
            return _read_by(found, source, path, reading)
    table, unlabelled = folder_of_tables(path, listing)
    if table is not None:
        return replace(found, settings=table.settings, files=table.files, reasons=table.reasons, remarks=table.remarks)
    reading = picture_layout(path, [name for name in images if is_image(name)])
    reading.remarks += unlabelled
    ways = (*(f"{remark.what}: {remark.deal}" for remark in unlabelled), *found.ways)
    return _read_by(replace(found, ways=ways), "folder", path, reading)


def _read_by(found: Layout, source: str, path: Path, reading: Reading) -> Layout:
    settings = {"source": source, "path": str(path), **reading.settings}
    return replace(found, settings=settings, reasons=reading.reasons, remarks=tuple(reading.remarks))


def _choose_contrast(reading: Reading, paths: Sequence[str]) -> None:
    """Choose one of the images of each case, where it has several of different contrasts."""
    volumes = pair_volumes(path for path in paths if name_format(path) == NIFTI)
    words = contrasts([*(path for path, _ in volumes.pairs), *volumes.images])
    if not words:
        return
    chosen = min(words, key=lambda word: (not re.match(r"(?i)t1|ct", word), len(word), word))
    reading.set("only", rf"_{re.escape(chosen)}\.nii", f"each case has several images: {', '.join(words)}")
    what = f"each case has images of several contrasts, {', '.join(words)}: {chosen} alone is read"
    reading.remark(what, f'data.only = "_{words[-1]}" reads another; without it all are read, each case in one group')


def _arrays(path: Path, arrays: Sequence[str]) -> Layout:
    if len(arrays) > 1:
        raise DataError(
            f"{path} holds {len(arrays)} files of arrays: name one of them.",
            details=[str(path / name) for name in arrays],
            hint=f"crossward data doctor {path / arrays[0]}",
        )
    return Layout({"source": "npz", "path": str(path / arrays[0])})


def _suffixes(listing: Sequence[str]) -> Counter[str]:
    return Counter(PurePosixPath(name).suffix.lower() for name in listing)


def _formats(files: Files, images: Sequence[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """The formats of the files by their content, and the files that are named after another."""
    formats: Counter[str] = Counter()
    misnamed = []
    for name in sampled(images):
        try:
            found = content_format(files.head(name, HEAD))
        except DataError:
            continue
        if found:
            formats[found] += 1
        if found and name_format(name) not in ("", found):
            misnamed.append(shown_name(name, private=found in NAMED_AFTER_PATIENTS))
    return dict(formats), tuple(misnamed)
