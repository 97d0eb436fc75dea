"""The status of a study: what has become of each of its cells, as of the last `crossward study run`.

Nothing here imports torch, and runs are read through the cached list of runs, so that a study of a thousand cells is
shown at once. Configurations are not resolved: a cell whose table in the file has changed is a new cell, waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from crossward.runs.run_list import BROKEN, RunEntry, list_runs
from crossward.studies.grid import GridCell, grid
from crossward.studies.states import BLOCKED, CUT_OFF, FAILED, FINISHED, RUNNING, STORED, WAITING
from crossward.studies.stored_figures import has_columns, read_rows
from crossward.studies.study_file import StudyFile
from crossward.studies.study_folder import LOCK, StudyFolder

RUN_STATES = {"finished": FINISHED, BROKEN: BLOCKED}


@dataclass(frozen=True)
class CellStatus:
    key: str  # of its configuration as it is written
    label: str
    axes: Mapping[str, Any]  # axis -> its value
    setting: str  # the same in words
    seed: int
    repeat: int
    state: str
    folder: str = ""  # its name; "" if it has none yet
    reason: str = ""
    rounds: int | None = None
    planned: int | None = None
    best: float | None = None  # on validation
    metric: str | None = None


@dataclass(frozen=True)
class StudyStatus:
    folder: str
    cells: tuple[CellStatus, ...]
    runs_of_others: tuple[str, ...]  # run directories that are no cell of the study as it is now
    strangers: tuple[str, ...]  # what else is in the folder
    notes: tuple[str, ...]
    running: bool  # whether a process works on the study now

    def path(self, cell: CellStatus) -> Path:
        return Path(self.folder) / cell.folder

    def in_state(self, *states: str) -> list[CellStatus]:
        return [cell for cell in self.cells if cell.state in states]

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for cell in self.cells:
            counts[cell.state] = counts.get(cell.state, 0) + 1
        return counts


def study_status(study: StudyFile, folder: Path) -> StudyStatus:
    """What is known of each cell. `folder` is that of the study."""
    known = StudyFolder.open(folder)
    entries = {entry.name: entry for entry in list_runs(folder)} if folder.is_dir() else {}
    rows = read_rows(study, folder)
    running = is_locked(folder / LOCK)
    cells = []
    for cell in grid(study):
        record = known.cells.get(cell.written_key)
        entry = entries.get(record.folder) if record else None
        status = _status(cell, known, entry, running=running)
        row = rows.get(cell.written_key)
        if status.state in (WAITING, FAILED) and row and has_columns(row, study.settings.columns):
            status = replace(status, state=STORED, reason="", folder="")
        cells.append(status)
    runs, others = known.strangers()
    current = {status.folder for status in cells}
    former = [record.folder for record in known.cells.values() if record.folder not in current]
    earlier = [name for name in former if name in entries]
    return StudyStatus(str(folder), tuple(cells), (*runs, *earlier), tuple(others), tuple(known.notes), running)


def _status(cell: GridCell, known: StudyFolder, entry: RunEntry | None, *, running: bool) -> CellStatus:
    failure = known.failures.get(cell.written_key)
    state, reason = WAITING, ""
    if entry is not None:
        state = RUN_STATES.get(entry.status) or (RUNNING if running and _is_running(Path(entry.folder)) else CUT_OFF)
        reason = entry.reason if state == BLOCKED else ""
    if failure and state not in (FINISHED, RUNNING):
        state, reason = FAILED, failure.reason
    return CellStatus(
        cell.written_key,
        cell.label,
        cell.setting,
        cell.setting_name,
        cell.seed,
        cell.repeat,
        state,
        entry.name if entry else "",
        reason,
        entry.rounds if entry else None,
        entry.planned if entry else None,
        entry.best if entry else None,
        entry.metric if entry else None,
    )


def _is_running(folder: Path) -> bool:
    return is_locked(folder / "checkpoint" / "lock")


def is_locked(lock: Path) -> bool:
    """Whether a process holds the lock now."""
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False
