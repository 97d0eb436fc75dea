"""Rows of a table of images: rows that name one image several times, and long tables whose files are elsewhere."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from crossward.data.archives import Files
from crossward.data.bad_files import FEW, BadFile, refuses
from crossward.data.label_words import Labels
from crossward.data.site_key import shown_name
from crossward.data.sources.stored_paths import StoredPaths, spelled
from crossward.errors import DataError

Place = tuple[str, int]  # of a row: its table, where there are several, and its number
MANY = 1000  # rows: a table of fewer is read to the end whatever is wrong with it
SAMPLED = 50  # rows whose files are looked for, before the names of all files are
FIRST = 5  # rows that are named
ONCE = "name an image again, as tables with a row for each box do: each image is read once"


@dataclass(frozen=True, slots=True)
class TableRow:
    number: int  # of the table, the header being 1
    path: str
    label: str = ""
    site: str = ""
    group: str = ""
    split: str = ""
    mask: str = ""
    problem: str = ""  # of its path or mask, which then are as they were written
    table: str = ""  # where there are several
    private: bool = False  # its file has no extension, as DICOM of a PACS, and may be named after a patient

    @property
    def shown(self) -> str:
        """What its image is called outside of the folder."""
        return shown_name(self.path, private=self.private)

    @property
    def place(self) -> Place:
        return self.table, self.number

    def bad(self, reason: str) -> BadFile:
        return BadFile(self.shown, self.number, reason, self.site, self.table)


@dataclass(frozen=True)
class UnitedRows:
    """The rows, one for each image, and those that contradict others of their image."""

    rows: list[TableRow]
    problems: list[BadFile]
    notes: tuple[str, ...] = ()


def united(rows: Sequence[TableRow], wording: Labels) -> UnitedRows:
    """Rows that name one image as one: equal ones, and those of several labels each with all labels of the image. Rows
    with different labels, of which an image has one, contradict each other and are problems, and so is a row that gives
    its image another mask, split, site or group than the first one does."""
    by_path: dict[str, list[TableRow]] = defaultdict(list)
    for row in rows:
        if not row.problem:
            by_path[row.path].append(row)
    several = {path: some for path, some in by_path.items() if len(some) > 1}
    if not several:
        return UnitedRows([*rows], [])
    problems: list[BadFile] = []
    kept: dict[Place, TableRow] = {}
    again = 0
    for some in several.values():
        wrong = _contradictions(some, wording)
        problems += wrong
        if not _labels_differ(some, wording):
            again += len(some) - 1 - len(wrong)
            labels = [row.label for row in some]
            kept[some[0].place] = replace(some[0], label=joined_labels(labels, wording)) if wording.several else some[0]
    one_each = [kept.get(row.place) if not row.problem and row.path in several else row for row in rows]
    notes = (f"{again} row(s) {ONCE}",) if again else ()
    return UnitedRows([row for row in one_each if row is not None], problems, notes)


def _contradictions(rows: Sequence[TableRow], wording: Labels) -> list[BadFile]:
    """What is wrong with the rows of one image."""
    first = rows[0]
    of = f" of {first.table}" if first.table else ""
    if _labels_differ(rows, wording):
        labels = " and ".join(dict.fromkeys(f'"{row.label}"' for row in rows))
        where = ", ".join(str(row.number) + (f" of {row.table}" if row.table else "") for row in rows)
        reason = f'rows {where} give it different labels, {labels}; data.labels = "multi" reads them all'
        return [row.bad(reason) for row in rows]
    return [
        row.bad(f"is already on row {first.number}{of}, with another {name}")
        for row in rows[1:]
        if (name := next((key for key in ("mask", "split", "site", "group") if _differs(row, first, key)), ""))
    ]


def _differs(row: TableRow, first: TableRow, key: str) -> bool:
    return bool(getattr(row, key) != getattr(first, key))


def _labels_differ(rows: Sequence[TableRow], wording: Labels) -> bool:
    return not wording.several and len({row.label for row in rows}) > 1


def joined_labels(labels: Sequence[str], wording: Labels) -> str:
    """What the rows of an image say in one label, or what the first says if none has one."""
    found = dict.fromkeys(one for label in labels if not wording.problem(label) for one in wording.of(label))
    return "|".join(found) or labels[0]


def some_rows(rows: Sequence[TableRow]) -> Sequence[TableRow]:
    return rows[:: max(1, len(rows) // SAMPLED)]


def scattered_rows(rows: Sequence[TableRow]) -> Sequence[TableRow]:
    """Some rows at no regular distance: files may be there of every hundredth one."""
    return random.Random(0).sample(rows, min(SAMPLED, len(rows)))


def is_there(files: Files, path: str) -> bool:
    try:
        files.stamp(path)
    except DataError:
        return False
    return True


def refuse_files_elsewhere(file: Path, some: Sequence[TableRow], rows: int, files: Files) -> None:
    """Refuse a long table at once if none of the rows looked at has a file: it would take long to say it of each."""
    if rows < MANY or any(row.problem or is_there(files, row.path) for row in some):
        return
    known = StoredPaths(listing := files.listing())
    stems = {spelled(PurePosixPath(path).stem) for path in listing}
    if not any(known.holds(row.path) or spelled(PurePosixPath(row.path).name) in stems for row in some):
        raise DataError(
            f"{file}: none of {len(some)} rows that were looked at, of {rows:,}, has its file in {files.root}.",
            details=[f"row {row.number}: {row.shown}" for row in some[:FIRST]],
            hint="Set data.root to the folder that the paths start in, and data.prefix to what else they begin with.",
        )


def without_absent(file: Path, rows: Sequence[TableRow], files: Files, bad_files: str) -> list[TableRow]:
    """The rows; those of a long table whose files are not in the listing have that problem, without a look at each. If
    they are more than can be left out, they are refused in one line."""
    if len(rows) < MANY or all(row.problem or is_there(files, row.path) for row in scattered_rows(rows)):
        return [*rows]
    listed = {*files.listing()}
    absent = [row for row in rows if not row.problem and row.path not in listed]
    # hidden files are not listed, and some disks take capitals for small letters: these have to be looked at
    if len(absent) <= FEW * len(rows) or any(is_there(files, row.path) for row in scattered_rows(absent)):
        return [*rows]
    if refuses(bad_files, len(absent), len(rows)):
        raise DataError(
            f"{file}: {len(absent):,} of {len(rows):,} rows name files that are not in {files.root}.",
            details=[f"row {row.number}: {row.shown}" for row in absent[:FIRST]],
            hint="Set data.root to the folder that the paths start in, or leave these rows out with bad_files = "
            '"quarantine".',
        )
    gone = {row.place for row in absent}
    return [replace(row, problem=f"no such file in {files.root}") if row.place in gone else row for row in rows]
