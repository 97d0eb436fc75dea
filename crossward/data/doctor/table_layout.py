"""Tables in a folder or an archive of images: which one names the images, by which columns, and where these are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from crossward.data.bad_files import FEW
from crossward.data.doctor.layout import Layout, Reading, Remark, sampled
from crossward.data.doctor.named_images import NamedImages, patient_pattern
from crossward.data.label_words import NOTHING_FOUND, SPLIT_NAMES, several_labels
from crossward.data.sources.table_files import one_hot_columns, read_cells, says_uncertain, says_yes, table_bytes
from crossward.data.table_columns import COLUMNS, label_columns, suggested_columns, toml_columns
from crossward.errors import DataError
from crossward.foreign import printable

TABLES = (".csv", ".tsv", ".txt", ".tab")
DEEPEST = 3  # folders around a table
MOST_TABLES = 50  # that are looked into
SAMPLED_ROWS = 200  # of a table, to find out what its columns are
LONGEST_NAME = 40  # of a column in a message
FEW_VALUES = 20  # of a column that may be the labels
LATIN = bytes(range(0x80, 0xA0))  # what Windows has letters for and latin-1 has none


@dataclass(frozen=True)
class NamingTable:
    """A table, how it is read, and how many images its rows name."""

    file: Path
    settings: Mapping[str, Any]
    reasons: Mapping[str, str]
    named: int
    labelled: bool
    remarks: tuple[Remark, ...] = ()

    @property
    def split(self) -> str:
        """The split that the name of the table tells; empty if it tells none, or several."""
        words = re.split(r"[\W_]+", self.file.stem.casefold())
        found = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
        return found.pop() if len(found) == 1 else ""


@dataclass(frozen=True)
class Sheet:
    """The cells of a table whose rows are as long as its header."""

    header: Sequence[str]
    lines: Sequence[Sequence[str]]

    def column(self, name: str) -> list[str]:
        """The cells of a column that are not empty."""
        place = list(self.header).index(name)
        return [text for cells in self.lines if (text := cells[place].strip())]

    def sample(self) -> Sheet:
        return Sheet(self.header, sampled(self.lines, SAMPLED_ROWS))


def is_table(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in TABLES


def folder_of_tables(path: Path, listing: Sequence[str]) -> tuple[Layout | None, tuple[Remark, ...]]:
    """How the images of a folder or an archive are read by the table, or by the tables of its splits, that name most of
    them; None if no table names images and their labels. The remarks are on tables that name images without labels."""
    images = NamedImages(path, listing)
    names = [name for name in listing if is_table(name) and name.count("/") <= DEEPEST]
    found = []
    for name in sorted(names, key=lambda name: (name.count("/"), name))[:MOST_TABLES]:
        try:
            table = naming_table(path / name, images)
        except DataError:
            continue
        found += [table] if table.named else []
    labelled = [table for table in found if table.labelled]
    if not labelled:
        return None, tuple(remark for table in found for remark in table.remarks)
    best = max(labelled, key=lambda table: table.named)
    splits = _tables_of_splits(labelled)
    if best not in splits.values():
        return _layout(best, images), ()
    layout = _layout(splits["train"], images)
    settings, reasons = dict(layout.settings), dict(layout.reasons)
    for part in ("val", "test"):
        if part in splits:
            settings[f"{part}_path"] = str(splits[part].file)
            reasons[f"{part}_path"] = "this split has a table of its own"
    return Layout(settings, tuple(images.images), reasons=reasons), ()


def table_layout(file: Path, top: Path, listing: Sequence[str]) -> Layout:
    """How a table is read whose images are below `top`."""
    images = NamedImages(top, listing)
    table = naming_table(file, images)
    if not table.labelled:
        [remark] = table.remarks
        raise DataError(f"{file}: {remark.what}.", hint=f"Set {remark.deal}.")
    return _layout(table, images) if table.named else Layout(table.settings, reasons=table.reasons)


def _layout(table: NamingTable, images: NamedImages) -> Layout:
    return Layout(table.settings, tuple(images.images), reasons=table.reasons, remarks=table.remarks)


def _tables_of_splits(tables: Sequence[NamingTable]) -> dict[str, NamingTable]:
    """split -> its table, where training and another split have one each, read in the same way; else empty."""
    by_split: dict[str, list[NamingTable]] = {}
    for table in tables:
        if table.split and "split" not in table.settings.get("columns", {}):
            by_split.setdefault(table.split, []).append(table)
    for trained in by_split.get("train", []):
        found = {"train": trained}
        for split in ("val", "test"):
            alike = [table for table in by_split.get(split, []) if _how(table) == _how(trained)]
            found |= {split: alike[0]} if alike else {}
        if len(found) > 1:
            return found
    return {}


def _how(table: NamingTable) -> dict[str, Any]:
    """What must be the same of the tables of several splits: all but their own files, and whether any says -1."""
    settings = {key: value for key, value in table.settings.items() if key not in ("path", "uncertain")}
    return {"root": str(table.file.parent)} | settings


def naming_table(file: Path, images: NamedImages) -> NamingTable:
    """How a table is read that names images: its encoding, its columns, and where its paths start."""
    reading = Reading({"source": "table", "path": str(file)})
    encoding = table_encoding(file)
    if encoding != "utf-8":
        reading.set("encoding", encoding, "the table is not UTF-8 text")
    header, lines = read_cells(file, encoding)
    sheet = Sheet(header, [cells for cells in lines if len(cells) == len(header)])
    columns = {ours: ours for ours in COLUMNS if ours in header} | suggested_columns(header)
    if not (path := _path_column(sheet.sample(), columns, images)):
        raise DataError(
            f"{file} has no column that names images.",
            details=[f"columns: {', '.join(printable(name, LONGEST_NAME) for name in header[:20])}"],
            hint="Say which it is: data.columns = { path = …, label = … }.",
        )
    if images.called(path):
        raise DataError(f"{file} has no header: its first row names an image.", hint="Give it one, as in: path,label")
    columns = {ours: theirs for ours, theirs in columns.items() if theirs != path} | {"path": path}
    if "split" not in columns and (split := _split_column(sheet, [*columns.values()])):
        columns["split"] = split
    labelled = _set_labels(reading, sheet, columns)
    cells = sheet.column(path)
    named = sum(bool(images.called(cell)) for cell in cells)
    if not labelled:
        return NamingTable(file, reading.settings, {}, named, False, (_without_labels(file, sheet, path, named),))
    if renamed := {ours: columns[ours] for ours in COLUMNS if ours in columns and columns[ours] != ours}:
        reading.set("columns", renamed, "the table has other names for these columns")
    for key, value in images.place(sheet.sample().column(path), file.parent).items():
        why = "the folder that the paths of the table start in"
        why = why if key == "root" else "what the paths of the table begin with, on the machine that wrote it"
        reading.set(key, value, why)
    if "group" not in columns and (pattern := patient_pattern(cells)):
        reading.set("group", pattern, "the paths name patients")
    named = named if images.share(sheet.sample().column(path)) > 0.5 else 0
    remarks = _remarks(file, sheet, columns, images) if named else ()
    return NamingTable(file, reading.settings, reading.reasons, named, True, remarks)


def _path_column(sample: Sheet, columns: Mapping[str, str], images: NamedImages) -> str:
    """The column whose cells name images: the one that is called so, unless it names none and another does."""
    called = columns.get("path", "")
    shares = {name: images.share(sample.column(name)) for name in sample.header if name}
    if called and (shares.get(called, 0) > 0.5 or not images.images):
        return called
    best = max(shares, key=lambda name: shares[name], default="")
    return best if best and shares[best] > 0.5 else called


def _split_column(sheet: Sheet, taken: Sequence[str]) -> str:
    """The column, whatever it is called, all of whose cells say train, val or test, and train and another one."""
    for name in sheet.header:
        words = {word.casefold() for word in sheet.column(name)} if name and name not in taken else set()
        splits = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
        if words and words <= {*SPLIT_NAMES} and "train" in splits and len(splits) > 1:
            return name
    return ""


def _set_labels(reading: Reading, sheet: Sheet, columns: dict[str, str]) -> bool:
    """Find what the labels or masks of the table are; whether there are any."""
    one_hot = [] if {"label", "mask"} & {*columns} else one_hot_columns(sheet.header, sheet.lines, [*columns.values()])
    if one_hot:
        columns["label"] = "label"
    elif "label" in columns and "mask" in columns:
        columns["mask"] = ""
    if "label" in columns and _has_several(sheet.sample(), columns["label"], one_hot):
        reading.set("labels", "multi", "images have several labels each")
    elif "label" in columns and not one_hot and _named_differently(sheet, columns["path"], columns["label"]):
        reading.set("labels", "multi", "several rows of one image give it different labels")
    if reading.settings.get("labels") == "multi":
        one_hot = [name for name in one_hot if name.casefold() not in NOTHING_FOUND]
    if one_hot:
        reading.set("one_hot", one_hot, "the table has a column of 0 and 1 for each class")
    places = [list(sheet.header).index(name) for name in one_hot]
    if doubtful := sum(any(says_uncertain(cells[place]) for place in places) for cells in sheet.lines):
        why = f"{doubtful} rows say -1, uncertain, of a class: read as 0; positive reads 1, leave out neither"
        reading.set("uncertain", "negative", why)
    return bool({"label", "mask"} & {*columns})


def _has_several(sample: Sheet, label: str, one_hot: Sequence[str]) -> bool:
    """Whether more rows have several labels than could be left out without asking."""
    if one_hot:
        places = [list(sample.header).index(name) for name in one_hot]
        counts = [sum(says_yes(cells[place]) for place in places) for cells in sample.lines]
    else:
        counts = [len(several_labels(cell)) for cell in sample.column(label)]
    return sum(count > 1 for count in counts) > FEW * len(sample.lines)


def _named_differently(sheet: Sheet, path: str, label: str) -> bool:
    """Whether more images have rows of different labels than could be left out without asking."""
    path_at, label_at = list(sheet.header).index(path), list(sheet.header).index(label)
    labels: dict[str, set[str]] = {}
    for cells in sheet.lines:
        labels.setdefault(cells[path_at], set()).add(cells[label_at].strip())
    return sum(len(some) > 1 for some in labels.values()) > FEW * len(labels)


def _without_labels(file: Path, sheet: Sheet, path: str, named: int) -> Remark:
    """A table that names images and has no column that is known as their labels."""
    others = {name: len({*sheet.column(name)}) for name in sheet.header if name and name != path}
    few = [f"{printable(name, LONGEST_NAME)} ({n} values)" for name, n in others.items() if 1 < n <= FEW_VALUES]
    what = f'the table {file.name} names {named} images by its column "{printable(path)}", but not which are the labels'
    hint = f"; columns of few values: {', '.join(few[:8])}" if few else ""
    deal = f'data.source = "table", data.path = "{file}" and data.columns = {{ path = "{printable(path)}", label = … }}'
    return Remark(what, f"{deal}{hint}")


def _remarks(file: Path, sheet: Sheet, columns: Mapping[str, str], images: NamedImages) -> tuple[Remark, ...]:
    """What a person should know of the choice of columns and of the images that have no row."""
    remarks = []
    others = [name for name in label_columns(sheet.header) if name != columns.get("label")]
    if others and "label" in columns:
        deal = f"data.columns = {toml_columns({'label': others[0]})} if that is what is to be learnt"
        what = f"the labels are those of the column {columns['label']}; these may be labels, too: {', '.join(others)}"
        remarks.append(Remark(what, deal))
    if unnamed := images.unnamed(sheet.column(columns["path"])):
        what = f"{unnamed} of {len(images.images)} images have no row in {file.name}: they are not read"
        remarks.append(Remark(what, "add rows for them, or nothing if they are to stay out"))
    return tuple(remarks)


def table_encoding(file: Path) -> str:
    """The encoding that a table seems to have."""
    data = table_bytes(file)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    try:
        data.decode("utf-8-sig")
        return "utf-8"
    except UnicodeDecodeError:
        return "cp1252" if any(byte in LATIN for byte in data) else "latin-1"
