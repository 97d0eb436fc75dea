"""The estimate of a study: time, memory and disk of what is left to do.

Cells that have finished are the best measure of those that have not. For a method of which none has finished, one round
is run in a temporary folder. Rounds that are not evaluated take less than the measured one, which is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
class StudyEstimate:
    cells: tuple[PlannedCell, ...]
    methods: tuple[MethodEstimate, ...]
    workers: int

    @property
    def seconds(self) -> float:
        """With all workers busy until the end."""
        longest = max((each.seconds for each in self.methods if each.cells), default=0.0)
        return max(longest, sum(each.cells * each.seconds for each in self.methods) / self.workers)

    @property
    def peak_bytes(self) -> int:
        """With the cells that need most side by side."""
        peaks = sorted((each.peak_bytes for each in self.methods for _ in range(each.cells)), reverse=True)
        return sum(peaks[: self.workers])

    @property
    def disk_bytes(self) -> float:
        return sum(each.cells * each.disk_bytes for each in self.methods)


def estimate_study(planned: Sequence[PlannedCell], known: StudyFolder, workers: int) -> StudyEstimate:
    """What is left to do, method by method."""
    todo: dict[str, list[Cell]] = {}
    for each in planned:
        if each.state in TO_DO:
            todo.setdefault(each.cell.label, []).append(each.cell)
    finished: dict[str, list[tuple[CellRecord, Path]]] = {}
    for each in planned:
        record = known.cells.get(each.cell.written_key)
        if each.state == FINISHED and record and record.seconds is not None:
            finished.setdefault(each.cell.label, []).append((record, each.cell.folder))
    estimates = {label: _from_finished(label, len(todo[label]), finished[label]) for label in todo if label in finished}
    trained = {label: cells for label, cells in todo.items() if label not in finished and cells[0].members is None}
    estimates |= _measure(trained)
    free = {label: MethodEstimate(label, len(todo[label]), "made of local runs") for label in todo}
    return StudyEstimate(tuple(planned), tuple((free | estimates)[label] for label in todo), workers)


def _from_finished(label: str, cells: int, finished: Sequence[tuple[CellRecord, Path]]) -> MethodEstimate:
    return MethodEstimate(
        label,
        cells,
        FINISHED_CELLS,
        fmean(record.seconds or 0.0 for record, _ in finished),
        max(record.peak_bytes or 0 for record, _ in finished),
        fmean(folder_size(folder) for _, folder in finished),
    )


def _measure(todo: Mapping[str, Sequence[Cell]]) -> dict[str, MethodEstimate]:
    """One round of the first cell of each method, one after the other, in a folder that is removed again."""
    if not todo:
        return {}
    with TemporaryDirectory(prefix="crossward-estimate-") as place:
        folders = {label: Path(place) / str(number) for number, label in enumerate(todo)}
        jobs = [Job(label, label, _one_round(cells[0], folders[label])) for label, cells in todo.items()]
        watch = _Watch()
        Scheduler(jobs, 1, watch).run()
        return {label: _from_round(label, todo[label], folders[label], watch) for label in todo}


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


def _from_round(label: str, cells: Sequence[Cell], folder: Path, watch: _Watch) -> MethodEstimate:
    if label in watch.failures:
        return MethodEstimate(label, len(cells), "", failure=watch.failures[label])
    seconds, peak = watch.took[label]
    plan = plan_of(cells[0].config)
    in_round = RunDir(folder).lines("metrics.jsonl")[0]["seconds"]
    predictions = sum(file.stat().st_size for file in (folder / "predictions").glob("round-*"))
    evaluated = sum(plan.evaluates(number) for number in range(1, plan.rounds + 1))
    disk = folder_size(folder) + (evaluated - 1) * predictions
    return MethodEstimate(label, len(cells), ONE_ROUND, seconds + (plan.rounds - 1) * in_round, peak, disk)
