"""HAM10000 skin lesions (7 classes, 4 hospitals, lesions as groups), from data.path or CROSSWARD_DATA.

10,015 dermatoscopic images of 7,470 lesions (Tschandl et al., Sci Data 5, 2018, 180161).

https://doi.org/10.7910/DVN/DBW86T: a table HAM10000_metadata, and images in HAM10000_images_part_1 and _part_2, in
HAM10000_images or beside the table; a folder, or one .zip of it. The column lesion_id gives the groups, the column
dataset the hospitals. Copies of the table without the column dataset, such as Kaggle's, are read without hospitals.
Nine lesions of the official table were imaged at two hospitals, which is no error.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import torch

from crossward.data import cache as decoded_images
from crossward.data.archives import Files, Quarantined, checked_policy, dataset_in, opened, settle
from crossward.data.collection import Collection
from crossward.data.decode import Frame, is_image
from crossward.data.sources.settings import ImageFileSettings, Loaded
from crossward.errors import ConfigError, DataError
from crossward.settings import AbsolutePath
from crossward.user_folders import data_root

NAME = "HAM10000"
WHERE = "https://doi.org/10.7910/DVN/DBW86T"
CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
HOSPITALS = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
TABLES = ("HAM10000_metadata.csv", "HAM10000_metadata", "HAM10000_metadata.tab")
FOLDERS = ("HAM10000_images_part_1", "HAM10000_images_part_2", "HAM10000_images")
FIRST = 10  # absent images that are named
Cells = tuple[int, dict[str, str]]  # a row's number, the header being 1, and its cells by column


class Ham10000Settings(ImageFileSettings):
    source: Literal["ham10000"]
    path: AbsolutePath | None = None  # None: HAM10000.zip, or that folder, in CROSSWARD_DATA

    def load(self) -> Loaded:
        collection, left_out = read(self.path or located(data_root()), **self.decoding())
        return collection, [str(file) for file in left_out]


@dataclass(frozen=True)
class Entry:
    """A row of the metadata."""

    row: int
    image: str
    lesion: str
    diagnosis: str
    hospital: str | None  # None: the table does not tell


def located(root: Path | None) -> Path:
    """Where the set is in `root`, where all datasets are kept, or `root` itself."""
    try:
        return dataset_in(root, (NAME,), title=NAME, where=WHERE)
    except ConfigError:
        if root is not None and any((root / table).is_file() for table in TABLES):
            return root
        raise


def read(
    root: Path,
    *,
    size: int = 64,
    channels: int = 3,
    fit: str = "stretch",
    bad_files: str = "refuse",
    prepare: tuple[str, ...] = (),
    cache: Path,
) -> tuple[Collection, list[Quarantined]]:
    """The lesions in `root`, a folder or archive, in the order of their image ids, and what was left out.

    Rows are named by their file, as ISIC_0024306.jpg, however the set is packed, so that a partition made from the
    archive fits the folder.
    """
    frame, policy = Frame(size, channels, fit, prepare=prepare), checked_policy(bad_files)
    with opened(root) as files:
        listing = files.listing()
        entries, problems = metadata(files, listing)
        paths = pictures(root, listing, [entry.image for entry in entries], FOLDERS)
        absent = [entry for entry in entries if entry.image not in paths]
        gone = [Quarantined(entry.image, entry.row, "its image is not there") for entry in absent]
        if gone and (policy == "refuse" or not paths):
            raise _incomplete(root, problems, gone, len(entries), listing)
        asked = [entry for entry in entries if entry.image in paths]
        decoded = decoded_images.decoded(files, [decoded_images.Row(paths[e.image]) for e in asked], frame, cache)
    problems += gone + [Quarantined(asked[at].image, asked[at].row, reason) for at, reason in decoded.problems]
    kept = [asked[at] for at in decoded.kept]
    before, after = [entry.diagnosis for entry in entries], [entry.diagnosis for entry in kept]
    aside = settle(root, problems, bad_files=policy, before=before, after=after)
    return _collection(kept, paths, decoded), aside


def _collection(entries: Sequence[Entry], paths: Mapping[str, str], decoded: decoded_images.Decoded) -> Collection:
    run_sites = [entry.hospital for entry in entries if entry.hospital is not None]  # all of them or none
    return Collection(
        name="ham10000",
        task="classification",
        classes=CLASSES,
        images=decoded.images,
        targets=torch.tensor([CLASSES.index(entry.diagnosis) for entry in entries]),
        ids=tuple(PurePosixPath(paths[entry.image]).name for entry in entries),
        hashes=decoded.hashes,
        groups=tuple(entry.lesion for entry in entries),
        sites=tuple(run_sites) or None,
        file=decoded.file,
    )


def metadata(files: Files, listing: Iterable[str]) -> tuple[list[Entry], list[Quarantined]]:
    """The rows of the table in the order of their image ids, and those that cannot be used."""
    tables = [path for path in listing if PurePosixPath(path).name in TABLES]
    if len(tables) != 1:
        raise DataError(
            f"{files.root} holds {f'{len(tables)} tables' if tables else 'no table'} HAM10000_metadata.",
            details=tables,
            hint=f"Keep one of them: {', '.join(TABLES)}." if tables else f"Download HAM10000_metadata from {WHERE}.",
        )
    source = f"{files.root}: {tables[0]}"
    try:
        content = files.read(tables[0])
    except DataError as error:
        raise DataError(f"{source} {error.what}.", hint="Copy it again.") from error
    rows = table_rows(content, source, ("lesion_id", "image_id", "dx"), ("dataset",))
    found = [
        Entry(number, cells["image_id"], cells["lesion_id"], cells["dx"], cells.get("dataset"))
        for number, cells in rows
    ]
    problems = [Quarantined(entry.image, entry.row, reason) for entry in found for reason in _wrong(entry)]
    wrong = {problem.row for problem in problems}
    entries = sorted((entry for entry in found if entry.row not in wrong), key=lambda entry: entry.image)
    contradictions = repeated((entry.row, entry.image) for entry in found if entry.image) + _two_diagnoses(entries)
    if contradictions:
        raise DataError(
            f"{source} contradicts itself: {len(contradictions)} problem(s).",
            details=contradictions,
            hint=f"Correct the table, or download it again from {WHERE}.",
        )
    return entries, problems


def table_rows(content: bytes, source: str, needed: Sequence[str], optional: Sequence[str] = ()) -> list[Cells]:
    """The rows of a table with commas, semicolons or tabs; `source` is what errors call it."""
    try:
        text = content.decode("utf-8-sig")
        separator = max(",;\t", key=text.partition("\n")[0].count)
        header, *lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{source} is not a table in UTF-8 text ({error}).", hint="Download it again.") from error
    columns = [name.strip() for name in header]
    _check_columns(columns, source, needed, optional)
    full = [(number, cells) for number, cells in enumerate(lines, start=2) if any(cell.strip() for cell in cells)]
    ragged = [
        f"row {n}: has {len(cells)} cells for {len(columns)} columns" for n, cells in full if len(cells) != len(columns)
    ]
    if ragged or not full:
        what = f"{len(ragged)} row(s) that do not fit the header" if ragged else "no rows"
        raise DataError(f"{source} has {what}.", details=ragged, hint="Download it again.")
    return [(number, dict(zip(columns, (cell.strip() for cell in cells), strict=True))) for number, cells in full]


def _check_columns(columns: Sequence[str], source: str, needed: Sequence[str], optional: Sequence[str]) -> None:
    """Refuse a header without a needed column, with one twice, or with an optional one in another spelling."""
    problems = []
    for name in (*needed, *optional):
        others = [column for column in columns if column not in (*needed, *optional)]
        near = difflib.get_close_matches(name, others, n=1, cutoff=0.0 if name in needed else 0.75)
        if columns.count(name) > 1:
            problems.append(f'the column "{name}" is there {columns.count(name)} times')
        elif name not in columns and (near or name in needed):
            problems.append(f'the column "{name}" is missing' + (f'; the nearest is "{near[0]}"' if near else ""))
    if problems:
        details = [f"row 1: {problem}" for problem in problems]
        raise DataError(f"The header of {source} is wrong.", details=details, hint=f"Columns: {', '.join(columns)}.")


def repeated(images: Iterable[tuple[int, str]]) -> list[str]:
    """A line for each image that several rows name."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, image in images:
        rows[image].append(row)
    return [f"rows {', '.join(map(str, at))}: all name {image}" for image, at in rows.items() if len(at) > 1]


