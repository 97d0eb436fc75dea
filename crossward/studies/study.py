"""Study: a file, its cells and their folder, from Python as from the command line.

import crossward
study = crossward.study("blood.toml")
study.run()
study.records()  # one dict for each number; study.frame() is the same as a pandas frame
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from crossward.comparison.study_tables import LabelledFigures, LabelledRun, StudyTables, TableSpec, compare_runs
from crossward.errors import ConfigError, StorageError
from crossward.runs.result import Result, load
from crossward.studies.cells import Cell, resolve_cells, run_task, study_folder
from crossward.studies.estimate import StudyEstimate, estimate_study
from crossward.studies.figures import cell_row
from crossward.studies.grid import MANY_CELLS, cell_count
from crossward.studies.identity import Collections
from crossward.studies.planned_cell import PlannedCell, plan_cell
from crossward.studies.progress import StudyProgress
from crossward.studies.records import Record, run_records
from crossward.studies.scheduler import Job, Listener, Scheduler, usable_cores
from crossward.studies.states import BLOCKED, FAILED, FINISHED, STORED, TO_DO, WAITING
from crossward.studies.status import StudyStatus, study_status
from crossward.studies.stored_figures import has_columns, read_rows, store_rows
from crossward.studies.study_checks import check_study
from crossward.studies.study_file import StudyFile, read_study
from crossward.studies.study_folder import TABLE_CACHE, CellRecord, Failure, StudyFolder

OUT = Path("runs/studies")  # the folder of studies, each of which has its own folder in it


@dataclass(frozen=True)
class StudyOutcome:
    """How a `run` ended."""

    cells: tuple[PlannedCell, ...]  # with their state now
    done: int  # cells that this call has finished

    @property
    def complete(self) -> bool:
        return all(planned.state in (FINISHED, STORED) for planned in self.cells)

    def in_state(self, *states: str) -> list[PlannedCell]:
        return [planned for planned in self.cells if planned.state in states]


class Study:
    """A study. Nothing is read of images before its cells are needed."""

    def __init__(self, file: str | Path, out: str | Path = OUT) -> None:
        self.file: StudyFile = read_study(Path(file))
        self.out = Path(out)
        self.folder = study_folder(self.file, self.out)
        self._collections = Collections()

    def __repr__(self) -> str:
        return f"Study({str(self.file.file)!r}, {cell_count(self.file.settings)} cells in {str(self.folder)!r})"

    @property
    def size(self) -> int:
        """How many cells its axes span."""
        return cell_count(self.file.settings)

    @cached_property
    def cells(self) -> list[Cell]:
        """Every cell, with its configuration checked and its images looked at."""
        cells = resolve_cells(self.file, self.out, self._collections)
        check_study(self.file, cells, self._collections)
        return cells

    # running ---------------------------------------------------------------------------------------------------------
    def plan(self, *, retry_failed: bool = False) -> list[PlannedCell]:
        """Every cell and what has become of it, by the folders as they are now."""
        known = StudyFolder.open(self.folder)
        rows = read_rows(self.file, self.folder)
        planned = [plan_cell(cell, self.file.settings.join or "") for cell in self.cells]
        folders = {each.folder: planned[i].cell.folder for i, each in enumerate(self.cells)}
        return [self._with_history(each, known, rows, folders, retry_failed=retry_failed) for each in planned]

    def _with_history(
        self,
        planned: PlannedCell,
        known: StudyFolder,
        rows: Mapping[str, Mapping[str, Any]],
        folders: Mapping[Path, Path],
        *,
        retry_failed: bool,
    ) -> PlannedCell:
        """What the folder alone does not show: figures of runs that are gone, and failures."""
        cell = planned.cell
        if cell.members is not None:
            planned = replace(planned, cell=replace(cell, members=folders[cell.members]))
        row = rows.get(cell.written_key)
        if planned.state == WAITING and row and has_columns(row, self.file.settings.columns):
            return replace(planned, state=STORED)
        failure = known.failures.get(cell.written_key)
        if failure and planned.state in TO_DO and not retry_failed:
            return replace(planned, state=FAILED, reason=failure.reason)
        return planned

    def run(
        self,
        *,
        workers: int | None = None,
        retry_failed: bool = False,
        prune: bool = False,
        yes: bool = False,
        view: Listener | None = None,
    ) -> StudyOutcome:
        """Run every cell that has not finished. Cells that were cut off go on, failed ones are left out unless
        `retry_failed`. `prune` removes the checkpoints of each cell once it has finished. `yes` allows a study of more
        than ten thousand cells. `view` is notified of everything.
        """
        if self.size > MANY_CELLS and not yes:
            raise ConfigError(
                f"{self.file.file} asks for {self.size:,} runs",
                hint="Shorten its axes or seeds, leave some out by study.exclude, or allow it by --yes (yes=True).",
            )
        count = workers_to_use(workers)
        _ = self.cells  # mistakes are found before the folder is made
        known = StudyFolder.open(self.folder)
        with known.locked():
            known = StudyFolder.open(self.folder)
            planned = self.plan(retry_failed=retry_failed)
            self._register(known, planned)
            jobs = [self._job(each.cell, prune=prune) for each in planned if each.state in TO_DO]
            recorder = _Recorder(self, known, {each.cell.written_key: each.cell for each in planned}, view)
            recorder.open(jobs, planned, count)
            self._store_figures(planned)
            if jobs:
                Scheduler(jobs, count, recorder, known.peaks()).run()
            return StudyOutcome(tuple(self.plan()), recorder.done)

    def _register(self, known: StudyFolder, planned: Sequence[PlannedCell]) -> None:
        for each in planned:
            cell = each.cell
            before = known.cells.get(cell.written_key)
            record = CellRecord(cell.folder.name, cell.label, dict(cell.setting), cell.seed, cell.repeat, cell.key)
            if before and before.folder == record.folder:
                record = replace(record, seconds=before.seconds, peak_bytes=before.peak_bytes)
            known.cells[cell.written_key] = record
            if each.state == FINISHED:
                known.failures.pop(cell.written_key, None)
        known.keep_cells()

    def _job(self, cell: Cell, *, prune: bool) -> Job:
        folder = str(cell.folder)
        if cell.members is not None:
            after = next(each.written_key for each in self.cells if each.folder == cell.members)
            task: dict[str, Any] = {"task": "ensemble", "folder": folder, "members": str(cell.members)}
            return Job(cell.written_key, cell.label, task, after)
        return Job(
            cell.written_key, cell.label, {**run_task(cell), "join": self.file.settings.join or "", "prune": prune}
        )

    def _store_figures(self, planned: Sequence[PlannedCell]) -> None:
        """Keep the figures of finished cells that are not stored yet."""
        rows = read_rows(self.file, self.folder)
        missing = [p.cell for p in planned if p.state == FINISHED and p.cell.written_key not in rows]
        self.store_figures(missing)

    def store_figures(self, cells: Sequence[Cell]) -> None:
        columns = self.file.settings.columns
        sites = self.file.settings.sites
        rows = [cell_row(cell, columns or default_columns(load(cell.folder)), sites, self._last) for cell in cells]
        if rows:
            store_rows(self.file, self.folder, rows)

    @property
    def _last(self) -> int:
        return self.file.settings.last

    def estimate(self, *, workers: int | None = None) -> StudyEstimate:
        """Time, memory and disk of what is left to do, from finished cells or from one measured round of each
        method."""
        count = workers_to_use(workers)
        return estimate_study(self.plan(), StudyFolder.open(self.folder), count)

    # reading ---------------------------------------------------------------------------------------------------------
    def status(self) -> StudyStatus:
        """What has become of each cell, as of the last run."""
        return study_status(self.file, self.folder)

    def results(self) -> list[tuple[Cell, Result]]:
        """The finished runs."""
        return [(each.cell, load(each.cell.folder)) for each in self.plan() if each.state == FINISHED]

    def records(self) -> list[Record]:
        """Tidy rows, one for each number of each evaluated round of each finished run."""
        return [record for each in self.plan() if each.state == FINISHED for record in run_records(each.cell)]

    def frame(self) -> Any:
        """The records as a pandas frame, if pandas is installed."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise ConfigError("pandas is not installed", hint="pip install pandas, or use records().") from None
        return pandas.DataFrame(self.records())

    def tables(self) -> StudyTables:
        """Figures with intervals, differences with verdicts, sites, costs: what `crossward study table` prints."""
        planned = self.plan()
        finished = [each.cell for each in planned if each.state == FINISHED]
        rows = read_rows(self.file, self.folder)
        runs = [LabelledRun(c.label, c.setting_name, c.seed, c.repeat, c.folder) for c in finished]
        stored = [
            LabelledFigures(c.label, c.setting_name, c.seed, _numbers(rows[c.written_key]))
            for c in (each.cell for each in planned if each.state == STORED and not each.cell.repeat)
        ]
        if not runs and not stored:
            raise StorageError(
                f"no cell of {self.file.file} has finished", hint=f"Run it by `crossward study run {self.file.file}`."
            )
        cache = self.folder / TABLE_CACHE if self.folder.is_dir() else None
        return compare_runs(runs, self.table_spec(finished), stored=stored, cache=cache)

    def table_spec(self, finished: Sequence[Cell]) -> TableSpec:
        """What the tables show: as [study] says, and for methods that have any figures."""
        settings = self.file.settings
        columns = settings.columns or (default_columns(load(finished[0].folder)) if finished else ())
        options: dict[str, Any] = {} if settings.resamples is None else {"resamples": settings.resamples}
        return TableSpec(
            columns=columns,
            pairs=settings.compared_pairs(),
            last=settings.last,
            level=settings.level,
            sites=settings.sites,
            reach=settings.reach,
            specificity=settings.specificity,
            attributes=settings.attributes,
            **options,
        )


