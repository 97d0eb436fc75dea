"""Lists of images: tables that name images by their ids, the files of these ids, and lines about absent ones."""

from __future__ import annotations

import csv
import difflib
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from crossward.data.bad_files import BadFile
from crossward.data.decode import is_image
from crossward.errors import DataError

FIRST = 10  # absent images that are named
Cells = tuple[int, dict[str, str]]  # a row's number, the header being 1, and its cells by column


def parse_table(content: bytes, source: str, needed: Sequence[str], optional: Sequence[str] = ()) -> list[Cells]:
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


def repeated_images(images: Iterable[tuple[int, str]]) -> list[str]:
    """A line for each image that several rows name."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, image in images:
        rows[image].append(row)
    return [f"rows {', '.join(map(str, at))}: all name {image}" for image, at in rows.items() if len(at) > 1]


def image_paths(root: Path, listing: Iterable[str], wanted: Iterable[str], folders: Sequence[str]) -> dict[str, str]:
    """image id -> its file, for the wanted images that are there; a file in one of `folders` goes before others."""
    files_by_id: dict[str, dict[bool, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in filter(is_image, listing):
        place = PurePosixPath(path)
        files_by_id[place.stem][place.parent.name in folders].append(path)
    paths_by_id = {
        image: files_by_id[image].get(True) or files_by_id[image][False] for image in wanted if image in files_by_id
    }
    if ambiguous := [f"{image}: {', '.join(paths)}" for image, paths in paths_by_id.items() if len(paths) > 1]:
        raise DataError(
            f"{root} holds {len(ambiguous)} image(s) more than once.",
            details=ambiguous,
            hint="Keep one file of each image, or set data.path to the folder that holds them once.",
        )
    return {image: paths[0] for image, paths in paths_by_id.items()}


def first_lines(absent: Sequence[BadFile]) -> list[str]:
    """The first of the absent images, a line each, and how many more there are."""
    more = [f"… and {len(absent) - FIRST} more images"] if len(absent) > FIRST else []
    return [*map(str, absent[:FIRST]), *more]
