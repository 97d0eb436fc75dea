"""What a report is made of: runs that can be compared, read from run directories, with the tables of their figures.

`read_report_source` takes run directories, folders of runs, the folder of a study or its file. It refuses runs of
different data, unless they are to stand side by side, and says in words what was left out and what is unfinished.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from crossward.comparison.curves import method_labels
from crossward.comparison.study_spec import Column, LabelledRun, TableSpec, parse_column
from crossward.comparison.study_tables import StudyTables, compare_runs
from crossward.errors import ConfigError, CrosswardError, StorageError
from crossward.report.content import RunSource, shown
from crossward.report.run_rounds import RunRounds, read_rounds
from crossward.report.stored_runs import StoredRun, find_stored_runs, stored_columns, stored_note
from crossward.report.theme import MethodOrder
from crossward.runs.result import Result, load
from crossward.runs.run_directory import RunDir
from crossward.runs.run_list import BROKEN, list_runs
from crossward.studies.cells import study_folder
from crossward.studies.grid import setting_name
from crossward.studies.study_file import StudyFile, read_study
from crossward.studies.study_folder import INDEX, StudyFolder
from crossward.user_folders import cache_folder

ALONE = "local"  # the method that trains at each site alone
STUDIES = Path("runs/studies")  # where `crossward study run` puts folders by default
REFERENCES = (ALONE, "fedavg")  # what methods are compared with if nobody says
SECOND_METRIC = {"classification": "auc", "multi-label": "f1", "segmentation": "iou"}


@dataclass(frozen=True)
class ReportOptions:
    """What people chose for the page."""

    images: bool = False  # whether it may carry pictures of patients
    features: bool = False  # whether the map of features is computed, if it is not stored


@dataclass(frozen=True)
class ReportRun:
    """One run that the report shows."""

    id: str  # "r3": how numbers on the page refer to it
    label: str  # what the page calls its method
    setting: str  # the values of the other axes, in words; "" if there are none
    seed: int
    repeat: int  # above 0: the same run with another order of batches
    result: Result
    partition: Mapping[str, Any]
    rounds: RunRounds

    @property
    def about(self) -> Mapping[str, Any]:
        return self.result.about

    @property
    def name(self) -> str:
        return shown(self.result.folder.name)

    @property
    def task(self) -> str:
        return str(self.about["task"]["name"])

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(map(str, self.about["task"]["classes"]))

    @property
    def alone(self) -> bool:
        """Whether every hospital trains for itself, without plugins."""
        return bool(self.about["method"]["name"] == ALONE)


@dataclass(frozen=True)
class ReportSource:
    name: str  # of the study, or of the runs
    runs: tuple[ReportRun, ...]
    spec: TableSpec
    tables: StudyTables
    notes: tuple[str, ...] = ()
    study: StudyFile | None = None
    stored: tuple[StoredRun, ...] = ()  # runs whose folders are gone: only the tables have them

    @property
    def every(self) -> tuple[ReportRun | StoredRun, ...]:
        return (*self.runs, *self.stored)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.label for run in self.every))

    @property
    def settings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.setting for run in self.every))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.seed for run in self.every}))

    @property
    def alone(self) -> str | None:
        """The label of training alone, if it was run."""
        return _alone(self.runs, self.stored)

    @property
    def order(self) -> MethodOrder:
        return MethodOrder(self.labels, frozenset({self.alone} if self.alone else ()))

    @property
    def task(self) -> str:
        """Of the first run; "" if no run directory is left."""
        return self.runs[0].task if self.runs else ""

    @property
    def classes(self) -> tuple[str, ...]:
        return self.runs[0].classes if self.runs else ()

    def settings_of(self, task: str) -> tuple[str, ...]:
        """The settings whose runs learn this task: side by side they may differ, in their classes as well."""
        return tuple(dict.fromkeys(run.setting for run in self.runs if run.task == task))

    def classes_of(self, setting: str) -> tuple[str, ...]:
        return next(run.classes for run in self.runs if run.setting == setting)

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(site) for run in self.runs for site in run.about["sites"]))

    @property
    def headline(self) -> Column:
        """The column that the verdict is about: the first of the study's."""
        return parse_column(self.spec.columns[0])

    def of(self, label: str, setting: str | None = None) -> tuple[ReportRun, ...]:
        """The runs of a method, repeats left out; of one setting, or of all."""
        return tuple(
            run
            for run in self.runs
            if run.label == label and not run.repeat and (setting is None or run.setting == setting)
        )

    def run_ids(self, label: str, setting: str | None = None) -> tuple[str, ...]:
        return tuple(run.id for run in self.of(label, setting))

    def run_names(self, label: str, setting: str | None = None) -> str:
        """The runs of a method in words, for tooltips."""
        names = [run.name for run in self.of(label, setting)]
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    def sources(self) -> tuple[RunSource, ...]:
        return tuple(
            RunSource(run.id, run.name, shown(run.result.folder, 400), str(run.about["status"])) for run in self.runs
        )