def study(file: str | Path, out: str | Path = OUT) -> Study:
    """The study in a TOML file; its run directories are below `out`."""
    return Study(file, out)


def workers_to_use(asked: int | None) -> int:
    """As many as asked, but no more than there are cores: each trains on one."""
    if asked is not None and asked < 1:
        raise ConfigError(f"a study needs a worker at least, not {asked}")
    return min(asked or usable_cores(), usable_cores())


def default_columns(result: Result) -> tuple[str, ...]:
    """The metric that validation chooses by, on the sets that there are."""
    metric = (result.config["evaluate"].get("select") or result.about["task"]["main"]).split("+")[0]
    test = ((result.summary["best"] or result.summary["last"] or {}).get("metrics") or {}).get("test", {})
    columns = [f"best.global.{metric}"] if test.get("global") else []
    if test.get("local"):
        columns += [f"best.mean.{metric}", f"best.worst.{metric}"]
    return tuple(columns) or (f"best.global.{metric}",)


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The columns of a stored row."""
    return {name: value for name, value in row.items() if name.count(".") == 2 and isinstance(value, int | float)}


class _Recorder(Listener):
    """Keeps what happens in the study's folder, and passes it on to the view."""

    def __init__(self, study: Study, known: StudyFolder, cells: Mapping[str, Cell], view: Listener | None) -> None:
        self.study, self.known, self.cells, self.view = study, known, cells, view or Listener()
        self.done = 0

    def open(self, jobs: Sequence[Job], planned: Sequence[PlannedCell], workers: int) -> None:
        """Say what there is to do, and what was found."""
        if isinstance(self.view, StudyProgress):
            finished = sum(each.state in (FINISHED, STORED) for each in planned)
            seconds: dict[str, list[float]] = {}
            for record in self.known.cells.values():
                if record.seconds is not None:
                    seconds.setdefault(record.label, []).append(record.seconds)
            self.view.begin(jobs, workers, finished, seconds)
        runs, others = self.known.strangers()
        notes = list(self.known.notes)
        if others:
            notes.append(f"not of the study and left alone in {self.known.folder}: {', '.join(others[:5])}")
        if runs:
            notes.append(f"{len(runs)} run(s) in {self.known.folder} are no cells of the study as it is now")
        skipped = [each for each in planned if each.state in (FAILED, BLOCKED)]
        notes += [f"{each.cell.folder.name} is left out, {each.state}: {each.reason}" for each in skipped]
        if any(each.state == FAILED for each in skipped):
            notes.append("failed cells are tried again with --retry-failed")
        for note in notes:
            self.view.on_note(note)

    def on_start(self, job: Job) -> None:
        self.view.on_start(job)

    def on_round(self, job: Job, event: Mapping[str, Any]) -> None:
        self.view.on_round(job, event)

    def on_done(self, job: Job, seconds: float, peak_bytes: int) -> None:
        self.done += 1
        self.known.forget_failure(job.key)
        self.known.keep_cost(job.key, seconds, peak_bytes)
        self.study.store_figures([self.cells[job.key]])
        self.view.on_done(job, seconds, peak_bytes)

    def on_failure(self, job: Job, reason: str) -> None:
        cell = self.cells[job.key]
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        failure = Failure(cell.folder.name, cell.label, cell.seed, cell.setting_name, reason, when)
        self.known.keep_failure(job.key, failure)
        self.view.on_failure(job, reason)

    def on_note(self, text: str) -> None:
        self.view.on_note(text)

    def on_tick(self) -> None:
        self.view.on_tick()
