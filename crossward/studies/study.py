"""Study: a file, its cells and their folder, from Python as from the command line.

import crossward
study = crossward.study("blood.toml")
study.run()
study.records()  # one dict for each number; study.frame() is the same as a pandas frame
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from crossward.comparison.study_tables import StudyTables
from crossward.core.cores import usable_cores
from crossward.errors import ConfigError
from crossward.runs.result import Result, load
from crossward.studies.cells import Cell, resolve_cells, run_task, study_folder
from crossward.studies.choices import SearchResult, current_results, with_choices
from crossward.studies.estimate import StudyEstimate, estimate_study
from crossward.studies.figures import cell_row
from crossward.studies.grid import MANY_CELLS, cell_count
from crossward.studies.identity import Collections
from crossward.studies.planned_cell import PlannedCell, plan_cell
from crossward.studies.progress import StudyProgress
from crossward.studies.race import RaceReport, run_race, serving_methods
from crossward.studies.records import Record, run_records
from crossward.studies.scheduler import Execute, Job, Listener, on_this_machine
from crossward.studies.search import due_searches, run_search
from crossward.studies.search_checks import check_search
from crossward.studies.states import BLOCKED, FAILED, FINISHED, STORED, TO_DO, WAITING
from crossward.studies.status import StudyStatus, study_status
from crossward.studies.stored_figures import has_columns, read_rows, store_rows
from crossward.studies.study_checks import check_study, metric_names, task_of
from crossward.studies.study_comparison import JoinRow, columns_of, compare_study, join_rows
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

    def __init__(self, file: str | Path, out: str | Path = OUT, *, race: bool = False) -> None:
        """`race`: it is a race between its methods, whether or not the file says so."""
        self.out = Path(out)
        written = read_study(Path(file), race=race)
        self.folder = study_folder(written, self.out)
        self.searched: list[SearchResult] = current_results(written, self.folder)
        self.file: StudyFile = with_choices(written, self.searched)
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
        check_search(self.file, metric_names(task_of(cells[0], self._collections)) if cells else ())
        return cells

    def _search(self, execute: Execute, view: Listener, workers: int) -> None:
        """Choose what [study.search] asks for; the cells have the chosen values from then on."""
        self.searched = run_search(self.file, self.folder, self._collections, execute, view, workers)
        self.file = with_choices(self.file, self.searched)
        self.__dict__.pop("cells", None)

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
        execute: Execute | None = None,
    ) -> StudyOutcome:
        """Run every cell that has not finished. Cells that were cut off go on, failed ones are left out unless
        `retry_failed`. `prune` removes the checkpoints of each cell once it has finished. `yes` allows a study of more
        than ten thousand cells. `view` is notified of everything. `execute` runs jobs elsewhere, as on a cluster; None:
        on this machine.
        """
        if self.size > MANY_CELLS and not yes:
            raise ConfigError(
                f"{self.file.file} asks for {self.size:,} runs",
                hint="Shorten its axes or seeds, leave some out by study.exclude, or allow it by --yes (yes=True).",
            )
        if self.file.settings.race_settings() is not None:
            raise ConfigError(f"{self.file.file} is a race", hint="Run it by `crossward study race` (study.race()).")
        count = workers_to_use(workers)
        _ = self.cells  # mistakes are found before the folder is made
        known = StudyFolder.open(self.folder)
        with known.locked(), nullcontext(execute) if execute else on_this_machine(count, known.peaks()) as execute:
            known = StudyFolder.open(self.folder)
            if self.file.settings.search is not None:
                self._search(execute, view or Listener(), count)
            planned = self.plan(retry_failed=retry_failed)
            self._register(known, planned)
            jobs = [self._job(each.cell, prune=prune) for each in planned if each.state in TO_DO]
            recorder = _Recorder(self, known, {each.cell.written_key: each.cell for each in planned}, view)
            recorder.open(jobs, planned, count)
            self._store_figures(planned)
            if jobs:
                execute(jobs, recorder)
            return StudyOutcome(tuple(self.plan()), recorder.done)

    def race(
        self, *, workers: int | None = None, view: Listener | None = None, execute: Execute | None = None
    ) -> RaceReport:
        """Find out which of the methods suits the federation, by successive halving; see race.py."""
        if self.file.settings.race_settings() is None:
            raise ConfigError(f"{self.file.file} is no race", hint="Write race = true under [study].")
        count = workers_to_use(workers)
        self.file, left_out = serving_methods(self.file, named=self.file.names_methods)
        cells = self.cells
        known = StudyFolder.open(self.folder)
        with known.locked(), nullcontext(execute) if execute else on_this_machine(count, known.peaks()) as execute:
            known = StudyFolder.open(self.folder)
            self._register(known, self.plan())
            return run_race(self.file, cells, left_out, execute, view or Listener(), count)

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
        settings = self.file.settings
        rows = [cell_row(cell, columns_of(self.file, cell), settings.sites, settings.last) for cell in cells]
        if rows:
            store_rows(self.file, self.folder, rows)

    def estimate(self, *, workers: int | None = None) -> StudyEstimate:
        """Time, memory and disk of what is left to do, trials of a search included, from finished cells or from one
        measured round of each method."""
        count = workers_to_use(workers)
        searches = due_searches(self.file, self.folder, self._collections)
        return estimate_study(self.plan(), StudyFolder.open(self.folder), count, searches)

    # reading ---------------------------------------------------------------------------------------------------------
    def status(self) -> StudyStatus:
        """What has become of each cell, as of the last run."""
        return study_status(self.file, self.folder)

    def results(self) -> list[Result]:
        """The finished runs."""
        status = self.status()
        return [load(status.path(cell)) for cell in status.in_state(FINISHED)]

    def records(self) -> list[Record]:
        """Tidy rows, one for each number of each evaluated round of each finished run."""
        status = self.status()
        return [record for cell in status.in_state(FINISHED) for record in run_records(cell, status.path(cell))]

    def frame(self) -> Any:
        """The records as a pandas frame, if pandas is installed."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise ConfigError("pandas is not installed", hint="pip install pandas, or use records().") from None
        return pandas.DataFrame(self.records())

    def tables(self) -> StudyTables:
        """Figures with intervals, differences with verdicts, sites, costs: what `crossward study table` prints."""
        cache = self.folder / TABLE_CACHE if self.folder.is_dir() else None
        tables = compare_study(self.file, self.status(), read_rows(self.file, self.folder), cache)
        chosen = [f"chosen on validation: {result.sentence()}" for result in self.searched]
        return replace(tables, notes=(*tables.notes, *chosen))

    def joined(self) -> list[JoinRow]:
        """What the site that joins the finished runs gains, if study.join names one."""
        return join_rows(self.file, self.status())


def study(file: str | Path, out: str | Path = OUT) -> Study:
    """The study in a TOML file; its run directories are below `out`."""
    return Study(file, out)


def workers_to_use(asked: int | None) -> int:
    """As many as asked, but no more than there are cores: each trains on one."""
    if asked is not None and asked < 1:
        raise ConfigError(f"a study needs a worker at least, not {asked}")
    return min(asked or usable_cores(), usable_cores())


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
