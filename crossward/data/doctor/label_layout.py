"""Tables of labels for DICOM and NIfTI files: the one in their folder, or beside it, that names most of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from crossward.data.archives import Files
from crossward.data.doctor.layout import Reading, sampled
from crossward.data.doctor.table_layout import DEEPEST, is_table, table_encoding
from crossward.data.file_format import DICOM, HEAD, NIFTI, content_format, name_format
from crossward.data.sources.dicom_labels import key_columns
from crossward.data.sources.table_files import read_cells
from crossward.data.sources.volume_files import subject_names
from crossward.data.table_columns import suggested_columns, toml_value
from crossward.errors import DataError

LOOKED_AT = 60  # files whose tags are compared with a table
MOST_TABLES = 20  # that are looked into
OURS = ("label", "site", "split")


def label_layout(path: Path, files: Files, listing: Sequence[str], source: str) -> Reading | None:
    """The settings of the table that gives most of the files a label; None if no table does."""
    tables: list[tuple[float, Path, Reading]] = []
    for file in list(_tables(path, listing))[:MOST_TABLES]:
        try:
            found = _labels_in(file, files, listing, source)
        except DataError:
            continue  # a table that cannot be read gives no labels; others may
        tables += [(found[0], file, found[1])] if found is not None else []
    if not tables:
        return None
    _, best, reading = max(tables, key=lambda table: table[0])
    for _, file, other in tables:
        if file != best:
            also = {key: value for key, value in other.settings.items() if key != "labels"}
            what = f"the table {file.name} gives the images labels, too; those of {best.name} are read"
            more = "".join(f", data.{key} = {toml_value(value)}" for key, value in also.items())
            reading.remark(what, f"data.labels = {toml_value(str(file))}{more} reads the others")
    return reading


def _tables(path: Path, listing: Sequence[str]) -> Iterator[Path]:
    """The tables inside, those at the top first, and those beside the folder."""
    inside = [name for name in listing if is_table(name) and name.count("/") <= DEEPEST]
    base = path if path.is_dir() or path.suffix.lower() == ".zip" else path.parent
    yield from (base / name for name in sorted(inside, key=lambda name: (name.count("/"), name)))
    if path.parent.is_dir():
        yield from sorted(file for file in path.parent.iterdir() if file.is_file() and is_table(file.name))


def _labels_in(file: Path, files: Files, listing: Sequence[str], source: str) -> tuple[float, Reading] | None:
    """The share of the files that the table names, and how it is read; None if it names fewer than half."""
    encoding = table_encoding(file)
    header, lines = read_cells(file, encoding)
    columns = {ours: theirs for ours, theirs in suggested_columns(header).items() if ours in OURS}
    if "label" not in (*columns, *header):
        if "group" not in header:
            return None
        columns["label"] = "group"  # as BIDS calls patients and controls
    others = [name for name in header if name not in {*columns.values(), *OURS}]
    keys = key_columns(others) if source == "dicom" else dict.fromkeys(others, "file")
    for name, meaning in keys.items():
        place = header.index(name)
        values = {cells[place].strip() for cells in lines if len(cells) == len(header)} - {""}
        share = _share(values, files, listing, meaning, source)
        if share > 0.5:
            named = columns | ({"image": name} if name != next(iter(keys)) or source == "nifti" else {})
            return share, _read_so(file, named, encoding)
    return None


def _read_so(file: Path, columns: dict[str, str], encoding: str) -> Reading:
    """The settings that read a table of labels."""
    reading = Reading()
    reading.set("labels", str(file), f"the table {file.name} names the images")
    if columns:
        reading.set("columns", columns, "the table has other names for these columns")
    if encoding != "utf-8":
        reading.set("encoding", encoding, "the table is not UTF-8 text")
    return reading


def _share(values: set[str], files: Files, listing: Sequence[str], meaning: str, source: str) -> float:
    """Which share of some of the files the values name, by a tag, by their names, or by those of their patients."""
    from crossward.data.dicom_reading import parse_dicom

    hits = looked_at = 0
    named = {value.replace("\\", "/").removeprefix("./") for value in values}
    images = [name for name in listing if not is_table(name) and (source == "dicom" or name_format(name) == NIFTI)]
    for path in sampled(images, LOOKED_AT):
        if meaning == "file":
            names = {path, PurePosixPath(path).name, re.sub(r"\.(nii\.gz|[^./]+)$", "", PurePosixPath(path).name)}
            names |= subject_names(path) if source == "nifti" else set()
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