@dataclass(frozen=True)
class _Found:
    """A run directory that was asked for, before it is known what it is compared with."""

    folder: Path
    label: str | None = None  # that a study gives it
    setting: str = ""
    seed: int | None = None
    repeat: int | None = None


@dataclass
class _Search:
    found: list[_Found] = field(default_factory=list)
    stored: list[StoredRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    study: StudyFile | None = None
    name: str = ""


def read_report_source(
    paths: Sequence[Path], *, side_by_side: bool = False, out: Path = STUDIES, resamples: int | None = None
) -> ReportSource:
    """The runs at these paths with the tables of their figures. `out` is where studies have their folders."""
    search = _find(paths, out)
    runs = _read(search)
    if not runs and not search.stored:
        raise ConfigError("there is no run to report on", details=search.notes, hint="Name run directories or a study.")
    runs = _with_settings(runs, search.notes, side_by_side=side_by_side)
    runs = [replace(run, id=f"r{number}") for number, run in enumerate(runs, 1)]
    stored = tuple(search.stored)
    spec = _table_spec(runs, stored, search.study, resamples)
    tables = _tables(runs, stored, spec)
    notes = list(dict.fromkeys([*search.notes, *tables.notes]))
    return ReportSource(search.name or _name(runs), tuple(runs), spec, tables, tuple(notes), search.study, stored)


# finding --------------------------------------------------------------------------------------------------------------
def _find(paths: Sequence[Path], out: Path) -> _Search:
    if not paths:
        raise ConfigError("no runs were given", hint="Name run directories, a folder of them, or a study file.")
    search = _Search()
    for path in paths:
        if path.suffix == ".toml" and path.is_file():
            _find_study(path, out, search)
        elif (path / "run.json").is_file():
            search.found.append(_Found(path))
        elif (path / INDEX).is_file():
            _find_cells(path, search)
        elif path.is_dir():
            _find_below(path, search)
        else:
            raise StorageError(
                f"there is no {path}", hint="Name run directories, folders of them, or a study file (.toml)."
            )
    return search


def _find_study(file: Path, out: Path, search: _Search) -> None:
    study = read_study(file)
    folder = study_folder(study, out)
    if search.study is not None:
        raise ConfigError("a report is on one study", hint="Make a report of each, or name their run directories.")
    search.study = study
    search.name = search.name or shown(study.name)
    _find_cells(folder, search)
    if not search.found and not search.stored:
        raise StorageError(
            f"the study {study.name} has no folder {folder}" if not folder.is_dir() else f"there is no run in {folder}",
            details=search.notes,
            hint=f"Run it first: `crossward study run {file}`, or say where its folder is by --studies.",
        )


def _find_cells(folder: Path, search: _Search) -> None:
    """The cells that study.json names; a folder that it does not name is not of the study. Cells whose folders are gone
    have their figures, if these are stored."""
    index = StudyFolder.open(folder)
    search.name = search.name or shown(folder.name)
    search.notes += index.notes
    present = {key: each for key, each in index.cells.items() if (folder / each.folder / "run.json").is_file()}
    for record in present.values():
        setting = setting_name(record.setting)
        search.found.append(_Found(folder / record.folder, record.label, setting, record.seed, record.repeat))
    search.stored += find_stored_runs(search.study, folder, index, present)
    if search.stored:
        search.notes.append(stored_note(search.stored))
    missing = len(index.cells) - len(present) - len(search.stored)
    if missing > 0:
        search.notes.append(f"{missing} of the study's {len(index.cells)} runs have not begun")
    for failure in index.failures.values():
        search.notes.append(shown(f"{failure.folder} failed: {failure.reason}", 300))
    if not index.cells and folder.is_dir() and not search.stored:
        _find_below(folder, search)


def _find_below(folder: Path, search: _Search) -> None:
    for entry in reversed(list_runs(folder)):
        place = Path(entry.folder)
        if (place / "run.json").is_file() and entry.status != BROKEN:
            search.found.append(_Found(place))
        else:
            search.notes.append(shown(f"{entry.name} is left out: {entry.reason or entry.status}", 300))
    if not search.found:
        raise StorageError(
            f"there is no run in {folder}", details=search.notes, hint="List what is there by `crossward runs DIR`."
        )
    search.name = search.name or shown(folder.resolve().name)


# reading --------------------------------------------------------------------------------------------------------------
def _read(search: _Search) -> list[ReportRun]:
    """The runs that have something to show; why others have not goes into the notes."""
    results: list[tuple[_Found, Result, RunRounds, Mapping[str, Any]]] = []
    seen: set[Path] = set()
    for found in search.found:
        if found.folder.resolve() in seen:
            continue
        seen.add(found.folder.resolve())
        try:
            result = load(found.folder)
            rounds = read_rounds(result)
            partition = RunDir(found.folder).read("partition.json")
            _check_shape(result.about, partition)
        except (CrosswardError, KeyError, TypeError, AttributeError, ValueError) as error:
            reason = (
                error.what if isinstance(error, CrosswardError) else f"it is not as crossward writes it ({error!r})"
            )
            if len(search.found) == 1:
                raise StorageError(f"{found.folder} cannot be reported on: {reason}") from error
            search.notes.append(shown(f"{found.folder.name} is left out: {reason}", 300))
            continue
        if not rounds.evaluated:
            search.notes.append(shown(f"{found.folder.name} is left out: no round of it is evaluated yet", 300))
            continue
        search.notes += _status_notes(result, rounds)
        results.append((found, result, rounds, partition))
    labels = method_labels([result for _, result, _, _ in results])
    return [
        ReportRun(
            id="",
            label=shown(found.label or label),
            setting=shown(found.setting),
            seed=result.config["run"]["seed"] if found.seed is None else found.seed,
            repeat=result.config["run"].get("batch_order", 0) if found.repeat is None else found.repeat,
            result=result,
            partition=partition,
            rounds=rounds,
        )
        for (found, result, rounds, partition), label in zip(results, labels, strict=True)
    ]


def _check_shape(about: Mapping[str, Any], partition: Mapping[str, Any]) -> None:
    """Raise if what every section reads is not there."""
    for document, keys in ((about, ("status", "method", "task", "sites", "config")), (partition, ("hash", "sites"))):
        for key in keys:
            document[key]
    for key in ("name", "classes", "main"):
        about["task"][key]
    partition["collection"]["name"], partition["collection"]["fingerprint"]


def _status_notes(result: Result, rounds: RunRounds) -> Iterator[str]:
    status = result.about["status"]
    name = shown(result.folder.name)
    if status != "finished":
        planned = result.config["run"].get("rounds", "?")
        words = "is still running" if status == "running" else f"has not finished ({shown(status, 40)})"
        yield f"{name} {words}: round {rounds.last} of {planned}; its figures may change"


# comparing ------------------------------------------------------------------------------------------------------------
def _with_settings(runs: list[ReportRun], notes: list[str], *, side_by_side: bool) -> list[ReportRun]:
    """The runs, if they can be compared; side by side, with their data as the setting where that differs."""
    problems = [*_data_problems(runs)]
    if problems and not side_by_side:
        raise ConfigError(
            "these runs learned from different data, so their figures cannot be compared",
            details=problems,
            hint="Name runs of the same data and partition, or let them stand beside each other by --side-by-side.",
        )
    if problems:
        notes.append("These runs learned from different data: they stand side by side and are not compared")
        runs = [replace(run, setting=_data_words(run, runs)) for run in runs]
    return _without_twins(runs, notes, side_by_side=side_by_side)


def _data_problems(runs: Iterable[ReportRun]) -> Iterator[str]:
    """Where runs of one setting differ in images, or runs of one seed in how these are shared out."""
    by_setting: dict[str, list[ReportRun]] = {}
    for run in runs:
        by_setting.setdefault(run.setting, []).append(run)
    for members in by_setting.values():
        first = members[0]
        others = [run for run in members if _task_key(run) != _task_key(first)]
        yield from (f"{run.name}: {_collection(run)}, and {first.name}: {_collection(first)}" for run in others)
        shared: dict[int, ReportRun] = {}
        for run in members:
            if run in others or run.about.get("pooled"):
                continue
            twin = shared.setdefault(run.seed, run)
            if twin.partition["hash"] != run.partition["hash"]:
                yield f"{run.name} and {twin.name}, both of seed {run.seed}, share the images out in different ways"


def _task_key(run: ReportRun) -> tuple[str, tuple[str, ...], str]:
    task = run.about["task"]
    return str(task["name"]), tuple(map(str, task["classes"])), _collection(run)


def _collection(run: ReportRun) -> str:
    size = "x".join(map(str, run.about.get("images", {}).get("size", ())))
    return shown(run.partition["collection"]["name"]) + (f" at {size} pixels" if size else "")


def _data_words(run: ReportRun, runs: Sequence[ReportRun]) -> str:
    words = ", ".join(filter(None, [run.setting, _collection(run)]))
    hashes = {
        other.partition["hash"]
        for other in runs
        if other.seed == run.seed and _collection(other) == _collection(run) and not other.about.get("pooled")
    }
    return f"{words}, partition {str(run.partition['hash'])[:6]}" if len(hashes) > 1 else words


def _without_twins(runs: list[ReportRun], notes: list[str], *, side_by_side: bool) -> list[ReportRun]:
    """Runs of one method, setting and seed: the same configuration counts once, others need a name of their own."""
    kept: dict[tuple[str, str, int, int], ReportRun] = {}
    for run in runs:
        key = (run.label, run.setting, run.seed, run.repeat)
        twin = kept.get(key)
        if twin is None:
            kept[key] = run
        elif _computes(twin) == _computes(run):
            kept[key] = max(twin, run, key=lambda each: (each.about["status"] == "finished", each.rounds.last))
            notes.append(f"{twin.name} and {run.name} have the same configuration: {kept[key].name} counts")
        elif side_by_side:
            named = replace(run, label=shown(f"{run.label} · {run.result.folder.name}"))
            kept[(named.label, named.setting, named.seed, named.repeat)] = named
        else:
            raise ConfigError(
                f"two runs of {run.label} have seed {run.seed}, but other configurations",
                details=[str(twin.result.folder), str(run.result.folder)],
                hint="`crossward runs diff` shows in what. Name the runs to compare, or use --side-by-side.",
            )
    return list(kept.values())


def _computes(run: ReportRun) -> str:
    """A run's configuration without what cannot change its result."""
    config = {key: value for key, value in run.result.config.items() if key not in ("engine", "run")}
    config["run"] = {key: value for key, value in run.result.config["run"].items() if key not in ("out", "name")}
    return json.dumps([config, run.about["method"], run.about.get("plugins")], sort_keys=True, default=str)


# tables ---------------------------------------------------------------------------------------------------------------
def _alone(runs: Sequence[ReportRun], stored: Sequence[StoredRun]) -> str | None:
    found = (run.label for run in runs if run.alone)
    return next(found, next((run.label for run in stored if run.label == ALONE), None))


def _table_spec(
    runs: Sequence[ReportRun], stored: Sequence[StoredRun], study: StudyFile | None, resamples: int | None
) -> TableSpec:
    with_runs = dict.fromkeys(run.label for run in runs)
    labels = tuple(dict.fromkeys([*with_runs, *(run.label for run in stored)]))
    alone = _alone(runs, stored)
    columns = study.settings.columns if study and study.settings.columns else ()
    columns = columns or (_columns(runs, alone) if runs else stored_columns(stored))
    main = parse_column(columns[0])
    wanted = study.settings.compared_pairs() if study else _pairs(labels)
    more: dict[str, Any] = {} if resamples is None else {"resamples": resamples}
    if study:
        more |= {"last": study.settings.last, "level": study.settings.level, "reach": study.settings.reach}
    reference = next((label for label in REFERENCES if label in with_runs and label != ALONE), None)
    if reference and not more.get("reach") and len(with_runs) > 1:
        more["reach"] = {"reference": reference, "view": "global" if main.view == "global" else "local"}
    if reach := more.get("reach"):
        named = {name for name in (reach["reference"], reach.get("target")) if isinstance(name, str)}
        more["reach"] = reach if named <= set(with_runs) else None
    return TableSpec(
        columns=tuple(columns),
        pairs=tuple((a, b) for a, b in wanted if a in labels and b in labels),
        sites=f"{main.when}.site.{main.metric}",
        baseline=alone,
        **more,
    )


def _columns(runs: Sequence[ReportRun], alone: str | None) -> tuple[str, ...]:
    """The task's main metric in every view there is, what the hospitals have on their own images first if training
    alone is compared; and one more metric."""
    task = runs[0].about["task"]
    main = str(task["main"])
    views = [view for view in ("mean", "worst", "global") if any(run.rounds.has(view, main) for run in runs)]
    if alone is None and "global" in views:
        views = ["global", *(view for view in views if view != "global")]
    second = SECOND_METRIC.get(str(task["name"]), main)
    columns = [f"best.{view}.{main}" for view in views]
    if second != main and views and any(run.rounds.has(views[0], second) for run in runs):
        columns.append(f"best.{views[0]}.{second}")
    return tuple(columns or [f"best.mean.{main}"])


def _pairs(labels: Sequence[str]) -> tuple[tuple[str, str], ...]:
    reference = next((label for label in REFERENCES if label in labels), labels[0])
    return tuple((label, reference) for label in labels if label != reference)


def _tables(runs: Sequence[ReportRun], stored: Sequence[StoredRun], spec: TableSpec) -> StudyTables:
    labelled = [LabelledRun(run.label, run.setting, run.seed, run.repeat, run.result.folder) for run in runs]
    key = blake2b("\n".join(str(run.result.folder.resolve()) for run in runs).encode(), digest_size=12).hexdigest()
    folder = cache_folder() / "reports"
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        folder.mkdir(parents=True, exist_ok=True)
    figures = [run.figures(spec.sites) for run in stored]
    return compare_runs(labelled, spec, stored=figures, cache=folder / f"{key}.cache")


def _name(runs: Sequence[ReportRun]) -> str:
    return runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
