"""Figures of finished cells that outlive their run directories: a row for each, by the key of its configuration.

They are kept in results/NAME.json beside the study file if there is a folder results/, else in the study's own folder.
Rows are added and renewed, never dropped. Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossward.disk import write_atomically
from crossward.errors import StorageError
from crossward.studies.study_file import StudyFile
from crossward.studies.study_folder import FIGURES

Row = dict[str, Any]  # method, value, seed, key, minutes, each column, fractions in percent, and those of its sites


def figures_file(study: StudyFile, folder: Path) -> Path:
    beside = study.file.parent / "results"
    return beside / f"{study.name}.json" if beside.is_dir() else folder / FIGURES


def read_rows(study: StudyFile | None, folder: Path) -> dict[str, Row]:
    """Stored rows by key; without the study's file, those in its folder alone."""
    rows: dict[str, Row] = {}
    beside = [] if study is None else [study.file.parent / "results" / f"{study.name}.json"]
    for file in (*beside, folder / FIGURES):
        for row in _read(file):
            if isinstance(row.get("key"), str):
                rows[row["key"]] = row
    return rows


def _read(file: Path) -> list[Row]:
    try:
        rows = json.loads(file.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"cannot read the stored figures {file}: {error}", hint="Mend or remove the file.") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise StorageError(f"{file} holds no list of figures", hint="Mend or remove the file.")
    return rows


def row_columns(row: Mapping[str, Any]) -> dict[str, float]:
    """The columns of a row, fractions in percent."""
    return {name: value for name, value in row.items() if name.count(".") == 2 and _is_number(value)}


def row_sites(row: Mapping[str, Any], column: str | None) -> dict[str, float]:
    """Site -> its figure in this column, as in `row_columns`; empty if none are stored. Older rows do not name their
    column: it is the one that the study file has."""
    sites = row.get("sites")
    if column is None or row.get("sites_column", column) != column or not isinstance(sites, dict):
        return {}
    return {site: value for site, value in sites.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def has_columns(row: Mapping[str, Any], columns: Iterable[str]) -> bool:
    return all(_is_number(row.get(column)) for column in columns)


def store_rows(study: StudyFile, folder: Path, rows: Sequence[Row]) -> None:
    """Add these rows to the stored ones, in place of those with the same key."""
    file = figures_file(study, folder)
    before = _read(file)
    renewed = {row["key"]: row for row in rows}
    kept = [renewed.pop(row["key"], row) if isinstance(row.get("key"), str) else row for row in before]
    after = [*kept, *renewed.values()]
    if after != before:
        write_atomically(file, (json.dumps(after, indent=1) + "\n").encode())
