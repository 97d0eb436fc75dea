"""Tables of labels for DICOM and NIfTI files: the one in their folder, or beside it, that names most of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from crossward.data.archives import Files
from crossward.data.doctor.layout import sampled
from crossward.data.doctor.table_layout import DEEPEST, is_table, table_encoding
from crossward.data.file_format import DICOM, HEAD, content_format
from crossward.data.sources.dicom_labels import key_columns
from crossward.data.sources.table_files import read_cells
from crossward.data.table_columns import suggested_columns
from crossward.errors import DataError

LOOKED_AT = 60  # files whose tags are compared with a table
MOST_TABLES = 20  # that are looked into
OURS = ("label", "site", "split")


@dataclass(frozen=True)
class LabelLayout:
    settings: dict[str, Any]
    reasons: dict[str, str]


def label_layout(path: Path, files: Files, listing: Sequence[str], source: str) -> LabelLayout | None:
    """The settings of the table that gives most of the files a label; None if no table does."""
    best: tuple[float, LabelLayout] | None = None
    for file in list(_tables(path, listing))[:MOST_TABLES]:
        try:
            found = _labels_in(file, files, listing, source)
        except DataError:
            continue
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return best[1] if best else None


def _tables(path: Path, listing: Sequence[str]) -> Iterator[Path]:
    """The tables inside, those at the top first, and those beside the folder."""
    inside = [name for name in listing if is_table(name) and name.count("/") <= DEEPEST]
    base = path if path.is_dir() or path.suffix.lower() == ".zip" else path.parent
    yield from (base / name for name in sorted(inside, key=lambda name: (name.count("/"), name)))
    if path.parent.is_dir():
        yield from sorted(file for file in path.parent.iterdir() if file.is_file() and is_table(file.name))


def _labels_in(file: Path, files: Files, listing: Sequence[str], source: str) -> tuple[float, LabelLayout] | None:
    """The share of the files that the table names, and how it is read; None if it names fewer than half."""
    encoding = table_encoding(file)
    header, lines = read_cells(file, encoding)
    columns = {ours: theirs for ours, theirs in suggested_columns(header).items() if ours in OURS}
    taken = {*columns.values(), *OURS}
    if "label" not in columns and "label" not in header:
        return None
    keys = key_columns([name for name in header if name not in taken])
    for name, meaning in keys.items():
        place = header.index(name)
        values = {cells[place].strip() for cells in lines if len(cells) == len(header)} - {""}
        share = _share(values, files, listing, meaning if source == "dicom" else "file")
        if share > 0.5:
            settings: dict[str, Any] = {"labels": str(file)}
            reasons = {"labels": "this table names the images"}
            named = columns | ({"image": name} if name != next(iter(keys)) or source == "nifti" else {})
            if named:
                settings["columns"] = named
                reasons["columns"] = "the table has other names for these columns"
            if encoding != "utf-8":
                settings["encoding"] = encoding
                reasons["encoding"] = "the table is not UTF-8 text"
            return share, LabelLayout(settings, reasons)
    return None


def _share(values: set[str], files: Files, listing: Sequence[str], meaning: str) -> float:
    """Which share of some of the files the values name, by a tag or by their names."""
    from crossward.data.dicom_reading import parse_dicom

    hits = looked_at = 0
    named = {value.replace("\\", "/").removeprefix("./") for value in values}
    for path in sampled([name for name in listing if not is_table(name)], LOOKED_AT):
        if meaning == "file":
            names = {path, PurePosixPath(path).name, re.sub(r"\.(nii\.gz|[^./]+)$", "", PurePosixPath(path).name)}
            looked_at += 1
            hits += bool(names & named)
            continue
        try:
            if content_format(files.head(path, HEAD)) != DICOM:
                continue
            value = str(parse_dicom(files.read(path), pixels=False).get(meaning) or "").strip()
        except DataError:
            continue
        looked_at += 1
        hits += value in values
    return hits / looked_at if looked_at else 0.0
