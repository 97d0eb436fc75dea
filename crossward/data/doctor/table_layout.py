"""Tables in a folder or an archive of images: which one names the images, by which columns, and where these are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from crossward.data.bad_files import FEW
from crossward.data.decode import is_image
from crossward.data.doctor.layout import Layout
from crossward.data.label_words import SPLIT_NAMES, several_labels
from crossward.data.sources.table_files import one_hot_columns, read_cells, table_bytes
from crossward.data.table_columns import COLUMNS, suggested_columns
from crossward.errors import DataError
from crossward.foreign import printable

TABLES = (".csv", ".tsv", ".txt", ".tab")
DEEPEST = 3  # folders around a table
MOST_TABLES = 50  # that are looked into
SAMPLED_ROWS = 200  # of a table, to find where its images are
LONGEST_NAME = 40  # of a column in a message
LATIN = bytes(range(0x80, 0xA0))  # what Windows has letters for and latin-1 has none


@dataclass(frozen=True)
class NamingTable:
    """A table, how it is read, and how many images its rows name."""

    file: Path
    settings: Mapping[str, Any]
    reasons: Mapping[str, str]
    named: int

    @property
    def split(self) -> str:
        """The split that the name of the table tells; empty if it tells none, or several."""
        words = re.split(r"[\W_]+", self.file.stem.casefold())
        found = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
        return found.pop() if len(found) == 1 else ""


def is_table(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in TABLES


def folder_of_tables(path: Path, listing: Sequence[str]) -> Layout | None:
    """How the images of a folder or an archive are read by the table, or by the tables of its splits, that name most of
    them; None if no table names images."""
    names = [name for name in listing if is_table(name) and name.count("/") <= DEEPEST]
    found = []
    for name in sorted(names, key=lambda name: (name.count("/"), name))[:MOST_TABLES]:
        try:
            table = naming_table(path / name, path, listing)
        except DataError:
            continue
        found += [table] if table.named else []
    if not found:
        return None
    best = max(found, key=lambda table: table.named)
    settings, reasons = dict(best.settings), dict(best.reasons)
    if splits := _tables_of_splits(found):
        settings = dict(splits["train"].settings)
        reasons = dict(splits["train"].reasons)
        for part in ("val", "test"):
            if part in splits:
                settings[f"{part}_path"] = str(splits[part].file)
                reasons[f"{part}_path"] = "this split has a table of its own"
    files = tuple(name for name in listing if is_image(name))
    return Layout(settings, files, reasons=reasons)


def table_layout(file: Path, top: Path, listing: Sequence[str]) -> Layout:
    """How a table is read whose images are below `top`."""
    table = naming_table(file, top, listing)
    files = tuple(name for name in listing if is_image(name)) if table.named else ()
    return Layout(table.settings, files, reasons=table.reasons)


def _tables_of_splits(tables: Sequence[NamingTable]) -> dict[str, NamingTable]:
    """split -> its table, where training and another split have one each, in one folder and with the same columns."""
    found: dict[str, NamingTable] = {}
    for table in tables:
        alike = not found or (
            table.file.parent == next(iter(found.values())).file.parent
            and _how(table) == _how(next(iter(found.values())))
        )
        if table.split and table.split not in found and alike and "split" not in table.settings.get("columns", {}):
            found[table.split] = table
    return found if "train" in found and len(found) > 1 else {}


def _has_several_labels(
    header: Sequence[str], lines: Sequence[Sequence[str]], label: str, one_hot: Sequence[str]
) -> bool:
    """Whether more rows have several labels than could be left out without asking."""
    full = [cells for cells in lines if len(cells) == len(header)]
    if one_hot:
        places = [header.index(name) for name in one_hot]
        several = sum(sum(cells[place].strip() in ("1", "1.0") for place in places) > 1 for cells in full)
    elif label in header:
        several = sum(bool(several_labels(cells[header.index(label)])) for cells in full)
    else:
        return False
    return several > FEW * len(full)


def _how(table: NamingTable) -> dict[str, Any]:
    return {key: value for key, value in table.settings.items() if key != "path"}


def naming_table(file: Path, top: Path, listing: Sequence[str]) -> NamingTable:
    """How a table is read whose images are below `top`: its encoding, its columns, and the root of its paths."""
    settings: dict[str, Any] = {"source": "table", "path": str(file)}
    reasons = {}
    encoding = table_encoding(file)
    if encoding != "utf-8":
        settings["encoding"] = encoding
        reasons["encoding"] = "the table is not UTF-8 text"
    header, lines = read_cells(file, encoding)
    step = max(1, len(lines) // SAMPLED_ROWS)
    sample = lines[::step]
    columns = {ours: ours for ours in COLUMNS if ours in header} | suggested_columns(header)
    labelled = bool({"label", "mask"} & {*columns})
    one_hot = [] if labelled or "path" not in columns else one_hot_columns(header, lines, [*columns.values()])
    if one_hot:
        settings["one_hot"] = one_hot
        reasons["one_hot"] = "the table has a column of 0 and 1 for each class"
        columns["label"] = "label"
    if _has_several_labels(header, lines, columns.get("label", ""), one_hot):
        settings["labels"] = "multi"
        reasons["labels"] = "images have several labels"
    if "path" not in columns or not {"label", "mask"} & {*columns}:
        raise DataError(
            f"{file} has no column of paths with labels or masks.",
            details=[f"columns: {', '.join(printable(name, LONGEST_NAME) for name in header[:20])}"],
            hint="Say which they are: data.columns = { path = …, label = … }.",
        )
    if "label" in columns and "mask" in columns:
        columns["mask"] = ""
    if renamed := {ours: theirs for ours, theirs in columns.items() if ours != theirs}:
        settings["columns"] = renamed
        reasons["columns"] = "the table has other names for these columns"
    if "label" in columns and _several(header, sample, columns["label"], one_hot):
        settings["labels"] = "multi"
        reasons["labels"] = "images have several labels each"
    place = header.index(columns["path"])
    paths = [cells[place].strip() for cells in sample if len(cells) == len(header) and cells[place].strip()]
    where = _root_of(paths, listing, top, file.parent)
    reasons |= dict.fromkeys(where, "the paths of the table are below it")
    named = len(lines) if where or _names_most(paths, listing, top, file.parent) else 0
    return NamingTable(file, settings | where, reasons, named)


def _several(header: Sequence[str], sample: Sequence[Sequence[str]], label: str, one_hot: Sequence[str]) -> bool:
    """Whether more than one row in twenty has several labels."""
    full = [cells for cells in sample if len(cells) == len(header)]
    if one_hot:
        places = [header.index(name) for name in one_hot]
        counts = [sum(cells[place].strip() in ("1", "1.0") for place in places) for cells in full]
    else:
        counts = [len(several_labels(cells[header.index(label)].strip())) for cells in full]
    return sum(count > 1 for count in counts) > 0.05 * len(full)


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


def _names_most(paths: Sequence[str], listing: Sequence[str], top: Path, own: Path) -> bool:
    """Whether most images are where the table says, below its own folder."""
    below = own.relative_to(top).as_posix() if own != top else "."
    there = {(name if below == "." else name.removeprefix(f"{below}/")).casefold() for name in listing}
    stems = {PurePosixPath(name).stem for name in listing}
    known = [path.replace("\\", "/").removeprefix("./") for path in paths]
    hits = sum(path.casefold() in there or (not is_image(path) and PurePosixPath(path).name in stems) for path in known)
    return 2 * hits > len(known)


def _root_of(paths: Sequence[str], listing: Sequence[str], top: Path, own: Path) -> dict[str, str]:
    """{"root": …, "prefix": …} where the images are elsewhere than beside the table, else empty."""
    if not paths or _names_most(paths, listing, top, own):
        return {}
    by_name: dict[str, list[str]] = {}
    for name in listing:
        by_name.setdefault(PurePosixPath(name).name.casefold(), []).append(name)
    votes: Counter[tuple[str, str]] = Counter()
    for path in paths:
        written = path.replace("\\", "/")
        for name in by_name.get(written.rsplit("/", 1)[-1].casefold(), ()):
            common = _common_end(written, name)
            votes[name[: len(name) - len(common)].rstrip("/"), written[: len(written) - len(common)].rstrip("/")] += 1
    if not votes:
        return {}
    (root, prefix), count = votes.most_common(1)[0]
    if 2 * count <= len(paths):
        return {}
    where = {"root": str(top / root) if root else str(top)}
    if prefix:
        where["prefix"] = prefix
    return where


def _common_end(a: str, b: str) -> str:
    """The folders and the file that two paths end with."""
    parts: list[str] = []
    for x, y in zip(reversed(a.split("/")), reversed(b.split("/")), strict=False):
        if x.casefold() != y.casefold():
            break
        parts.insert(0, x)
    return "/".join(parts)
