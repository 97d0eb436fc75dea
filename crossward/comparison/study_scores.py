"""Study scores: the figure of a run in each column, and the same on every resample of its images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossward.comparison.intervals import Estimate, seeds_and_images_estimate, within_fractions
from crossward.comparison.method_runs import MethodRun
from crossward.comparison.reach import UNBOUNDED
from crossward.comparison.resampling import combine, draw_by_name, resampled
from crossward.comparison.study_cells import Cell, PredictionReader
from crossward.comparison.study_spec import VIEWS, Column, LabelledFigures, TableSpec
from crossward.comparison.verdicts import ScoredMethod
from crossward.comparison.weighted_metrics import (
    SUMS,
    Array,
    Features,
    PredictedSet,
    weighted_metric,
    weighted_sums,
)

SUMS_IN_MEMORY = 1024  # sets, of (B, 3 x classes) numbers each
WEIGHT_BYTES = 256 << 20  # of counts that are kept in memory


@dataclass(frozen=True)
class ImageCount:
    """How many images and groups resamples were drawn from (`resampling.DrawnFrom`)."""

    images: int
    groups: int
    resamples: int

    @property
    def grouped(self) -> bool:
        return self.groups < self.images

    @property
    def degrees(self) -> int:
        return max(self.groups - 1, 1)

    @property
    def inflation(self) -> float:
        return self.groups / self.degrees


class NamedWeights:
    """Counts of images by name, the same in every run; those of the latest sets are kept."""

    def __init__(self, groups: Mapping[str, str], resamples: int, seed: int) -> None:
        self._groups = groups
        self._resamples = resamples
        self._seed = seed
        self._kept: OrderedDict[tuple[str, ...], Array] = OrderedDict()
        self._bytes = 0

    def weights(self, ids: Sequence[str]) -> Array:
        """(B, n): how often each resample has drawn these images."""
        key = tuple(ids)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        resampling = draw_by_name(key, self._groups, resamples=self._resamples, seed=self._seed)
        counts = self._kept[key] = resampling.weights(key)
        self._bytes += counts.nbytes
        while self._bytes > WEIGHT_BYTES and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.nbytes
        return counts


@dataclass(frozen=True)
class _TestedImages:
    images: frozenset[str]
    groups: frozenset[str]


class StudyScores:
    """Scores of the cells of a study; what was computed is kept, predictions are read when they are needed."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.reader = PredictionReader(spec.split)
        self.weights = NamedWeights(self.reader.groups, spec.resamples, spec.seed)
        self._drawn: dict[tuple[str, str], Array | None] = {}
        self._sums: OrderedDict[tuple[int, Features], tuple[PredictedSet, Array]] = OrderedDict()
        self._site_drawn: dict[tuple[str, str], dict[str, Array]] = {}
        self._tested: dict[tuple[str, ...], _TestedImages] = {}

    def drawn(self, cell: Cell, column: Column) -> Array | None:
        """(B,): the figure on every resample; None if no predictions are behind it."""
        key = (cell.stamp, column.name)
        if key not in self._drawn:
            run = self.reader.read(cell, column.when)
            table = self.set_metrics(run.sets(VIEWS[column.view]), column.metric, run.task)
            self._drawn[key] = None if table is None else combine(table, column.metric, VIEWS[column.view])
        return self._drawn[key]

    def set_metrics(self, sets: Sequence[PredictedSet], metric: str, task: str) -> Array | None:
        """(sets, B): the metric of each set on every resample; None if there are none, or not such a metric of them."""
        if not sets or not resampled(metric, task):
            return None
        if metric not in SUMS[task]:
            return np.stack([weighted_metric(metric, each, self.weights.weights(each.ids)) for each in sets])
        features, value = SUMS[task][metric]
        return np.stack([value(self.sums(features, each)) for each in sets])

    def sums(self, features: Features, predicted: PredictedSet) -> Array:
        """(B, m): the features of a set, summed by the weights; metrics and views of a run share them."""
        key = (id(predicted), features)
        if key not in self._sums:
            sums = weighted_sums(features, predicted, self.weights.weights(predicted.ids))
            self._sums[key] = (predicted, sums)  # the set is kept so that its id stays its own
            while len(self._sums) > SUMS_IN_MEMORY:
                self._sums.popitem(last=False)
        return self._sums[key][1]

    def site_drawn(self, cell: Cell, column: Column) -> dict[str, Array]:
        """Site -> (B,); empty if no predictions are behind it."""
        key = (cell.stamp, column.name)
        if key not in self._site_drawn:
            run = self.reader.read(cell, column.when)
            table = self.set_metrics(list(run.own.values()), column.metric, run.task)
            self._site_drawn[key] = {} if table is None else dict(zip(run.own, table, strict=True))
        return self._site_drawn[key]

    def scored(self, cells: Iterable[Cell], column: Column, stored: Iterable[LabelledFigures] = ()) -> ScoredMethod:
        """By seed; stored figures stand where there is no run."""
        figures = {each.seed: value for each in stored if (value := each.value(column)) is not None}
        drawn = {}
        for cell in cells:
            value = figure(cell, column)
            if value is None:
                continue
            figures[cell.run.seed] = value
            row = self.drawn(cell, column)
            if row is not None:
                drawn[cell.run.seed] = row
        return ScoredMethod(dict(sorted(figures.items())), drawn)

    def image_count(self, cells: Iterable[Cell], when: str, view: str, site: str | None = None) -> ImageCount | None:
        """The images of these runs together; None if none has predictions."""
        images: set[str] = set()
        groups: set[str] = set()
        for cell in cells:
            tested = self._tested_images(cell, when, view, site)
            images |= tested.images
            groups |= tested.groups
        return ImageCount(len(images), len(groups), self.spec.resamples) if images else None

    def _tested_images(self, cell: Cell, when: str, view: str, site: str | None) -> _TestedImages:
        key = (cell.facts.data, when, view, site or "", str(cell.facts.personal))
        if key not in self._tested:
            run = self.reader.read(cell, when)
            sets = run.sets(view) if site is None else tuple(run.own[name] for name in (site,) if name in run.own)
            images = frozenset(image for each in sets for image in each.ids)
            if not images:
                return _TestedImages(images, images)  # another run of these data may have its predictions
            groups = frozenset(self.reader.groups.get(image, f"image {image}") for image in images)
            self._tested[key] = _TestedImages(images, groups)
        return self._tested[key]

    def estimate(self, name: str, scored: ScoredMethod, cells: Sequence[Cell], column: Column) -> Estimate:
        """The mean over seeds with its interval."""
        seeds = list(scored.figures)
        complete = bool(seeds) and all(seed in scored.drawn for seed in seeds)
        drawn = np.stack([scored.drawn[seed] for seed in seeds]) if complete else None
        count = self.image_count(cells, column.when, VIEWS[column.view]) if complete else None
        values = list(scored.figures.values())
        estimate = seeds_and_images_estimate(name, values, drawn, count, level=self.spec.level)
        return estimate if column.metric in UNBOUNDED else within_fractions(estimate)


def figure(cell: Cell, column: Column) -> float | None:
    """The stored figure of a run; None if it is undefined."""
    run = MethodRun(cell.run.seed, str(cell.run.folder), cell.facts.task, cell.document(column.when))
    return run.stored_figure(column.metric, VIEWS[column.view])


def known_metrics(cells: Iterable[Cell]) -> list[str]:
    """The metrics that any of the runs has."""
    names: dict[str, Any] = {}
    for cell in cells:
        for when in ("best", "last"):
            document = cell.document(when)
            for scores in (document.get("global", {}), document.get("local", {}).get("mean", {})):
                names |= {name: None for name, value in scores.items() if isinstance(value, float)}
    return list(names)
