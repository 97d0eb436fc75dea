"""Study pairs: one method against another, in each setting and over all of them, and what chance alone does.

Over all settings a seed counts once: its figure is the mean over the settings that both methods finished. So settings
that share their images, or their seeds, do not count as if they were independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from pydantic import TypeAdapter

from crossward.comparison.intervals import within_fractions
from crossward.comparison.noise_floor import NoiseFloor, noise_floor
from crossward.comparison.reach import UNBOUNDED
from crossward.comparison.study_cells import Cell
from crossward.comparison.study_memo import StudyMemo
from crossward.comparison.study_results import POOLED, ColumnNoise, PairFigure
from crossward.comparison.study_scores import StudyScores, figure
from crossward.comparison.study_spec import VIEWS, WHENS, Column, LabelledFigures
from crossward.comparison.verdicts import (
    BETTER,
    WORSE,
    ComparedMetric,
    PairComparison,
    ScoredMethod,
    compare_scored,
    judge,
)

COMPARISON = TypeAdapter(PairComparison)


@dataclass(frozen=True)
class MethodCells:
    """The finished runs of one method in one setting, without repeats."""

    label: str
    setting: str
    cells: tuple[Cell, ...]
    stored: tuple[LabelledFigures, ...] = ()

    def key(self, column: Column) -> list[object]:
        """What its figures in this column are computed from."""
        kept = [[each.seed, each.figures[column.name]] for each in self.stored if column.name in each.figures]
        return [*([cell.run.seed, cell.stamp] for cell in self.cells), kept]

    def site_key(self) -> list[object]:
        """The same for its figures site by site."""
        kept = [[each.seed, dict(each.sites)] for each in self.stored]
        return [*([cell.run.seed, cell.stamp] for cell in self.cells), kept]

    def data(self) -> dict[int, str]:
        return {cell.run.seed: cell.facts.data for cell in self.cells}


Methods = Mapping[tuple[str, str], MethodCells]  # by label and setting


@dataclass(frozen=True)
class _Unjudged:
    setting: str
    comparison: PairComparison
    cells: int
    cells_won: int


class PairTable:
    """Compares the pairs of a study; `notes` says what could not be compared, and why."""

    def __init__(self, methods: Methods, settings: Sequence[str], scores: StudyScores, memo: StudyMemo) -> None:
        self._methods = methods
        self._settings = settings
        self._scores = scores
        self._memo = memo
        self._spec = scores.spec
        self.notes: list[str] = []

    def compare(self, column: Column, floor: NoiseFloor | None) -> list[PairFigure]:
        """All pairs in every setting, then over all settings; Holm over the pairs of one setting."""
        found = []
        settings = [*self._settings, *([POOLED] if len(self._settings) > 1 else [])]
        for setting in settings:
            compared = [each for pair in self._spec.pairs if (each := self._pair(*pair, setting, column))]
            judged = judge([each.comparison for each in compared], self._spec.level)
            for each, comparison in zip(compared, judged, strict=True):
                found.append(_pair_figure(replace(each, comparison=comparison), column, floor))
        return found

    def _pair(self, a: str, b: str, setting: str, column: Column) -> _Unjudged | None:
        settings = self._settings if setting == POOLED else [setting]
        both = []
        for name in settings:
            first, second = self._methods.get((a, name)), self._methods.get((b, name))
            if first and second and self._comparable(first, second, noted=setting != POOLED):
                both.append((first, second))
        if not both or (setting == POOLED and len(both) < 2):
            return None
        key = ["pair", setting == POOLED, a, b, column.name, *self._options(),
               [[first.key(column), second.key(column)] for first, second in both]]  # fmt: skip
        seeds = _common_seeds(both, column)
        if not seeds:
            if setting != POOLED:
                self.notes.append(f"{a} and {b} have no finished seed in common{_in(setting)}: not compared")
            return None
        comparison = self._memo.recall(key, COMPARISON, lambda: self._compared(both, (a, b), seeds, column))
        cells, won = _cells_won(both, column)
        return _Unjudged(setting, comparison, cells, won)

    def _options(self) -> list[object]:
        spec = self._spec
        return [spec.last, spec.level, spec.resamples, spec.seed, spec.split]

    def _comparable(self, a: MethodCells, b: MethodCells, *, noted: bool) -> bool:
        """Whether both learned from the same data and are tested on the same images."""
        first, second = a.data(), b.data()
        different = [str(seed) for seed in first if seed in second and first[seed] != second[seed]]
        if different and noted:
            self.notes.append(
                f"{a.label} and {b.label} are not compared{_in(a.setting)}: with seed {', '.join(different)} their "
                "data, or the images they are tested on, differ"
            )
        return not different

    def _compared(
        self, both: Sequence[tuple[MethodCells, MethodCells]], names: tuple[str, str], seeds: Sequence[int],
        column: Column,
    ) -> PairComparison:  # fmt: skip
        sides = [_mean_over_settings([self._scored(pair[side], column) for pair in both], seeds) for side in (0, 1)]
        cells = [cell for pair in both for each in pair for cell in each.cells if cell.run.seed in seeds]
        complete = all(seed in side.drawn for side in sides for seed in seeds)
        count = self._scores.image_count(cells, column.when, VIEWS[column.view]) if complete else None
        what = ComparedMetric(column.metric, column.view, self._spec.split)
        return compare_scored(sides[0], sides[1], names, what, self._spec.level, count)

    def _scored(self, method: MethodCells, column: Column) -> ScoredMethod:
        return self._scores.scored(method.cells, column, method.stored)


def _in(setting: str) -> str:
    return f" in {setting}" if setting else ""


def figures_of(method: MethodCells, column: Column) -> dict[int, float]:
    """By seed, without a look at predictions; figures that are undefined are left out."""
    figures = {each.seed: value for each in method.stored if (value := each.value(column)) is not None}
    figures |= {cell.run.seed: value for cell in method.cells if (value := figure(cell, column)) is not None}
    return dict(sorted(figures.items()))


def _common_seeds(both: Sequence[tuple[MethodCells, MethodCells]], column: Column) -> list[int]:
    sets = [set(figures_of(each, column)) for pair in both for each in pair]
    return sorted(set.intersection(*sets))


def _cells_won(both: Sequence[tuple[MethodCells, MethodCells]], column: Column) -> tuple[int, int]:
    """How many pairs of runs there are, of the same setting and seed, and in how many the first is better."""
    differences = []
    for first, second in both:
        a, b = figures_of(first, column), figures_of(second, column)
        differences += [a[seed] - b[seed] for seed in a if seed in b]
    sign = -1 if column.lower_is_better else 1
    return len(differences), sum(sign * difference > 0 for difference in differences)


def _mean_over_settings(scored: Sequence[ScoredMethod], seeds: Sequence[int]) -> ScoredMethod:
    figures = {seed: fmean(each.figures[seed] for each in scored) for seed in seeds}
    drawn = {}
    for seed in seeds:
        if all(seed in each.drawn for each in scored):
            drawn[seed] = np.mean([each.drawn[seed] for each in scored], axis=0)
    return ScoredMethod(figures, drawn)


def _pair_figure(each: _Unjudged, column: Column, floor: NoiseFloor | None) -> PairFigure:
    comparison = each.comparison
    difference = comparison.difference
    if column.metric not in UNBOUNDED:
        difference = within_fractions(difference, least=-1.0)
    if column.when == "last" and not difference.images:
        difference = replace(difference, how=difference.how.replace("no predictions", "means over rounds"))
    noise = floor.of_means(each.cells) if floor else None
    exceeds = None if noise is None else abs(difference.value) > noise
    found = PairFigure(
        a=comparison.a,
        b=comparison.b,
        setting=each.setting,
        column=column.name,
        seeds=comparison.seeds,
        figures=comparison.figures,
        difference=difference,
        tests=comparison.tests,
        cells=each.cells,
        cells_won=each.cells_won,
        verdict=comparison.verdict,
        p_adjusted=comparison.p_adjusted,
        pairs=comparison.pairs,
        noise=noise,
        exceeds_noise=exceeds,
        sentence="",
    )
    return replace(found, sentence=sentence(found, column))


def sentence(pair: PairFigure, column: Column) -> str:
    """The verdict in words, with its numbers."""
    verb = {BETTER: "is better than", WORSE: "is worse than"}.get(pair.verdict, "is not distinguishable from")
    estimate = pair.difference
    unit = " points" if column.scale == 100 else ""
    digits = 1 if column.scale == 100 else 3
    numbers = f"{column.scale * estimate.value:+.{digits}f}{unit}"
    if estimate.low is None or estimate.high is None:
        interval = estimate.how
    else:
        low, high = (f"{column.scale * bound:+.{digits}f}" for bound in (estimate.low, estimate.high))
        interval = f"{estimate.level:.0%} interval {low} to {high}"
    p = "" if pair.p_adjusted is None else f", p = {pair.p_adjusted:.2g} (Holm over {pair.pairs})"
    images = f", {estimate.images} images" if estimate.images else ""
    noise = ""
    if pair.exceeds_noise is not None:
        noise = "; more than the noise floor" if pair.exceeds_noise else "; within the noise floor"
    where = f", {pair.setting}" if pair.setting else ""
    return (
        f"{pair.a} {verb} {pair.b} in {column.metric} ({column.view}, {WHENS[column.when]}{where}): {numbers}, "
        f"{interval}{p}; {estimate.seeds} seed(s){images}; better in {pair.cells_won} of {pair.cells} runs{noise}"
    )


def noise_floors(
    cells: Sequence[Cell], stored: Sequence[LabelledFigures], columns: Sequence[Column], level: float
) -> Iterator[ColumnNoise]:
    """The noise floor of each column, from runs that differ in the order of batches only; none without repeats."""
    for column in columns:
        known = [(cell.run.label, cell.run.setting, cell.run.seed, figure(cell, column)) for cell in cells]
        known += [(each.label, each.setting, each.seed, each.value(column)) for each in stored]
        sets: dict[tuple[str, str, int], list[float]] = {}
        for label, setting, seed, value in known:
            if value is not None:
                sets.setdefault((label, setting, seed), []).append(value)
        repeats = [values for values in sets.values() if len(values) > 1]
        if repeats:
            yield ColumnNoise(column.name, noise_floor(repeats, column.metric, level=level))