def pictures(root: Path, listing: Iterable[str], wanted: Iterable[str], folders: Sequence[str]) -> dict[str, str]:
    """image id -> its file, for the wanted images that are there; a file in one of `folders` goes before others."""
    held: dict[str, dict[bool, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in filter(is_image, listing):
        place = PurePosixPath(path)
        held[place.stem][place.parent.name in folders].append(path)
    found = {image: held[image].get(True) or held[image][False] for image in wanted if image in held}
    if ambiguous := [f"{image}: {', '.join(paths)}" for image, paths in found.items() if len(paths) > 1]:
        raise DataError(
            f"{root} holds {len(ambiguous)} image(s) more than once.",
            details=ambiguous,
            hint="Keep one file of each image, or set data.path to the folder that holds them once.",
        )
    return {image: paths[0] for image, paths in found.items()}


def _wrong(entry: Entry) -> list[str]:
    reasons = ["its image_id is empty"] if not entry.image else []
    reasons += ["its lesion_id is empty"] if not entry.lesion else []
    for column, value, known in (("dx", entry.diagnosis, CLASSES), ("dataset", entry.hospital, HOSPITALS)):
        if value is not None and value not in known:
            reasons.append(f'its {column} "{value}" is none of {", ".join(known)}')
    return reasons


def _two_diagnoses(entries: Iterable[Entry]) -> list[str]:
    said: dict[str, dict[str, int]] = defaultdict(dict)
    for entry in entries:
        said[entry.lesion].setdefault(entry.diagnosis, entry.row)
    return [
        f"lesion {lesion}: " + ", ".join(f"{diagnosis} (row {row})" for diagnosis, row in rows.items())
        for lesion, rows in said.items()
        if len(rows) > 1
    ]


def _incomplete(
    root: Path, problems: Sequence[Quarantined], absent: Sequence[Quarantined], total: int, listing: Iterable[str]
) -> DataError:
    packed = [path for path in listing if PurePosixPath(path).name in {f"{folder}.zip" for folder in FOLDERS}]
    leave = 'or leave them out with data.bad_files = "quarantine"' if len(absent) < total else "or check data.path"
    return DataError(
        f"{root}: {len(absent)} of the {total} images that the metadata names are not there.",
        details=[*map(str, problems), *named(absent)],
        hint=f"Unpack {', '.join(packed)}, {leave}." if packed else f"Download them from {WHERE}, {leave}.",
    )


def named(absent: Sequence[Quarantined]) -> list[str]:
    """The first of the absent images, a line each, and how many more there are."""
    more = [f"… and {len(absent) - FIRST} more images"] if len(absent) > FIRST else []
    return [*map(str, absent[:FIRST]), *more]
