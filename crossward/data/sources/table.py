"""A CSV of path, label or mask, and if known site, group, split.

One row for each image. The table is checked as a whole before anything starts.

Columns: path (always); label, or mask for segmentation; site, group, split (each optional). The header is row 1.
data.columns maps other names to these. A path without an extension is the name of an image anywhere below the root.
Splits may have tables of their own. A group whose column names patients is written as a code of the site's key.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from crossward.data.archives import Files, open_files, safe_path
from crossward.data.bad_files import BadFile, check_policy, set_aside
from crossward.data.cache import DecodedImages, ImagePaths, decode_files
from crossward.data.collection import Collection
from crossward.data.decode import MOST_PIXELS, Frame, is_image
from crossward.data.label_words import SPLIT_NAMES, Labels, check_renamed, usual_spellings
from crossward.data.site_key import patient_code, shown_name, site_key
from crossward.data.sources.settings import AnyFileSettings, Encoding, Loaded
from crossward.data.sources.table_files import in_archive, read_cells, with_one_label
from crossward.data.table_columns import ColumnName, find_columns, names_patients, unused_columns
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath

FOREGROUND = ("background", "foreground")
NO_NAMES: Mapping[str, str] = MappingProxyType({})
NO_TABLES: Mapping[str, Path] = MappingProxyType({})
SAMPLED = 50  # rows whose files are looked for, before the names of all files are
Place = tuple[str, int]  # of a row: its table, where there are several, and its number


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
            others={split: file for split, file in (("val", self.val_path), ("test", self.test_path)) if file},
            classes=self.classes,
        )
        return collection, [str(file) for file in left_out]


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

    @property
    def place(self) -> Place:
        return self.table, self.number

    def bad(self, reason: str) -> BadFile:
        return BadFile(shown_name(self.path), self.number, reason, self.site, self.table)


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
    size: int,
    channels: int = 3,
    fit: str = "stretch",
    prepare: tuple[str, ...] = (),
    bad_files: str = "refuse",
    max_pixels: int = MOST_PIXELS,
    burned_in: bool = False,
    cache: Path,
    root: Path | None = None,
    prefix: str = "",
    columns: Mapping[ColumnName, str] | None = None,
    encoding: str = "utf-8",
    rename: Mapping[str, str] = NO_NAMES,
    several: bool = False,
    one_hot: Sequence[str] = (),
    others: Mapping[str, Path] = NO_TABLES,
    classes: tuple[str, ...] | None = None,
) -> tuple[Collection, list[BadFile]]:
    """The images that `file` names, below `root` or beside the file, and the rows that were left out. `others` are
    tables of splits, if they have their own; `file` is then that of training. `several`: images have several labels, or
    none."""
    policy = check_policy(bad_files)
    archive, inside = in_archive(root or file.parent)
    parsed = _joined({"train": file, **others}, columns, encoding, one_hot)
    masked = "mask" in parsed.columns
    wording = _wording(file, classes, one_hot, several=several, masked=masked)
    names = wording.names
    frame = Frame(size, channels, fit, len(names or ()) if masked else 0, prepare, max_pixels, burned_in)
    with open_files(archive) as files:
        rows = _placed(_renamed(file, parsed.rows, rename, wording), root or file.parent, prefix, masked, inside)
        rows = _as_stored(rows, files)
        problems = [*parsed.problems, *_problems(rows, wording, masked)]
        wrong = {(problem.table, problem.row) for problem in problems}
        # before a refusal we look at every image there is, so that one reading finds every problem
        if policy == "refuse":
            repeated = {(problem.table, problem.row) for problem in _repeated_paths(rows)}
            candidates = [row for row in rows if not row.problem and row.place not in repeated]
        else:
            candidates = [row for row in rows if row.place not in wrong]
        decoded = decode_files(files, [ImagePaths(row.path, row.mask) for row in candidates], frame, cache)
    problems += [candidates[position].bad(reason) for position, reason in decoded.problems]
    used = [candidates[position] for position in decoded.rows]
    before = [label for row in rows if not wording.problem(row.label) for label in wording.of(row.label)]
    after = [label for row in used for label in wording.of(row.label)]
    spelt = [] if masked or names else _spellings(rows, wording)
    left_out = set_aside(file, problems, bad_files=policy, before=before, after=after, spellings=spelt, rows=len(used))
    return _collection(file, parsed, used, wording, decoded), left_out


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
        targets=_targets(labels, classes, wording.several) if masks is None else masks,
        ids=tuple(shown_name(row.path) for row in rows),
        hashes=decoded.hashes,
        # a row without a patient is a patient of its own
        groups=_groups(rows, coded=table.coded) if "group" in columns else None,
        sites=tuple(row.site for row in rows) if "site" in columns else None,
        splits=tuple(row.split for row in rows) if "split" in columns else None,
        file=decoded.file,
        masks_file=decoded.masks_file,
    )


def _targets(labels: Sequence[Sequence[str]], classes: Sequence[str], several: bool) -> Tensor:
    """(N,) classes, or (N, K) of 0 and 1."""
    number = {name: position for position, name in enumerate(classes)}
    if not several:
        return torch.tensor([number[label] for label, *_ in labels])
    if len(classes) < 2:
        raise DataError(
            f"The table names {len(classes)} label(s) in all: {', '.join(classes)}.", hint="Two or more are learnt."
        )
    targets = torch.zeros(len(labels), len(classes), dtype=torch.uint8)
    for row, some in enumerate(labels):
        targets[row, [number[label] for label in some]] = 1
    return targets


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
    return tuple(
        (patient_code(key, row.group) if key else row.group) if row.group else shown_name(row.path) for row in rows
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


def _joined(
    tables: Mapping[str, Path], asked: Mapping[ColumnName, str] | None, encoding: str, one_hot: Sequence[str]
) -> Table:
    """The tables of the splits as one; a single one as it is."""
    parsed = {split: parse(file, asked, encoding, one_hot) for split, file in tables.items()}
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


def parse(
    file: Path,
    asked: Mapping[ColumnName, str] | None = None,
    encoding: str = "utf-8",
    one_hot: Sequence[str] = (),
) -> Table:
    """The rows of the table; the cells of unknown columns are dropped."""
    header, lines = read_cells(file, encoding)
    if one_hot:
        header, lines = with_one_label(str(file), header, lines, one_hot)
    places = find_columns(str(file), header, asked)
    rows = []
    problems = []
    for number, cells in enumerate(lines, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            # its cells are not shown: any of them may name a patient
            problems.append(BadFile("", number, f"has {len(cells)} cells for {len(header)} columns"))
            continue
        rows.append(TableRow(number, **{ours: cells[place].strip() for ours, place in places.items()}))
    if not rows and not problems:
        raise DataError(f"The table {file} has no rows.", hint="Add one row for each image below the header.")
    unused = [name for place, name in enumerate(header) if place not in places.values() and name not in one_hot]
    coded = "group" in places and names_patients(header[places["group"]])
    return Table(tuple(places), rows, problems, tuple(unused_columns(header, places, unused)), coded)


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
        return _found_by_name(rows, files.listing())
    step = max(1, len(rows) // SAMPLED)
    paths = [path for row in rows[::step] if not row.problem for path in (row.path, row.mask) if path]
    if all(_is_there(files, path) for path in paths) and all(row.path.isascii() for row in rows):
        return [*rows]
    listing = files.listing()
    exact = {*listing}
    stored = {_spelled(path): path for path in listing}
    return [
        row if row.problem else replace(row, path=_known(row.path, exact, stored), mask=_known(row.mask, exact, stored))
        for row in rows
    ]


def _is_there(files: Files, path: str) -> bool:
    try:
        files.stamp(path)
    except DataError:
        return False
    return True


def _known(path: str, exact: set[str], stored: Mapping[str, str]) -> str:
    return path if path in exact else stored.get(_spelled(path), path)


def _spelled(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def _found_by_name(rows: Sequence[TableRow], listing: Iterable[str]) -> list[TableRow]:
    """The rows of a table that names images without their extension, with the one image of each name."""
    paths: dict[str, list[str]] = defaultdict(list)
    for path in filter(is_image, listing):
        paths[PurePosixPath(path).stem].append(path)
    found = []
    for row in rows:
        there = paths.get(PurePosixPath(row.path).name, [])
        if row.problem:
            found.append(row)
        elif len(there) == 1:
            found.append(replace(row, path=there[0]))
        else:
            what = f"{len(there)} images have this name: {', '.join(there[:3])}" if there else "no image has this name"
            found.append(replace(row, problem=what))
    return found


def _problems(rows: Sequence[TableRow], wording: Labels, masked: bool) -> list[BadFile]:
    """What is wrong with the rows, without opening their files."""
    problems = []
    for row in rows:
        reasons = [row.problem, "" if masked else wording.problem(row.label)]
        if row.split and row.split not in SPLIT_NAMES.values():
            reasons.append(f'its split "{row.split}" is none of train, val, test')
        problems += [row.bad(reason) for reason in reasons if reason]
    return problems + _repeated_paths(rows)


def _repeated_paths(rows: Sequence[TableRow]) -> list[BadFile]:
    first: dict[str, TableRow] = {}
    problems = []
    for row in rows:
        if not row.problem and (known := first.setdefault(row.path, row)) is not row:
            of = f" of {known.table}" if known.table else ""
            problems.append(row.bad(f"is already on row {known.number}{of}"))
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
