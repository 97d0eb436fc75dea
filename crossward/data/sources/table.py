"""A CSV of path, label or mask, and if known site, group, split.

One row for each image. The table is checked as a whole before anything starts.

Columns: path (always); label, or mask for segmentation; site, group, split (each optional). The header is row 1.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from crossward.data.archives import open_files, safe_path
from crossward.data.bad_files import BadFile, check_policy, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import Frame
from crossward.data.sources.settings import ImageFileSettings, Loaded
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath

COLUMNS = ("path", "label", "site", "group", "split", "mask")
SPLITS = ("train", "val", "test", "")
FOREGROUND = ("background", "foreground")


class TableSettings(ImageFileSettings):
    path: AbsolutePath
    source: Literal["table"]
    root: AbsolutePath | None = None  # of the paths in the table; None: the table's own folder
    classes: tuple[str, ...] | None = None

    def load(self) -> Loaded:
        collection, left_out = read(self.path, **self.decoding(), root=self.root, classes=self.classes)
        return collection, [str(file) for file in left_out]


@dataclass(frozen=True)
class TableRow:
    number: int  # of the table, the header being 1
    path: str
    label: str = ""
    site: str = ""
    group: str = ""
    split: str = ""
    mask: str = ""


def read(
    file: Path,
    *,
    size: int,
    channels: int = 3,
    fit: str = "stretch",
    prepare: tuple[str, ...] = (),
    bad_files: str = "refuse",
    cache: Path,
    root: Path | None = None,
    classes: tuple[str, ...] | None = None,
) -> tuple[Collection, list[BadFile]]:
    """The images that `file` names, below `root` or beside the file, and the rows that were left out."""
    policy = check_policy(bad_files)
    columns, rows, problems = _parse(file)
    masked = "mask" in columns
    names = _class_names(classes, masked)
    frame = Frame(size, channels, fit, len(names or ()) if masked else 0, prepare)
    problems += [problem for row in rows for problem in _problems(row, names, masked)] + _repeated_paths(rows)
    general = [] if masked or names else _spellings(rows)
    wrong = {problem.row for problem in problems}
    # before a refusal we look at every image there is, so that one reading finds every problem
    if policy == "quarantine":
        candidates = [row for row in rows if row.number not in wrong]
    else:
        candidates = _readable(rows, masked)
    with open_files(root or file.parent) as files:
        wanted = [ImagePaths(safe_path(row.path), safe_path(row.mask) if masked else "") for row in candidates]
        decoded = decode_files(files, wanted, frame, cache)
    problems += [
        BadFile(candidates[position].path, candidates[position].number, reason) for position, reason in decoded.problems
    ]
    used = [candidates[position] for position in decoded.rows]
    before = [row.label for row in rows if row.label and (names is None or row.label in names)]
    left_out = set_aside(
        file, problems, bad_files=policy, general=general, before=before, after=[row.label for row in used]
    )
    return _collection(file, columns, used, names, decoded), left_out


def _collection(
    file: Path, columns: Sequence[str], rows: list[TableRow], names: tuple[str, ...] | None, decoded: DecodedImages
) -> Collection:
    classes = names or _in_order({row.label for row in rows})
    number = {name: position for position, name in enumerate(classes)}
    masks = decoded.masks
    return Collection(
        name=file.stem,
        task="classification" if masks is None else "segmentation",
        classes=classes,
        images=decoded.images,
        notes=decoded.notes,
        targets=torch.tensor([number[row.label] for row in rows]) if masks is None else masks,
        ids=tuple(row.path for row in rows),
        hashes=decoded.hashes,
        # a row without a patient is a patient of its own
        groups=tuple(row.group or row.path for row in rows) if "group" in columns else None,
        sites=tuple(row.site for row in rows) if "site" in columns else None,
        splits=tuple(row.split for row in rows) if "split" in columns else None,
        file=decoded.file,
    )


def _class_names(classes: tuple[str, ...] | None, masked: bool) -> tuple[str, ...] | None:
    if classes is None:
        return FOREGROUND if masked else None
    if len(set(classes)) < len(classes) or len(classes) < 2 or len(classes) > 256:
        raise ConfigError(
            f"classes names {len(classes)} classes, {len(set(classes))} of them different.",
            details=[", ".join(classes)],
            hint="Name two or more different classes.",
        )
    return tuple(classes)


def _parse(file: Path) -> tuple[tuple[str, ...], list[TableRow], list[BadFile]]:
    """The columns, the rows, and the rows with too many or too few cells."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
        first = text.partition("\n")[0]
        separator = max(",;\t", key=first.count)  # spreadsheets of many countries write semicolons
        header, *lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)) or [[]]
    except OSError as error:
        raise DataError(f"The table {file} cannot be read ({error.strerror}).", hint="Check the path.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"The table {file} is not UTF-8 text ({error.reason} at byte {error.start}).",
            hint="Export it again as CSV with UTF-8 encoding.",
        ) from error
    except csv.Error as error:
        raise DataError(f"The table {file} is not CSV ({error}).", hint="Export it again as CSV.") from error
    columns = tuple(name.strip() for name in header)
    _check_columns(file, columns)
    rows = []
    problems = []
    for number, cells in enumerate(lines, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(columns):
            problems.append(BadFile(", ".join(cells), number, f"has {len(cells)} cells for {len(columns)} columns"))
            continue
        rows.append(TableRow(number, **{name: cell.strip() for name, cell in zip(columns, cells, strict=True)}))
    if not rows and not problems:
        raise DataError(f"The table {file} has no rows.", hint="Add one row for each image below the header.")
    return columns, rows, problems


def _check_columns(file: Path, columns: tuple[str, ...]) -> None:
    problems = []
    for name, count in Counter(columns).items():
        if name not in COLUMNS:
            nearest = difflib.get_close_matches(name.lower(), COLUMNS, n=1, cutoff=0)[0]
            problems.append(f'the column "{name}" is not known; the nearest is "{nearest}"')
        elif count > 1:
            problems.append(f'the column "{name}" is there {count} times')
    if "path" not in columns:
        problems.append('the column "path" is missing')
    if ("label" in columns) == ("mask" in columns):
        both = "label" in columns
        problems.append(
            f'{"both of" if both else "neither of"} the columns "label" and "mask" {"are" if both else "is"} there'
        )
    if problems:
        raise DataError(
            f"The header of {file} is wrong.",
            details=[f"row 1: {problem}" for problem in problems],
            hint=f"Columns: path, then label or mask, then any of site, group, split. Known: {', '.join(COLUMNS)}.",
        )


def _problems(row: TableRow, names: tuple[str, ...] | None, masked: bool) -> list[BadFile]:
    """What is wrong with a row, without opening its files."""
    reasons = [_unsafe(row.path, "path")]
    if masked:
        reasons.append(_unsafe(row.mask, "mask"))
    elif not row.label:
        reasons.append("its label is empty")
    elif names and row.label not in names:
        nearest = difflib.get_close_matches(row.label, names, n=1, cutoff=0)[0]
        reasons.append(f'its label "{row.label}" is not among the classes; the nearest is "{nearest}"')
    if row.split not in SPLITS:
        reasons.append(f'its split "{row.split}" is none of train, val, test')
    return [BadFile(row.path, row.number, reason) for reason in reasons if reason]


def _unsafe(path: str, column: str) -> str:
    if not path:
        return f"its {column} is empty"
    try:
        safe_path(path)
    except DataError as error:
        return f"its {column} {path} {error.what}"
    return ""


def _repeated_paths(rows: Sequence[TableRow]) -> list[BadFile]:
    first: dict[str, int] = {}
    problems = []
    for row in rows:
        if not _unsafe(row.path, "path") and first.setdefault(safe_path(row.path), row.number) != row.number:
            problems.append(BadFile(row.path, row.number, f"is already on row {first[safe_path(row.path)]}"))
    return problems


def _readable(rows: Sequence[TableRow], masked: bool) -> list[TableRow]:
    twice = {problem.row for problem in _repeated_paths(rows)}
    sound = [row for row in rows if not _unsafe(row.path, "path") and not (masked and _unsafe(row.mask, "mask"))]
    return [row for row in sound if row.number not in twice]


def _spellings(rows: Sequence[TableRow]) -> list[str]:
    """Labels that are one word written in several ways, mostly by several sites."""
    written: dict[str, Counter[str]] = defaultdict(Counter)
    where: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row.label:
            written[_plain(row.label)][row.label] += 1
            where[row.label].add(row.site)
    problems = []
    for spellings in written.values():
        (usual, _), *others = spellings.most_common()
        for label, count in others:
            at = _sites(where[label], "", ": ")
            of = _sites(where[usual], " of ", "")
            problems.append(f'{at}the label "{label}" ({count} rows) looks like "{usual}"{of}')
    return problems


def _sites(sites: set[str], before: str, after: str) -> str:
    named = sorted(sites - {""})
    return f"{before}site {', '.join(named)}{after}" if named else ""


def _plain(label: str) -> str:
    word = re.sub(r"[\s_\-]+", "", label.casefold())
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word


def _in_order(labels: set[str]) -> tuple[str, ...]:
    """By name, or by number when all of them are numbers."""
    if all(map(str.isdecimal, labels)):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))
