"""A CSV of path, label or mask, and if known site, group, split.

One row for each image. The table is checked as a whole before anything starts.

Columns: path (always); label, or mask for segmentation; site, group, split (each optional). The header is row 1.
data.columns maps other names to these. A path without an extension is the name of an image anywhere below the root.
Splits may have tables of their own. A group whose column names patients is written as a code of the site's key.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Literal

from crossward.core.image_size import Size
from crossward.data.archives import Files, open_files, safe_path
from crossward.data.bad_files import BadFile, check_policy, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import MOST_PIXELS, Frame, is_image
from crossward.data.dicom_facts import patient_codes
from crossward.data.file_format import is_without_extension
from crossward.data.label_words import SPLIT_NAMES, Labels, check_renamed, usual_spellings
from crossward.data.site_key import patient_code, site_key
from crossward.data.sources.label_targets import targets_of
from crossward.data.sources.settings import (
    AnyFileSettings,
    Encoding,
    GroupRule,
    Loaded,
    Uncertain,
    group_pattern,
    rule_of_pattern,
)
from crossward.data.sources.stored_paths import StoredPaths, but_for_capitals, spelled
from crossward.data.sources.table_files import cell_lines, in_archive, misfit, with_one_label
from crossward.data.sources.table_rows import (
    TableRow,
    is_there,
    refuse_files_elsewhere,
    some_rows,
    united,
    without_absent,
)
from crossward.data.table_columns import ColumnName, find_columns, names_patients, unused_columns
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath

FOREGROUND = ("background", "foreground")
NO_NAMES: Mapping[str, str] = MappingProxyType({})
NO_TABLES: Mapping[str, Path] = MappingProxyType({})
FEW_WORDS = ("label", "site", "split")  # columns of a few words, of which each is held once


class TableSettings(AnyFileSettings):
    path: AbsolutePath  # "set.zip/labels.csv": one inside of an archive, whose images it names
    source: Literal["table"]
    root: AbsolutePath | None = None  # of the paths in the table; None: the table's own folder
    prefix: str = ""  # what absolute paths begin with, if that is not the root: "D:/export" of another machine
    columns: dict[ColumnName, str] | None = None  # ours -> theirs; "": a column that is not used
    encoding: Encoding = "utf-8"
    rename: dict[str, str] = {}  # labels that are written in several ways -> the label that is meant
    labels: Literal["single", "multi"] = "single"  # "multi": an image may have several, as in "edema|mass", or none
    one_hot: tuple[str, ...] = ()  # columns of 0 and 1, one for each class, in place of a column of labels
    uncertain: Uncertain = "leave out"  # rows that say -1 in one of these columns
    group: str | None = None  # regular expression on the path whose first group is the patient, in place of a column
    val_path: AbsolutePath | None = None  # a table of its own for validation; path is then that of training
    test_path: AbsolutePath | None = None  # the same for testing
    classes: tuple[str, ...] | None = None

    def load(self) -> Loaded:
        collection, left_out = read(
            self.path,
            **self.decoding(),
            root=self.root,
            prefix=self.prefix,
            columns=self.columns,
            encoding=self.encoding,
            rename=self.rename,
            several=self.labels == "multi",
            one_hot=self.one_hot,
            uncertain=self.uncertain,
            group=self.group,
            others={split: file for split, file in (("val", self.val_path), ("test", self.test_path)) if file},
            classes=self.classes,
        )
        return collection, [str(file) for file in left_out]

    def group_rule(self) -> GroupRule | None:
        pattern = group_pattern(self.group)
        return rule_of_pattern(pattern) if pattern else None


@dataclass(frozen=True)
class TableFormat:
    """How the cells of a table are read."""

    columns: Mapping[ColumnName, str] | None = None  # ours -> theirs
    encoding: str = "utf-8"
    one_hot: tuple[str, ...] = ()
    uncertain: str = "leave out"


@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]  # of ours, those that it has
    rows: list[TableRow]
    problems: list[BadFile]  # rows with too many or too few cells
    notes: tuple[str, ...]
    coded: bool = False  # whether its groups are patients, who are called by codes


def read(
    file: Path,
    *,
    size: Size,
    channels: int = 3,
    fit: str = "stretch",
    prepare: tuple[str, ...] = (),
    bad_files: str = "refuse",
    max_pixels: int = MOST_PIXELS,
    burned_in: bool = False,
    depth: int = 8,
    cache: Path,
    root: Path | None = None,
    prefix: str = "",
    columns: Mapping[ColumnName, str] | None = None,
    encoding: str = "utf-8",
    rename: Mapping[str, str] = NO_NAMES,
    several: bool = False,
    one_hot: Sequence[str] = (),
    uncertain: str = "leave out",
    group: str | None = None,
    others: Mapping[str, Path] = NO_TABLES,
    classes: tuple[str, ...] | None = None,
) -> tuple[Collection, list[BadFile]]:
    """The images that `file` names, below `root` or beside the file, and the rows that were left out. `others` are
    tables of splits, if they have their own; `file` is then that of training. `several`: images have several labels, or
    none. `group` is a regular expression for their paths whose first group is the patient."""
    policy, pattern = check_policy(bad_files), group_pattern(group)
    archive, inside = in_archive(root or file.parent)
    table = _joined({"train": file, **others}, TableFormat(columns, encoding, tuple(one_hot), uncertain))
    masked = "mask" in table.columns
    wording = _wording(file, classes, one_hot, several=several, masked=masked)
    frame = Frame(size, channels, fit, len(wording.names or ()) if masked else 0, prepare, max_pixels, burned_in, depth)
    with open_files(archive) as files:
        place = partial(_placed, root=root or file.parent, prefix=prefix, masked=masked, inside=inside)
        refuse_files_elsewhere(file, place(some_rows(table.rows)), len(table.rows), files)
        rows = place(_renamed(file, table.rows, rename, wording))
        rows = without_absent(file, _grouped(_private(_as_stored(rows, files), files), pattern), files, policy)
        known = replace(table, rows=rows)
        known = _with_groups(known) if pattern else _with_patients(known, files, cache)
        return _read_images(file, files, known, wording, frame, policy, cache)


def _read_images(
    file: Path, files: Files, table: Table, wording: Labels, frame: Frame, policy: str, cache: Path
) -> tuple[Collection, list[BadFile]]:
    """The images of the rows, one for each, and the rows that were left out."""
    masked = frame.classes > 0
    one_each = united(table.rows, wording)
    problems = [*table.problems, *one_each.problems, *_problems(one_each.rows, wording, masked)]
    candidates = _candidates(one_each.rows, problems, policy)
    paths = [ImagePaths(row.path, row.mask, private=row.private) for row in candidates]
    decoded = decode_files(files, paths, frame, cache)
    problems += [candidates[position].bad(reason) for position, reason in decoded.problems]
    used = [candidates[position] for position in decoded.rows]
    left_out = set_aside(
        file,
        problems,
        bad_files=policy,
        before=[label for row in table.rows if not wording.problem(row.label) for label in wording.of(row.label)],
        after=[label for row in used for label in wording.of(row.label)],
        spellings=[] if masked or wording.names else _spellings(table.rows, wording),
        rows=len(used),
    )
    noted = replace(table, notes=(*table.notes, *one_each.notes))
    return _collection(file, noted, used, wording, decoded), left_out


def _with_patients(table: Table, files: Files, cache: Path) -> Table:
    """The table; without groups of its own, rows of DICOM files are grouped by the codes of their patients."""
    patients = {} if "group" in table.columns else patient_codes(files, [row.path for row in table.rows], cache)
    if not patients:
        return table
    return _with_groups(replace(table, rows=[replace(row, group=patients.get(row.path, "")) for row in table.rows]))


def _with_groups(parsed: Table) -> Table:
    """The table as if it had a column of the groups that paths or DICOM files name."""
    return replace(parsed, columns=(*parsed.columns, "group"), coded=False)


def _candidates(rows: Sequence[TableRow], problems: Sequence[BadFile], policy: str) -> list[TableRow]:
    """The rows whose images are decoded: before a refusal all that can be, so that one reading finds every problem."""
    if policy == "refuse":
        return [row for row in rows if not row.problem]
    wrong = {(problem.table, problem.row) for problem in problems}
    return [row for row in rows if row.place not in wrong]


def _collection(file: Path, table: Table, rows: list[TableRow], wording: Labels, decoded: DecodedImages) -> Collection:
    columns = table.columns
    labels = [wording.of(row.label) for row in rows]
    classes = wording.names or _in_order({label for some in labels for label in some})
    masks = decoded.masks
    task = "multi-label" if wording.several else "classification"
    return Collection(
        name=file.stem,
        task=task if masks is None else "segmentation",
        classes=classes,
        images=decoded.images,
        notes=(*table.notes, *decoded.notes),
        targets=targets_of(labels, classes, wording.several) if masks is None else masks,
        ids=tuple(row.shown for row in rows),
        hashes=decoded.hashes,
        # a row without a patient is a patient of its own
        groups=_groups(rows, coded=table.coded) if "group" in columns else None,
        sites=tuple(row.site for row in rows) if "site" in columns else None,
        splits=tuple(row.split for row in rows) if "split" in columns else None,
        file=decoded.file,
        masks_file=decoded.masks_file,
    )


def _wording(
    file: Path, classes: tuple[str, ...] | None, one_hot: Sequence[str], *, several: bool, masked: bool
) -> Labels:
    """How the labels are read; columns of several labels also name them in their order."""
    if several and masked:
        raise ConfigError(f'data.labels = "multi" is for labels, and {file} names masks.')
    names = _class_names(classes or (tuple(one_hot) if several and one_hot else None), masked)
    return Labels(several, names, complete=bool(one_hot))


def _groups(rows: Iterable[TableRow], *, coded: bool) -> tuple[str, ...]:
    """The groups; patients by the codes that DICOM files of theirs would have."""
    key = site_key() if coded else None
    return tuple((patient_code(key, row.group) if key else row.group) if row.group else row.shown for row in rows)


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


def _joined(tables: Mapping[str, Path], how: TableFormat) -> Table:
    """The tables of the splits as one; a single one as it is."""
    parsed = {split: parse(file, how) for split, file in tables.items()}
    first, *more = parsed.values()
    if not more:
        return first
    if len({frozenset(one.columns) for one in parsed.values()}) > 1 or "split" in first.columns:
        raise DataError(
            "Tables of one split each have the same columns, and none of splits.",
            details=[f"{tables[split]}: {', '.join(one.columns)}" for split, one in parsed.items()],
            hint="Correct their headers, or join them into one table with a column split.",
        )
    rows, problems = [], []
    for split, one in parsed.items():
        name = tables[split].name
        rows += [replace(row, split=split, table=name) for row in one.rows]
        problems += [replace(problem, table=name) for problem in one.problems]
    return replace(first, columns=(*first.columns, "split"), rows=rows, problems=problems)


def parse(file: Path, how: TableFormat) -> Table:
    """The rows of the table; the cells of unknown columns are dropped."""
    lines: Iterable[list[str]]
    header, lines = cell_lines(file, how.encoding)
    if how.one_hot:
        header, lines = with_one_label(str(file), header, [*lines], how.one_hot, how.uncertain)
    places = find_columns(str(file), header, how.columns)
    rows = []
    problems = []
    known: dict[str, str] = {}
    for number, cells in enumerate(lines, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        if reason := misfit(cells, header, how.one_hot):
            problems.append(BadFile("", number, reason))  # its cells are not shown: any of them may name a patient
            continue
        words = {ours: cells[place].strip() for ours, place in places.items()}
        words |= {ours: known.setdefault(words[ours], words[ours]) for ours in FEW_WORDS if ours in words}
        label, site, group, split, mask = (words.get(name, "") for name in ("label", "site", "group", "split", "mask"))
        rows.append(TableRow(number, words["path"], label, site, group, split, mask))
    if not rows and not problems:
        raise DataError(f"The table {file} has no rows.", hint="Add one row for each image below the header.")
    unused = [name for place, name in enumerate(header) if place not in places.values() and name not in how.one_hot]
    coded = "group" in places and names_patients(header[places["group"]])
    return Table(tuple(places), rows, problems, tuple(unused_columns(header, places, unused)), coded)


def _grouped(rows: list[TableRow], pattern: re.Pattern[str] | None) -> list[TableRow]:
    """The rows with the patients that their paths name, where a pattern says how."""
    if pattern is None:
        return rows
    patient = rule_of_pattern(pattern)
    missing = f"the group pattern {pattern.pattern} finds no patient in its path"
    grouped = [row if row.problem else replace(row, group=patient(row.path)) for row in rows]
    return [row if row.problem or row.group else replace(row, problem=missing) for row in grouped]


def _placed(rows: Iterable[TableRow], root: Path, prefix: str, masked: bool, inside: str) -> list[TableRow]:
    """The rows with paths below the root, or what is wrong with these; and splits by the names that we have. `inside`
    is the folder of an archive that the root is."""
    tops = [top for top in (_slashed(prefix), _slashed(str(root.resolve())), _slashed(str(root.absolute()))) if top]
    placed = []
    for row in rows:
        split = SPLIT_NAMES.get(row.split.casefold(), row.split)
        try:
            path = _below(row.path, tops, inside, "path")
            mask = _below(row.mask, tops, inside, "mask") if masked else ""
        except DataError as error:
            placed.append(replace(row, split=split, problem=error.what))
            continue
        placed.append(replace(row, path=path, mask=mask, split=split))
    return placed


def _slashed(path: str) -> str:
    return path.replace("\\", "/").rstrip("/")


def _below(path: str, tops: Sequence[str], inside: str, column: str) -> str:
    """The path relative to the root, or to the archive that the root is in, with forward slashes."""
    if not path:
        raise DataError(f"its {column} is empty")
    name = path.replace("\\", "/")
    inner = next((name[len(top) + 1 :] for top in tops if name.startswith(f"{top}/")), name)
    try:
        relative = safe_path(inner)
        return f"{inside}/{relative}" if inside else relative
    except DataError as error:
        cure = ", or below data.root; data.prefix is what others begin with" if "absolute" in error.what else ""
        raise DataError(f"its {column} {path} {error.what}{cure}") from error


def _as_stored(rows: Sequence[TableRow], files: Files) -> list[TableRow]:
    """The rows with the paths that the files really have: extensions that the table leaves out, capitals, and accents,
    which macOS stores in another way than most tables do."""
    if not any(is_image(row.path) for row in rows):
        return _found_by_name(rows, files)
    paths = [path for row in some_rows(rows) if not row.problem for path in (row.path, row.mask) if path]
    if all(is_there(files, path) for path in paths) and all(row.path.isascii() for row in rows):
        return [*rows]
    known = StoredPaths(files.listing())
    return [row if row.problem else _with_stored(row, known) for row in rows]


def _with_stored(row: TableRow, known: StoredPaths) -> TableRow:
    path, mask = known.find(row.path), known.find(row.mask)
    if several := [paths for paths in (path, mask) if len(paths) > 1]:
        return replace(row, problem=_several_of(several[0]))
    return replace(row, path=path[0], mask=mask[0])


def _several_of(paths: Sequence[str]) -> str:
    return f"{len(paths)} images have this name: {', '.join(paths[:3])}; data.root names the folder that is meant"


def _private(rows: Sequence[TableRow], files: Files) -> list[TableRow]:
    """The rows, those marked whose files have no extension. A name that no file has is shown as it is written: it is
    that of a picture, and a person has to find it in the table."""
    return [
        replace(row, private=True)
        if not row.problem and is_without_extension(row.path) and is_there(files, row.path)
        else row
        for row in rows
    ]


def _found_by_name(rows: Sequence[TableRow], files: Files) -> list[TableRow]:
    """The rows of a table that names images without their extension, with the one image of each name; files that have
    none are found by their paths."""
    paths: dict[str, list[str]] = defaultdict(list)
    listing = {*files.listing()}
    for path in filter(is_image, sorted(listing)):
        paths[spelled(PurePosixPath(path).stem)].append(path)
    found = []
    for row in rows:
        there = but_for_capitals(paths.get(spelled(PurePosixPath(row.path).name), []))
        if row.problem or row.path in listing:
            found.append(row)
        elif len(there) == 1:
            found.append(replace(row, path=there[0]))
        else:
            found.append(replace(row, problem=_several_of(there) if there else "no image has this name"))
    return found


def _problems(rows: Sequence[TableRow], wording: Labels, masked: bool) -> list[BadFile]:
    """What is wrong with the rows, without opening their files."""
    problems = []
    for row in rows:
        reasons = [row.problem, "" if masked else wording.problem(row.label)]
        if row.split and row.split not in SPLIT_NAMES.values():
            reasons.append(f'its split "{row.split}" is none of train, val, test')
        problems += [row.bad(reason) for reason in reasons if reason]
    return problems


def _renamed(file: Path, rows: Sequence[TableRow], rename: Mapping[str, str], wording: Labels) -> list[TableRow]:
    check_renamed(str(file), (label for row in rows for label in wording.of(row.label)), rename)
    return [replace(row, label=wording.renamed(row.label, rename)) for row in rows] if rename else [*rows]


def _spellings(rows: Sequence[TableRow], wording: Labels) -> list[str]:
    """Labels that are one word written in several ways, mostly by several sites."""
    labels = [(label, row.site) for row in rows for label in wording.of(row.label)]
    counts = Counter(label for label, _ in labels)
    where: dict[str, set[str]] = defaultdict(set)
    for label, site in labels:
        where[label].add(site)
    return [
        f'{_sites(where[label], "", ": ")}the label "{label}" ({counts[label]} rows) looks like "{usual}"'
        f"{_sites(where[usual], ' of ', '')}"
        for label, usual in usual_spellings(label for label, _ in labels).items()
    ]


def _sites(sites: set[str], before: str, after: str) -> str:
    named = sorted(sites - {""})
    return f"{before}site {', '.join(named)}{after}" if named else ""


def _in_order(labels: set[str]) -> tuple[str, ...]:
    """By name, or by number when all of them are numbers."""
    if all(map(str.isdecimal, labels)):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))
