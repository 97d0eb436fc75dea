"""Study details: each class, calibration, sensitivity at a specificity and subgroups, of one method over its seeds.

All are of the round that validation chose, in the global view, or over the sites' own sets where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from crossward.comparison.intervals import Estimate, seeds_and_images_estimate, within_fractions
from crossward.comparison.method_runs import MethodRun, image_column
from crossward.comparison.norm_intervals import norm_interval
from crossward.comparison.operating_points import ece_deviations, smoothed_sensitivities
from crossward.comparison.resampling import combine
from crossward.comparison.study_cells import Cell
from crossward.comparison.study_pairs import MethodCells
from crossward.comparison.study_results import ClassFigure, DetailFigure
from crossward.comparison.study_scores import ImageCount, StudyScores
from crossward.comparison.weighted_metrics import (
    Array,
    PredictedSet,
    class_features,
    class_metrics,
    plain_metric,
    weighted_metric,
)
from crossward.runs.result import Result
from crossward.runs.run_directory import RunDir

BEST = "best"
CLASS_METRICS = {  # of a task: what class_metrics calls it -> its list in metrics.jsonl
    "classification": {"recall": "recall", "f1": "f1_per_class"},
    "multi-label": {"recall": "recall", "f1": "f1_per_class"},
    "segmentation": {"dice": "dice_per_class"},
}
MAIN = {"classification": "f1", "multi-label": "auc", "segmentation": "dice"}


class MethodDetails:
    """The details of one method in one setting."""

    def __init__(self, method: MethodCells, scores: StudyScores) -> None:
        self._method = method
        self._cells = [cell for cell in method.cells if cell.facts.best]
        self._scores = scores
        self._level = scores.spec.level
        documents = [cell.document(BEST) for cell in self._cells]
        self._view = "global" if documents and all("global" in each for each in documents) else "local"

    def _sets(self, cell: Cell) -> tuple[PredictedSet, ...]:
        return self._run(cell).sets(self._view)

    def _run(self, cell: Cell) -> MethodRun:
        return self._scores.reader.read(cell, BEST)

    def _predicted(self) -> bool:
        """Whether every seed has its predictions."""
        return bool(self._cells) and all(self._sets(cell) for cell in self._cells)

    def _estimate(self, name: str, figures: Sequence[float], drawn: Sequence[Array] | None) -> Estimate:
        count = self._scores.image_count(self._cells, BEST, self._view) if drawn is not None else None
        rows = np.stack(drawn) if drawn is not None else None
        return seeds_and_images_estimate(name, figures, rows, count, level=self._level)

    # classes ----------------------------------------------------------------------------------------------------------
    def classes(self) -> Iterator[ClassFigure]:
        if not self._cells:
            return
        task = self._cells[0].facts.task
        documents = [self._class_lists(cell) for cell in self._cells]
        drawn = [self._class_drawn(cell) for cell in self._cells] if self._predicted() else None
        names = self._cells[0].facts.classes
        if task == "segmentation":
            names = names[1:]  # class 0 is background
        for metric, stored in CLASS_METRICS[task].items():
            for k, name in enumerate(names):
                values = [_at(document.get(stored), k) for document in documents]
                figures = [value for value in values if value is not None]
                if len(figures) < len(values):  # a class that some test set lacks has no mean over seeds
                    continue
                rows = [each[metric][k] for each in drawn] if drawn is not None else None
                title = f"{metric} of {name} on {self._scores.spec.split}: {self._method.label}"
                support = [_at(document.get("support"), k) for document in documents]
                images = float(np.mean([count or 0 for count in support]))
                estimate = within_fractions(self._estimate(title, figures, rows))
                yield ClassFigure(self._method.label, self._method.setting, metric, name, images, estimate)

    def _class_lists(self, cell: Cell) -> Mapping[str, Any]:
        document = cell.document(BEST)
        lists: Mapping[str, Any] = document["global"] if self._view == "global" else document["local"]["mean"]
        return lists

    def _class_drawn(self, cell: Cell) -> dict[str, Array]:
        """Metric -> (K, B): the mean over the sets where it is defined."""
        task = cell.facts.task
        each = [class_metrics(task, self._scores.sums(class_features(task), one)) for one in self._sets(cell)]
        return {name: _mean_over_sets([values[name] for values in each]) for name in each[0]}

    # calibration ------------------------------------------------------------------------------------------------------
    def calibration(self) -> DetailFigure | None:
        """The mean of the seeds' calibration errors, each over 15 bins, with an interval over images."""
        name = "expected calibration error (15 bins)"
        if not self._cells or self._cells[0].facts.task != "classification":
            return None
        if not self._predicted():
            figures = [value for cell in self._cells if (value := self._class_lists(cell).get("ece")) is not None]
            return self._detail(name, self._estimate(name, figures, None)) if figures else None
        parts = [
            ece_deviations(one, self._scores.weights.weights(one.ids))
            for cell in self._cells
            for one in self._sets(cell)
        ]
        seen = np.concatenate([part[0] for part in parts])
        deviations = np.concatenate([part[1] for part in parts])
        count = self._scores.image_count(self._cells, BEST, self._view)
        assert count is not None

        def mean_error(gaps: Array) -> Array:
            return np.asarray(np.abs(gaps).sum(0) / len(parts))

        scaled = deviations * count.inflation**0.5
        low, high = norm_interval(seen, scaled, mean_error, centre=0.0, level=self._level)
        how = f"inverted test over images, {count.resamples} resamples, for these trained networks"
        how += "; chance makes the value itself larger"
        sizes = {"images": count.images, "groups": count.groups, "resamples": count.resamples}
        value = float(mean_error(seen[:, None])[0])
        return self._detail(name, Estimate(name, value, low, high, self._level, how, len(self._cells), **sizes))

    # sensitivity ------------------------------------------------------------------------------------------------------
    def sensitivities(self, specificity: float) -> Iterator[DetailFigure]:
        """Of each class against the rest; of two classes, if an image has one of them, that of the second."""
        if not self._predicted() or self._cells[0].facts.task == "segmentation":
            return
        classes = self._cells[0].facts.classes
        two = len(classes) == 2 and self._cells[0].facts.task == "classification"
        for k in [1] if two else range(len(classes)):
            figure = self._sensitivity(k, classes[k], specificity)
            if figure is not None:
                yield figure

    def _sensitivity(self, k: int, name: str, specificity: float) -> DetailFigure | None:
        plain, rows = [], []
        for cell in self._cells:
            values, drawn = [], []
            for one in self._sets(cell):
                positive = one.has(k)
                if not 0 < positive.sum() < len(positive):
                    continue
                weights = self._scores.weights.weights(one.ids)
                value, smoothed = smoothed_sensitivities(
                    one.predictions[:, k], positive, weights, specificity, self._level
                )  # fmt: skip
                values.append(value)
                drawn.append(smoothed)
            if not values:
                return None
            plain.append(float(np.mean(values)))
            rows.append(np.mean(drawn, axis=0))
        title = f"sensitivity to {name} at specificity {specificity:g}"
        centred = self._estimate(title, [float(np.nanmean(row)) for row in rows], rows)
        assert centred.low is not None
        assert centred.high is not None
        how = f"{centred.how}, the threshold found anew in each (BTII)"
        sizes = {"images": centred.images, "groups": centred.groups, "resamples": centred.resamples}
        low, high = max(centred.low, 0.0), min(centred.high, 1.0)
        mean = float(np.mean(plain))
        return self._detail(title, Estimate(title, mean, low, high, self._level, how, len(plain), **sizes))

    # subgroups --------------------------------------------------------------------------------------------------------
    def subgroups(self, attribute: str) -> Iterator[DetailFigure]:
        """The task's main metric where an attribute has each of its values, and the gap to all other images."""
        if not self._predicted():
            return
        table: dict[str, str] = {}
        for cell in self._cells:
            table |= image_column(Result(RunDir(cell.run.folder)), attribute)
        metric = MAIN[self._cells[0].facts.task]
        images = {image for cell in self._cells for one in self._sets(cell) for image in one.ids}
        known = {image: table[image] for image in images if image in table}
        for value in sorted(set(known.values())):
            members = {image for image, other in known.items() if other == value}
            inside = self._subset(metric, members)
            outside = self._subset(metric, {image for image, other in known.items() if other != value})
            if inside is None:
                continue
            title = f"{metric} where {attribute} is {value}"
            gap = None
            if outside is not None:
                differences = [a - b for a, b in zip(inside[0], outside[0], strict=True)]
                rows = [a - b for a, b in zip(inside[1], outside[1], strict=True)]
                gap = self._estimate(f"{title}, minus that of all other images", differences, rows)
            yield self._detail(title, self._subgroup_estimate(title, members, *inside), gap)

    def _subgroup_estimate(self, name: str, images: set[str], figures: list[float], rows: list[Array]) -> Estimate:
        groups = {self._scores.reader.groups.get(image, f"image {image}") for image in images}
        count = ImageCount(len(images), len(groups), self._scores.spec.resamples)
        return within_fractions(seeds_and_images_estimate(name, figures, np.stack(rows), count, level=self._level))

    def _subset(self, metric: str, images: set[str]) -> tuple[list[float], list[Array]] | None:
        """By seed, the metric on these images, and on every resample; None where it is undefined."""
        figures, rows = [], []
        for cell in self._cells:
            values, drawn = [], []
            for one in self._sets(cell):
                some = one.only(np.array([i for i, image in enumerate(one.ids) if image in images], dtype=np.int64))
                if len(some):
                    values.append([plain_metric(metric, some)])
                    drawn.append(weighted_metric(metric, some, self._scores.weights.weights(some.ids)))
            if not values:
                return None
            figures.append(float(combine(np.array(values), metric, "local")[0]))
            rows.append(combine(np.stack(drawn), metric, "local"))
        return None if np.isnan(figures).any() else (figures, rows)

    def _detail(self, what: str, estimate: Estimate, gap: Estimate | None = None) -> DetailFigure:
        return DetailFigure(self._method.label, self._method.setting, what, estimate, gap)


def _at(values: Sequence[float | None] | None, k: int) -> float | None:
    return values[k] if values is not None and k < len(values) else None


def _mean_over_sets(tables: Sequence[Array]) -> Array:
    """(sets, K, B) -> (K, B), leaving out NaN."""
    return np.stack([combine(np.stack([table[k] for table in tables]), "", "local") for k in range(len(tables[0]))])
