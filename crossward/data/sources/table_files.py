"""Tables as files: a CSV of its own, or one inside of an archive, as its header and its lines of cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from crossward.data.archives import open_files
from crossward.errors import DataError
from crossward.names import nearest

YES = ("1", "1.0", "true", "yes", "y", "x")  # in small letters
NO = ("0", "0.0", "false", "no", "n", "")
SPREADSHEETS = (b"PK\3\4", b"\xd0\xcf\x11\xe0")  # how .xlsx and .xls files begin
UNCERTAIN = ("-1", "-1.0")  # as CheXpert and MIMIC-CXR write that a report is not sure


def in_archive(path: Path) -> tuple[Path, str]:
    """The archive that a path leads into, and the path inside of it; the path itself and "" if it leads into none."""
    for above in path.parents:
        if above.is_file():
            return above, path.relative_to(above).as_posix()
    return path, ""


def table_bytes(file: Path) -> bytes:
    """The content of a table; `set.zip/labels.csv` is one inside of an archive."""
    archive, inside = in_archive(file)
    if inside:
        with open_files(archive) as files:
            try:
                return files.read(inside)
            except DataError as error:
                raise DataError(f"The table {file} cannot be read ({error.what}).", hint="Check the path.") from error
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"The table {file} cannot be read ({error.strerror}).", hint="Check the path.") from error


def read_cells(file: Path, encoding: str = "utf-8") -> tuple[list[str], list[list[str]]]:
    """The header and the other lines; commas, semicolons or tabs stand between their cells."""
    header, lines = cell_lines(file, encoding)
    return header, [*lines]


def cell_lines(file: Path, encoding: str = "utf-8") -> tuple[list[str], Iterator[list[str]]]:
    """The same, with the lines one after the other: a long table is never held as cells in memory."""
    content = table_bytes(file)
    if content.startswith(SPREADSHEETS):
        raise DataError(f"The table {file} is a spreadsheet, not text.", hint="Save it as CSV (UTF-8) in Excel.")
    codec = "utf-8-sig" if encoding == "utf-8" else encoding
    try:
        first = content.decode(codec).partition("\n")[0]
    except UnicodeError as error:
        at = f" ({error.reason} at byte {error.start})" if isinstance(error, UnicodeDecodeError) else ""
        raise DataError(
            f"The table {file} is not {encoding.upper()} text{at}.",
            hint='Set data.encoding = "latin-1" (or "cp1252", "utf-16"), or export it as CSV with UTF-8 encoding.',
        ) from error
    separator = max(",;\t", key=first.count)  # spreadsheets of many countries write semicolons
    lines = _split_lines(file, io.TextIOWrapper(io.BytesIO(content), encoding=codec, newline=""), separator)
    return [name.strip() for name in next(lines, [])], lines


def _split_lines(file: Path, text: TextIO, separator: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(text, delimiter=separator, strict=True)
    except csv.Error as error:
        raise DataError(f"The table {file} is not CSV ({error}).", hint="Export it again as CSV.") from error


def says_yes(cell: str) -> bool:
    return cell.strip().casefold() in YES


def says_uncertain(cell: str) -> bool:
    return cell.strip() in UNCERTAIN


def with_one_label(
    source: str, header: list[str], lines: list[list[str]], one_hot: Sequence[str], uncertain: str = "leave out"
) -> tuple[list[str], list[list[str]]]:
    """The table with a column label, made of columns that say 1 for their class and 0 for others. A row that says
    neither in a cell has a label that says so; one of several classes has them all, with | between them. `uncertain` is
    what -1 means: "negative" or "positive"; else a row with one has the label -1."""
    if missing := [f'"{name}": {nearest(name, header)}' for name in one_hot if name not in header]:
        raise DataError(f"data.one_hot names columns that {source} has not.", details=missing)
    if "label" in header:
        raise DataError(f"{source} has a column label, and data.one_hot names others.", hint="Leave data.one_hot out.")
    places = [header.index(name) for name in one_hot]
    labelled = [
        [*cells, _label(cells, places, one_hot, uncertain)]
        if len(cells) == len(header)
        else [*cells, ""]
        if cells
        else cells
        for cells in lines
    ]
    return [*header, "label"], labelled


def misfit(cells: Sequence[str], header: Sequence[str], one_hot: Sequence[str] = ()) -> str:
    """Why a row does not fit its header; empty if it does. What `with_one_label` added to both is not counted."""
    if len(cells) == len(header):
        return ""
    added = 1 if one_hot else 0
    return f"has {len(cells) - added} cells for {len(header) - added} columns"


def one_hot_columns(header: Sequence[str], lines: Sequence[Sequence[str]], taken: Sequence[str]) -> list[str]:
    """The columns that say 1 or 0 in each of the lines, of which a table of one column for each class has several; some
    cells may be empty or say -1, uncertain, where others say 1."""
    full = [cells for cells in lines if len(cells) == len(header)]
    found = []
    for place, name in enumerate(header):
        words = {cells[place].strip() for cells in full}
        plain = words <= {"0", "1", "0.0", "1.0"}
        doubtful = words <= {"0", "1", "0.0", "1.0", "", *UNCERTAIN} and bool(words & {"1", "1.0"})
        if name and name not in taken and words and (plain or doubtful):
            found.append(name)
    places = [header.index(name) for name in found]
    most = sum(any(says_yes(cells[place]) for place in places) for cells in full) > 0.5 * len(full)
    return found if len(found) > 1 and most else []


def _label(cells: Sequence[str], places: Sequence[int], names: Sequence[str], uncertain: str) -> str:
    said = [cells[place].strip().casefold() for place in places]
    if any(word in UNCERTAIN for word in said):
        if uncertain not in ("negative", "positive"):
            return UNCERTAIN[0]
        said = [("1" if uncertain == "positive" else "0") if word in UNCERTAIN else word for word in said]
    if not all(word in YES or word in NO for word in said):
        return "?"
    return "|".join(name for word, name in zip(said, names, strict=True) if word in YES)
