"""Tables that give labels to images of other files, as DICOM and NIfTI files need them: by a column that names each
image, one of labels, and if known site and split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from crossward.data.label_words import SPLIT_NAMES
from crossward.data.sources.image_lists import Cells
from crossward.data.sources.table_files import misfit, read_cells, with_one_label
from crossward.data.table_columns import suggested_columns, toml_columns
from crossward.errors import DataError
from crossward.foreign import printable
from crossward.names import nearest

LabelColumn = Literal["image", "label", "site", "split"]
FILE_COLUMNS = ("file", "filename", "path")
OTHERS = ("label", "site", "split")


def read_label_rows(
    file: Path,
    columns: Mapping[LabelColumn, str],
    encoding: str,
    *,
    images: str,
    one_hot: Sequence[str] = (),
    uncertain: str = "leave out",
) -> tuple[list[str], list[Cells]]:
    """The columns that may name images, by `columns` or all that are none of ours, and the rows: each with its number
    and its cells, label, site and split under our names. `images` says what a column of images may be called;
    `one_hot` are columns of 0 and 1 in place of one of labels."""
    header, lines = read_cells(file, encoding)
    if one_hot:
        header, lines = with_one_label(str(file), header, lines, one_hot, uncertain)
    theirs = {ours: columns.get(ours, ours) for ours in OTHERS}  # type: ignore[call-overload]
    _check_header(file, header, columns, theirs)
    full = [(number, cells) for number, cells in enumerate(lines, start=2) if any(cell.strip() for cell in cells)]
    ragged = [f"row {number}: {reason}" for number, cells in full if (reason := misfit(cells, header, one_hot))]
    if ragged or not full:
        what = f"{len(ragged)} row(s) that do not fit the header" if ragged else "no rows"
        raise DataError(f"The table {file} has {what}.", details=ragged, hint="Correct these rows, or export it again.")
    ours = {name: known for known, name in theirs.items()}
    named = [ours.get(name, name) for name in header]
    rows = [(number, dict(zip(named, (cell.strip() for cell in cells), strict=True))) for number, cells in full]
    for _, row in rows:
        row["split"] = SPLIT_NAMES.get(row.get("split", "").casefold(), row.get("split", ""))
    keys = [columns["image"]] if "image" in columns else [name for name in named if name not in (*OTHERS, *one_hot)]
    if not keys:
        raise DataError(f"The header of {file} has no column that names images.", hint=images)
    return keys, rows


def _check_header(file: Path, header: list[str], columns: Mapping[LabelColumn, str], theirs: Mapping[str, str]) -> None:
    """Refuse a header without labels, with one of our columns twice, or without one that data.columns names."""
    problems = [
        f'the column "{printable(name)}" for {ours} is not there. {nearest(name, [printable(one) for one in header])}'
        for ours, name in columns.items()
        if name not in header
    ]
    problems += [
        f'the column "{printable(name)}" is there {header.count(name)} times'
        for name in {*theirs.values(), *columns.values()}
        if header.count(name) > 1
    ]
    hint = f"Columns: {', '.join(map(printable, header[:12]))}."
    if "label" not in columns and "label" not in header:
        problems.append('the column "label" is missing')
        if suggested := suggested_columns(header).get("label"):
            hint = f"Set data.columns = {toml_columns({'label': suggested})}. {hint}"
    if problems:
        details = [f"row 1: {problem}" for problem in problems]
        raise DataError(f"The header of {file} is wrong.", details=details, hint=hint)
