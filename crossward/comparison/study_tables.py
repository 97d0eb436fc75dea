"""Study tables: many runs by label, setting and seed, made into figures with intervals, verdicts and notes.

runs = [LabelledRun("fedavg", "", 0, 0, Path("runs/fedavg-s0")), ...]
tables = compare_runs(runs, TableSpec(columns=("best.global.f1",), pairs=(("fedbm", "fedavg"),)))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter
from threadpoolctl import threadpool_limits

from crossward.comparison.intervals import Estimate, seed_spread
from crossward.comparison.multiple_datasets import MIN_DATASETS, across_datasets
from crossward.comparison.study_cells import Cell, read_cells
from crossward.comparison.study_costs import cost_figure, reach_rows, sending
from crossward.comparison.study_details import MethodDetails
from crossward.comparison.study_memo import StudyMemo
from crossward.comparison.study_notes import missing_predictions, notes_of
from crossward.comparison.study_pairs import MethodCells, Methods, PairTable, figures_of, noise_floors
from crossward.comparison.study_results import (
    ClassFigure,
    DatasetComparison,
    DetailFigure,
    MethodFigure,
    PairFigure,
    ReachRow,
    SiteRow,
    StudyTables,
    document,
)
from crossward.comparison.study_scores import StudyScores, known_metrics
from crossward.comparison.study_sites import local_label, site_row
from crossward.comparison.study_spec import Column, LabelledFigures, LabelledRun, TableSpec, parse_column
from crossward.errors import ConfigError
from crossward.names import nearest

__all__ = ["LabelledFigures", "LabelledRun", "StudyTables", "TableSpec", "compare_runs", "document", "parse_column"]

ESTIMATE = TypeAdapter(Estimate)
CLASSES = TypeAdapter(tuple[ClassFigure, ...])
DETAILS = TypeAdapter(tuple[DetailFigure, ...])
SITES: TypeAdapter[SiteRow | None] = TypeAdapter(SiteRow | None)
REACH = TypeAdapter(tuple[ReachRow, ...])


def compare_runs(
    runs: Sequence[LabelledRun],
    spec: TableSpec,
    *,
    stored: Sequence[LabelledFigures] = (),
    cache: Path | None = None,
) -> StudyTables:
    """The tables of these runs; `stored` figures stand for runs whose folders are gone, `cache` is a file that makes
    the next call quick."""
    labels = tuple(dict.fromkeys([run.label for run in runs] + [figures.label for figures in stored]))
    settings = tuple(dict.fromkeys([run.setting for run in runs] + [figures.setting for figures in stored]))
    spec.check(labels)
    _check_runs(runs)
    memo = StudyMemo(cache)
    with threadpool_limits(1, "blas"):  # products are small: on a busy machine, threads wait longer than they compute
        tables = _Study(runs, stored, labels, settings, spec, memo).tables()
    memo.save()
    return tables


def _check_runs(runs: Sequence[LabelledRun]) -> None:
    first: dict[tuple[str, str, int, int], LabelledRun] = {}
    for run in runs:
        place = (run.label, run.setting, run.seed, run.repeat)
        if place in first:
            raise ConfigError(
                f"two runs of {run.label!r} have seed {run.seed}",
                details=[str(first[place].folder), str(run.folder)],
                hint="Compare runs of one setting at a time, or give them labels or settings of their own.",
            )
        first[place] = run


class _Study:
    """One call of `compare_runs`: the cells, and the tables that are computed from them one by one."""

    def __init__(
        self,
        runs: Sequence[LabelledRun],
        stored: Sequence[LabelledFigures],
        labels: tuple[str, ...],
        settings: tuple[str, ...],
        spec: TableSpec,
        memo: StudyMemo,
    ) -> None:
        self.spec = spec
        self.labels = labels
        self.settings = settings
        self.memo = memo
        self.columns = spec.parsed()
        self.scores = StudyScores(spec)
        self.cells = read_cells(runs, spec, memo)
        self.usable = [cell for cell in self.cells if not cell.facts.problem]
        self.stored = _without_folder(stored, self.usable)
        self.methods = _by_method(self.usable, self.stored, labels, settings)
        self._check_columns(stored)

    def _check_columns(self, stored: Sequence[LabelledFigures]) -> None:
        known = known_metrics(self.usable)
        wanted = [*self.columns, *([site] if (site := self.spec.site_column()) else [])]
        for column in wanted:
            if known and column.metric not in known and not any(column.name in each.figures for each in stored):
                raise ConfigError(
                    f"the column {column.name!r} names no metric of these runs", hint=nearest(column.metric, known)
                )

    def tables(self) -> StudyTables:
        noise = tuple(noise_floors(self.usable, self.stored, self.columns, self.spec.level))
        floors = {each.column: each.floor for each in noise}
        methods = tuple(self._method_figures())
        table = PairTable(self.methods, self.settings, self.scores, self.memo)
        pairs: list[PairFigure] = []
        for column in self.columns if self.spec.pairs else ():
            pairs += table.compare(column, floors.get(column.name))
        notes = [*notes_of(self.cells, self.methods, self.columns, self.spec)]
        datasets, refused = self._datasets()
        reach, not_reached = self._reach()
        blind = [f.label for f in methods if f.column.startswith("best.") and f.stored == 0 and not f.estimate.images]
        notes += [*missing_predictions(blind), *table.notes, *refused, *not_reached]
        return StudyTables(
            labels=self.labels,
            settings=self.settings,
            columns=self.spec.columns,
            methods=methods,
            pairs=tuple(pairs),
            noise=noise,
            datasets=datasets,
            sites=tuple(self._sites()),
            classes=tuple(self._classes()) if self.spec.classes else (),
            details=tuple(self._details()),
            costs=tuple(cost_figure(each) for each in self.methods.values() if each.cells),
            reach=reach,
            notes=tuple(dict.fromkeys(notes)),
        )

    def _key(self, kind: str, method: MethodCells, *more: object) -> list[object]:
        spec = self.spec
        stamps = [[cell.run.seed, cell.stamp] for cell in method.cells]
        return [kind, method.label, spec.last, spec.level, spec.resamples, spec.seed, spec.split, stamps, *more]

    def _method_figures(self) -> Iterator[MethodFigure]:
        for method in self.methods.values():
            for column in self.columns:
                figures = figures_of(method, column)
                if not figures:
                    continue
                key = self._key("method", method, column.name, method.key(column))
                estimate = self.memo.recall(key, ESTIMATE, partial(self._estimate, method, column))
                cells = {cell.run.seed for cell in method.cells}
                yield MethodFigure(
                    method.label,
                    method.setting,
                    column.name,
                    tuple(figures),
                    tuple(figures.values()),
                    seed_spread(list(figures.values())),
                    estimate,
                    sum(seed not in cells for seed in figures),
                )

    def _estimate(self, method: MethodCells, column: Column) -> Estimate:
        scored = self.scores.scored(method.cells, column, method.stored)
        name = f"{column.metric} on {self.spec.split}, {column.view} view: {method.label}"
        estimate = self.scores.estimate(name, scored, method.cells, column)
        if column.when == "last" and not estimate.images:
            estimate = replace(estimate, how=estimate.how.replace("no predictions", "means over the last rounds"))
        return estimate

    def _classes(self) -> Iterator[ClassFigure]:
        for method in self.methods.values():
            yield from self.memo.recall(self._key("classes", method), CLASSES, partial(self._classes_of, method))

    def _classes_of(self, method: MethodCells) -> tuple[ClassFigure, ...]:
        return tuple(MethodDetails(method, self.scores).classes())

    def _details(self) -> Iterator[DetailFigure]:
        spec = self.spec
        for method in self.methods.values():
            key = self._key("details", method, spec.calibration, spec.specificity, spec.attributes)
            yield from self.memo.recall(key, DETAILS, partial(self._details_of, method))

    def _details_of(self, method: MethodCells) -> tuple[DetailFigure, ...]:
        details = MethodDetails(method, self.scores)
        calibration = details.calibration() if self.spec.calibration else None
        found = [calibration] if calibration else []
        if self.spec.specificity is not None:
            found += details.sensitivities(self.spec.specificity)
        for attribute in self.spec.attributes:
            found += details.subgroups(attribute)
        return tuple(found)

    def _sites(self) -> Iterator[SiteRow]:
        column = self.spec.site_column()
        if column is None:
            return
        local = local_label(list(self.methods.values()), self.spec.baseline)
        for method in self.methods.values():
            other = self.methods.get((local, method.setting)) if local and local != method.label else None
            keys = [each.site_key() for each in (method, other) if each]
            key = self._key("sites", method, column.name, local, keys)
            row = self.memo.recall(key, SITES, partial(site_row, method, other, column, self.scores))
            if row is not None:
                yield row

    def _datasets(self) -> tuple[tuple[DatasetComparison, ...], list[str]]:
        """Methods over datasets, if the runs have several; and why not, if they are too few."""
        names = {setting: self._dataset(setting) for setting in self.settings}
        count = len(set(names.values()))
        if count < 2:
            return (), []
        if count < MIN_DATASETS:
            return (), [f"{count} datasets are too few for a test across datasets: it needs {MIN_DATASETS} at least"]
        found, refused = [], []
        for column in self.columns:
            figures: dict[str, dict[str, list[float]]] = {name: {} for name in dict.fromkeys(names.values())}
            for (label, setting), method in self.methods.items():
                figures[names[setting]].setdefault(label, []).extend(figures_of(method, column).values())
            try:
                found.append(
                    DatasetComparison(column.name, across_datasets(figures, column.metric, level=self.spec.level))
                )
            except ConfigError as error:
                refused.append(f"{column.name}: no test across datasets: {error.what}")
        return tuple(found), refused

    def _dataset(self, setting: str) -> str:
        known = self.spec.datasets.get(setting)
        if known is not None:
            return known
        found = {cell.facts.dataset for cell in self.usable if cell.run.setting == setting}
        return ", ".join(sorted(found))

    def _reach(self) -> tuple[tuple[ReachRow, ...], list[str]]:
        options = self.spec.reach
        if options is None:
            return (), []
        rows: list[ReachRow] = []
        notes = []
        for setting in self.settings:
            cells = sending(cell for cell in self.usable if cell.run.setting == setting and not cell.run.repeat)
            key = ["reach", setting, dict(options), [[cell.run.label, cell.stamp] for cell in cells]]
            try:
                found = self.memo.recall(key, REACH, partial(reach_rows, cells, setting, options))
                rows += found
            except ConfigError as error:
                where = f" in {setting}" if setting else ""
                notes.append(f"no rounds to a target{where}: {error.what}")
        return tuple(rows), notes


def _without_folder(stored: Sequence[LabelledFigures], cells: Sequence[Cell]) -> list[LabelledFigures]:
    """The stored figures of runs that are not among the cells."""
    present = {(cell.run.label, cell.run.setting, cell.run.seed, cell.run.repeat) for cell in cells}
    return [each for each in stored if (each.label, each.setting, each.seed, each.repeat) not in present]


def _by_method(
    cells: Sequence[Cell], stored: Sequence[LabelledFigures], labels: Sequence[str], settings: Sequence[str]
) -> Methods:
    """The runs of each label in each setting, setting by setting, without repeats."""
    by_place: dict[tuple[str, str], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.run.seed):
        if not cell.run.repeat:
            by_place.setdefault((cell.run.label, cell.run.setting), []).append(cell)
    kept: dict[tuple[str, str], list[LabelledFigures]] = {}
    for figures in stored:
        if not figures.repeat:
            kept.setdefault((figures.label, figures.setting), []).append(figures)
    places = [(label, setting) for setting in settings for label in labels]
    return {
        place: MethodCells(*place, tuple(by_place.get(place, ())), tuple(kept.get(place, ())))
        for place in places
        if place in by_place or place in kept
    }
