"""The estimate of a study: time, memory and disk of what is left to do.

Cells that have finished are the best measure of those that have not. For a method of which none has finished, one round
is run in a temporary folder. Rounds that are not evaluated take less than the measured one, which is. A search takes as
many rounds as its budget has, each thought to be like those of a cell with the values of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from crossward.runs.build import plan_of
from crossward.runs.run_directory import RunDir
from crossward.runs.run_list import folder_size
from crossward.studies.cells import Cell
from crossward.studies.planned_cell import PlannedCell
from crossward.studies.scheduler import Job, Listener, Scheduler
from crossward.studies.states import FINISHED, TO_DO
from crossward.studies.study_folder import CellRecord, StudyFolder

FINISHED_CELLS = "finished cells"
ONE_ROUND = "one measured round"


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
    """One round of a cell of each method, one after the other, in a folder that is removed again."""
    if not cells:
        return {}
    with TemporaryDirectory(prefix="crossward-estimate-") as place:
        folders = {cell.label: Path(place) / str(number) for number, cell in enumerate(cells)}
        jobs = [Job(cell.label, cell.label, _one_round(cell, folders[cell.label])) for cell in cells]
        watch = _Watch()
        Scheduler(jobs, 1, watch).run()
        return {cell.label: _from_round(cell, folders[cell.label], watch) for cell in cells}


def _one_round(cell: Cell, folder: Path) -> dict[str, Any]:
    config = cell.config.canonical()
    config["engine"]["name"] = "local"
    config["run"] |= {"rounds": 1, "out": str(folder.parent), "name": folder.name}
    return {"task": "run", "folder": str(folder), "config": config}


class _Watch(Listener):
    """What each job took."""

    def __init__(self) -> None:
        self.took: dict[str, tuple[float, int]] = {}
        self.failures: dict[str, str] = {}

    def on_done(self, job: Job, seconds: float, peak_bytes: int) -> None:
        self.took[job.key] = (seconds, peak_bytes)

    def on_failure(self, job: Job, reason: str) -> None:
        self.failures[job.key] = reason


def _from_round(cell: Cell, folder: Path, watch: _Watch) -> MethodEstimate:
    if cell.label in watch.failures:
        return MethodEstimate(cell.label, 0, "", failure=watch.failures[cell.label])
    seconds, peak = watch.took[cell.label]
    plan = plan_of(cell.config)
    in_round = RunDir(folder).lines("metrics.jsonl")[0]["seconds"]
    predictions = sum(file.stat().st_size for file in (folder / "predictions").glob("round-*"))
    evaluated = sum(plan.evaluates(number) for number in range(1, plan.rounds + 1))
    disk = folder_size(folder) + (evaluated - 1) * predictions
    return MethodEstimate(cell.label, 0, ONE_ROUND, seconds + (plan.rounds - 1) * in_round, peak, disk)
