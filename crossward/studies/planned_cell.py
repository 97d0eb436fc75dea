"""A planned cell: a cell and what has become of it, from a look at the folder that is its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossward.errors import StorageError
from crossward.runs.run_directory import RunDir
from crossward.runs.run_list import HALF_WRITTEN, read_documents
from crossward.studies.cells import Cell
from crossward.studies.identity import DIGITS, GENERATED, settings_apart
from crossward.studies.states import BLOCKED, CUT_OFF, FINISHED, WAITING

OF_A_RUN = frozenset({*HALF_WRITTEN, "predictions", "weights", "traffic.jsonl", "environment.json", "config.toml"})
SHOWN = 5  # names in a message


@dataclass(frozen=True)
class PlannedCell:
    """A cell, and what is to be done about it."""

    cell: Cell
    state: str
    reason: str = ""  # why it failed or is blocked


def plan_cell(cell: Cell, join: str = "") -> PlannedCell:
    """Look at the folder of a cell, or at the one that it had before folders ended in a digest."""
    names = _names_in(cell.folder)
    if not names:
        former = replace(cell, folder=cell.former_folder)
        if (former.folder / "run.json").exists():
            planned = _look(former, join)
            if planned.state != BLOCKED:
                return planned
        return PlannedCell(cell, WAITING)
    if "run.json" in names:
        return _look(cell, join)
    if strange := sorted(name for name in names if name not in OF_A_RUN and not name.endswith(".part")):
        listed = ", ".join(strange[:SHOWN])
        return PlannedCell(cell, BLOCKED, f"{cell.folder} holds what is not of a run: {listed}")
    return PlannedCell(cell, CUT_OFF)


def _names_in(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as items:
            return {item.name for item in items}
    except FileNotFoundError:
        return set()
    except NotADirectoryError:
        return {"run.json"}  # a file in its place: reading it says so


def _look(cell: Cell, join: str) -> PlannedCell:
    """A cell whose folder has a run.json."""
    try:
        about, _ = read_documents(cell.folder)
        why = "" if cell.members is not None else _why_another(cell, about)
    except StorageError as error:
        return PlannedCell(cell, BLOCKED, f"{cell.folder}: {error.what}")
    except (KeyError, TypeError, AttributeError) as error:
        return PlannedCell(cell, BLOCKED, f"{cell.folder}: run.json is not as crossward writes it ({error!r})")
    if why:
        return PlannedCell(cell, BLOCKED, why)
    joined = not join or (cell.folder / "joined" / join / "joined" / "summary.json").exists()
    return PlannedCell(cell, FINISHED if about["status"] == "finished" and joined else CUT_OFF)


def _why_another(cell: Cell, about: Mapping[str, Any]) -> str:
    """Why the run in the folder is not this cell; "" if it is."""
    if apart := settings_apart(about, cell.config):
        version = about.get("crossward")
        return f"{cell.folder} was run by crossward {version} with other settings: {'; '.join(apart[:SHOWN])}"
    known_by_digest = cell.folder.name.endswith(cell.key[:DIGITS])
    if known_by_digest or cell.config.data.source in GENERATED:
        return ""
    stored = RunDir(cell.folder).read("partition.json")["collection"]["fingerprint"]
    return "" if stored == cell.fingerprint else f"{cell.folder} is of other images"
