"""The estimate of a study: time, memory and disk of what is left to do.

Cells that have finished are the best measure of those that have not. For a method of which none has finished, a part of
a round is measured, as `crossward run --dry-run` does (`runs/estimate.py`). A search takes as many rounds as its budget
has, each thought to be like those of a cell with the values of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from crossward.runs.estimate import RunEstimate
from crossward.runs.run_list import folder_size
from crossward.studies.cells import Cell
from crossward.studies.planned_cell import PlannedCell
from crossward.studies.scheduler import Job, Listener, Scheduler
from crossward.studies.states import FINISHED, TO_DO
from crossward.studies.study_folder import CellRecord, StudyFolder

FINISHED_CELLS = "finished cells"
ONE_ROUND = "part of a round"


@dataclass(frozen=True)
class MethodEstimate:
    """Of one cell of a method."""

    label: str
    cells: int  # that are to be run
    source: str  # what it is computed from; "" if there is no estimate
    seconds: float = 0.0
    peak_bytes: int = 0
    disk_bytes: float = 0.0
    failure: str = ""  # why the measured round failed


@dataclass(frozen=True)
class DueSearch:
    """A search that has not chosen yet, of one method in one setting."""

    label: str
    runs: int  # trials times seeds
    rounds: int  # of all of them together
    rounds_of_cell: int


@dataclass(frozen=True)
class SearchEstimate:
    """Of all searches of a method that have not chosen yet."""

    label: str
    runs: int
    rounds: int
    seconds: float
    disk_bytes: float


@dataclass(frozen=True)
class StudyEstimate:
    cells: tuple[PlannedCell, ...]
    methods: tuple[MethodEstimate, ...]
    workers: int
    searches: tuple[SearchEstimate, ...] = ()

    @property
    def seconds(self) -> float:
        """With all workers busy until the end."""
        longest = max((each.seconds for each in self.methods if each.cells), default=0.0)
        of_cells = sum(each.cells * each.seconds for each in self.methods)
        of_trials = sum(each.seconds for each in self.searches)
        return max(longest, (of_cells + of_trials) / self.workers)

    @property
    def peak_bytes(self) -> int:
        """With the cells that need most side by side."""
        runs = {each.label: each.runs for each in self.searches}
        counts = [(each.peak_bytes, each.cells + runs.get(each.label, 0)) for each in self.methods]
        peaks = sorted((peak for peak, count in counts for _ in range(count)), reverse=True)
        return sum(peaks[: self.workers])

    @property
    def disk_bytes(self) -> float:
        of_cells = sum(each.cells * each.disk_bytes for each in self.methods)
        return of_cells + sum(each.disk_bytes for each in self.searches)


def estimate_study(
    planned: Sequence[PlannedCell], known: StudyFolder, workers: int, searches: Sequence[DueSearch] = ()
) -> StudyEstimate:
    """What is left to do, method by method."""
    todo: dict[str, list[Cell]] = {each.label: [] for each in searches}
    for each in planned:
        if each.state in TO_DO:
            todo.setdefault(each.cell.label, []).append(each.cell)
    finished: dict[str, list[tuple[CellRecord, Path]]] = {}
    for each in planned:
        record = known.cells.get(each.cell.written_key)
        if each.state == FINISHED and record and record.seconds is not None:
            finished.setdefault(each.cell.label, []).append((record, each.cell.folder))
    first = {each.cell.label: each.cell for each in reversed(planned)}
    measured = _measure([first[label] for label in todo if label not in finished and first[label].members is None])
    methods = {}
    for label, cells in todo.items():
        if label in finished:
            methods[label] = _from_finished(label, len(cells), finished[label])
        else:
            free = MethodEstimate(label, 0, "made of local runs")
            methods[label] = replace(measured.get(label, free), cells=len(cells))
    return StudyEstimate(tuple(planned), tuple(methods.values()), workers, tuple(_of_searches(searches, methods)))


def _of_searches(searches: Sequence[DueSearch], methods: Mapping[str, MethodEstimate]) -> Iterator[SearchEstimate]:
    """A trial that is stopped early is thought to take the disk of a whole cell, which it does at the most."""
    for label in dict.fromkeys(each.label for each in searches):
        mine, method = [each for each in searches if each.label == label], methods[label]
        cells = sum(each.rounds / each.rounds_of_cell for each in mine)
        runs, rounds = sum(each.runs for each in mine), sum(each.rounds for each in mine)
        yield SearchEstimate(label, runs, rounds, cells * method.seconds, runs * method.disk_bytes)


def _from_finished(label: str, cells: int, finished: Sequence[tuple[CellRecord, Path]]) -> MethodEstimate:
    return MethodEstimate(
        label,
        cells,
        FINISHED_CELLS,
        fmean(record.seconds or 0.0 for record, _ in finished),
        max(record.peak_bytes or 0 for record, _ in finished),
        fmean(folder_size(folder) for _, folder in finished),
    )


def _measure(cells: Sequence[Cell]) -> dict[str, MethodEstimate]:
    """A part of a round of a cell of each method, one after the other, each in a worker process."""
    if not cells:
        return {}
    with TemporaryDirectory(prefix="crossward-estimate-") as place:
        files = {cell.label: Path(place) / f"{number}.json" for number, cell in enumerate(cells)}
        jobs = [Job(cell.label, cell.label, _estimation(cell, files[cell.label])) for cell in cells]
        watch = _Watch()
        Scheduler(jobs, 1, watch).run()
        return {cell.label: _measured(cell, files[cell.label], watch) for cell in cells}


def _estimation(cell: Cell, file: Path) -> dict[str, Any]:
    config = cell.config.canonical()
    config["engine"]["name"] = "local"
    return {"task": "estimate", "folder": cell.label, "config": config, "file": str(file)}


class _Watch(Listener):
    """Which methods cannot be measured, and why."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def on_failure(self, job: Job, reason: str) -> None:
        self.failures[job.key] = reason


def _measured(cell: Cell, file: Path, watch: _Watch) -> MethodEstimate:
    if cell.label in watch.failures:
        return MethodEstimate(cell.label, 0, "", failure=watch.failures[cell.label])
    found = RunEstimate(**json.loads(file.read_text()))
    return MethodEstimate(cell.label, 0, ONE_ROUND, found.total_seconds, found.total_memory, found.total_disk)
