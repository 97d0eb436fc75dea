"""Labels of DICOM images from a table, which names images by a tag or by their file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from crossward.data.dicom_facts import DicomFacts, is_keyword, tag_code
from crossward.data.label_words import label_problem
from crossward.data.site_key import SiteKey
from crossward.data.sources.image_lists import parse_table
from crossward.errors import DataError

FILE_COLUMNS = ("file", "filename", "path")
OTHERS = ("label", "site", "split")
SPLITS = ("train", "val", "test", "")
FIRST = 5  # rows that are named


@dataclass(frozen=True)
class LabelRow:
    number: int  # the header being 1
    named: str  # what it names the image by, which may identify a patient
    label: str
    site: str
    split: str

    @property
    def problem(self) -> str:
        where = f"row {self.number} of the table of labels"
        if problem := label_problem(self.label):
            return f"{where}: {problem}"
        return "" if self.split in SPLITS else f"{where}: its split is none of train, val, test"


@dataclass(frozen=True)
class LabelTable:
    column: str  # that images are named by
    rows: tuple[LabelRow, ...]

    @property
    def by_tag(self) -> bool:
        return self.column.lower() not in FILE_COLUMNS

    def match(self, facts: Mapping[str, DicomFacts], key: SiteKey) -> dict[str, LabelRow]:
        """path -> its row."""
        if self.by_tag:
            by_code = {tag_code(self.column, row.named, key): row for row in self.rows}
            return {path: by_code[code] for path, one in facts.items() if (code := one.codes[self.column]) in by_code}
        paths = _paths_by_name(facts)
        return {path: row for row in self.rows for path in paths.get(_slashes(row.named), [])[:1]}

    def notes(self, facts: Mapping[str, DicomFacts], key: SiteKey) -> list[str]:
        """How many rows are of no image that is here."""
        matched = {row.number for row in self.match(facts, key).values()}
        missing = [row.number for row in self.rows if row.number not in matched]
        first = ", ".join(map(str, missing[:FIRST]))
        return [f"{len(missing)} row(s) of the table of labels are of no image here; first: rows {first}"] * bool(
            missing
        )


def read_label_table(file: Path) -> LabelTable:
    """The table; refused as a whole if it contradicts itself, by numbers of rows only."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"The table {file} cannot be read ({error.strerror}).", hint="Check data.labels.") from error
    cells = parse_table(content, str(file), ["label"], ["site", "split"])
    column = _key_column(file, [name for name in cells[0][1] if name not in OTHERS])
    rows = tuple(
        LabelRow(number, row[column], row["label"], row.get("site", ""), row.get("split", "")) for number, row in cells
    )
    by_name: dict[str, list[LabelRow]] = defaultdict(list)
    for row in rows:
        by_name[row.named].append(row)
    problems = [f"row {row.number}: its {column} is empty" for row in by_name.pop("", [])]
    for several in by_name.values():
        if len({(row.label, row.site, row.split) for row in several}) > 1:
            problems.append(f"rows {', '.join(str(row.number) for row in several)}: one {column} and different labels")
    if problems:
        raise DataError(f"The table {file} contradicts itself.", details=problems, hint="Correct these rows.")
    return LabelTable(column, rows)


def _key_column(file: Path, columns: list[str]) -> str:
    """The column that names images."""
    usable = [name for name in columns if name.lower() in FILE_COLUMNS or is_keyword(name)]
    if not usable:
        raise DataError(
            f"The header of {file} has no column that names images.",
            hint=f"Name one SOPInstanceUID, or by another DICOM keyword, or file. Columns: {', '.join(columns)}.",
        )
    return next((name for name in usable if name == "SOPInstanceUID"), usable[0])


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
