"""Labels of DICOM images from a table, which names images by a tag or by their file."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from crossward.data.dicom_facts import DicomFacts, tag_code
from crossward.data.label_words import Labels, check_renamed
from crossward.data.site_key import SiteKey
from crossward.data.sources.label_tables import FILE_COLUMNS, LabelColumn, read_label_rows
from crossward.data.sources.table_rows import ONCE, joined_labels
from crossward.errors import DataError
from crossward.foreign import printable

SUREST = ("SOPInstanceUID", "file", "SeriesInstanceUID", "StudyInstanceUID", "AccessionNumber", "PatientID")
ALIASES = {
    "sopuid": "SOPInstanceUID",
    "instanceuid": "SOPInstanceUID",
    "imageuid": "SOPInstanceUID",
    "seriesuid": "SeriesInstanceUID",
    "studyuid": "StudyInstanceUID",
    "patient": "PatientID",
}
NAMES = "Name one SOPInstanceUID, or by another DICOM keyword, or file."
SPLITS = ("train", "val", "test", "")
FIRST = 5  # rows that are named


@dataclass(frozen=True)
class LabelRow:
    number: int  # the header being 1
    named: str  # what it names the image by, which may identify a patient
    label: str
    site: str
    split: str
    others: tuple[int, ...] = ()  # rows that name the same image otherwise

    def problem(self, wording: Labels) -> str:
        where = f"row {self.number} of the table of labels"
        if self.others:
            return f"rows {', '.join(map(str, self.others))} of the table of labels contradict each other on it"
        if problem := wording.problem(self.label):
            return f"{where}: {problem}"
        return "" if self.split in SPLITS else f"{where}: its split is none of train, val, test"


@dataclass(frozen=True)
class LabelTable:
    column: str  # that images are named by
    rows: tuple[LabelRow, ...]

    @property
    def by_tag(self) -> bool:
        return self.column != "file"

    def match(self, facts: Mapping[str, DicomFacts], key: SiteKey) -> dict[str, LabelRow]:
        """path -> its row."""
        if self.by_tag:
            by_code = {tag_code(self.column, row.named, key): row for row in self.rows}
            return {path: by_code[code] for path, one in facts.items() if (code := one.codes[self.column]) in by_code}
        paths = _paths_by_name(facts)
        return {path: row for row in self.rows for path in paths.get(_slashes(row.named), [])[:1]}

    def notes(self, facts: Mapping[str, DicomFacts], key: SiteKey) -> list[str]:
        """How many rows are of no image that is here."""
        matched = {row.named for row in self.match(facts, key).values()}
        missing = [row.number for row in self.rows if row.named not in matched]
        first = ", ".join(f"row {number}" for number in missing[:FIRST])
        what = f"{len(missing)} row(s) of the table of labels are of no image here; first: {first}"
        again = len(self.rows) - len({row.named for row in self.rows})
        return [what] * bool(missing) + [f"{again} row(s) of the table of labels {ONCE}"] * bool(again)


def read_label_table(
    file: Path,
    columns: Mapping[LabelColumn, str],
    encoding: str,
    wording: Labels,
    *,
    rename: Mapping[str, str],
    one_hot: Sequence[str],
    uncertain: str,
) -> LabelTable:
    """The table; refused as a whole if rows name nothing, by their numbers only. Rows that contradict each other are a
    problem of their image; of several labels, an image has those of all its rows. `columns` are what it calls the
    columns that we call image, label, site and split."""
    keys, cells = read_label_rows(file, columns, encoding, images=NAMES, one_hot=one_hot, uncertain=uncertain)
    name, column = _key_column(file, keys, asked="image" in columns)
    check_renamed(str(file), (label for _, row in cells for label in wording.of(row["label"])), rename)
    rows = tuple(
        LabelRow(number, row[name], wording.renamed(row["label"], rename), row.get("site", ""), row.get("split", ""))
        for number, row in cells
    )
    by_name = _by_name(rows)
    problems = [f"row {row.number}: its {name} is empty" for row in by_name.pop("", [])]
    if problems:
        raise DataError(f"The table {file} has rows that name no image.", details=problems, hint="Correct these rows.")
    if wording.several:
        joined = {named: joined_labels([row.label for row in some], wording) for named, some in by_name.items()}
        rows = tuple(replace(row, label=joined[row.named]) for row in rows)
        by_name = _by_name(rows)
    numbers = {
        named: tuple(row.number for row in several)
        for named, several in by_name.items()
        if len({(row.label, row.site, row.split) for row in several}) > 1
    }
    return LabelTable(column, tuple(replace(row, others=numbers.get(row.named, ())) for row in rows))


def _by_name(rows: Sequence[LabelRow]) -> dict[str, list[LabelRow]]:
    found: dict[str, list[LabelRow]] = defaultdict(list)
    for row in rows:
        found[row.named].append(row)
    return found


def key_columns(names: Sequence[str]) -> dict[str, str]:
    """Name of a column -> the DICOM keyword that it is, however it is written, or "file"; the surest first."""
    plain = {name: re.sub(r"[\W_]+", "", name.casefold()) for name in names}
    found = {}
    for name, word in plain.items():
        if word in FILE_COLUMNS:
            found[name] = "file"
        elif keyword := _keywords().get(word):
            found[name] = keyword
    return dict(sorted(found.items(), key=lambda item: SUREST.index(item[1]) if item[1] in SUREST else len(SUREST)))


def _key_column(file: Path, names: Sequence[str], *, asked: bool) -> tuple[str, str]:
    """The column that names images, and the tag that it holds, or "file"."""
    found = key_columns(names)
    if not found and asked:
        return names[0], "file"
    if not found:
        hint = f"{NAMES} Columns: {', '.join(map(printable, names))}."
        raise DataError(f"The header of {file} has no column that names images.", hint=hint)
    return next(iter(found.items()))


@lru_cache(maxsize=1)
def _keywords() -> dict[str, str]:
    """Each keyword of DICOM in small letters -> as it is written."""
    from pydicom._dicom_dict import DicomDictionary

    known = {entry[4].casefold(): entry[4] for entry in DicomDictionary.values() if entry[4] not in ("", "UID")}
    return known | ALIASES


def _paths_by_name(facts: Mapping[str, DicomFacts]) -> dict[str, list[str]]:
    """Each name that a table may call a file by -> the file: its path, its name, or its name without an extension."""
    paths: dict[str, list[str]] = defaultdict(list)
    for path in facts:
        place = PurePosixPath(path)
        for name in {path, place.name, place.stem}:
            paths[name].append(path)
    shared = Counter(name for name, several in paths.items() if len(several) > 1 and name not in facts)
    return {name: several for name, several in paths.items() if name not in shared}


def _slashes(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")
