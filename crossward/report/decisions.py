"""What methods decide, class by class: recall, F1, confusion, calibration and curves, read from stored predictions.

One set of images is judged: the common test set if the report's first column is about it, otherwise the hospitals' own
test images together, each predicted by the network that its hospital would use. Runs that keep no predictions have the
figures of metrics.jsonl, without curves and without an interval over patients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from crossward.comparison.decision_curves import (
    Band,
    Curve,
    class_f1,
    class_recalls,
    confusion,
    mean_curve,
    nan_mean,
    pointwise_band,
    precision_curve,
    reliability,
    sensitivity_curve,
)
from crossward.comparison.intervals import Estimate, seeds_and_images_estimate
from crossward.comparison.method_runs import MethodRun, stored_groups, with_predictions
from crossward.comparison.operating_points import calibration_estimate
from crossward.comparison.resampling import Resampling, draw_by_name
from crossward.comparison.weighted_metrics import Array, PredictedSet, plain_metric
from crossward.report.content import shown
from crossward.report.source import ReportRun, ReportSource

RESAMPLES = 400  # of figures of classes
CURVE_RESAMPLES = 100  # of bands along curves, which cost more
MOST_CURVES = 12  # classes, and methods, that have curves
STEPS = ((16, 0.005), (48, 0.01), (120, 0.02))  # up to so many curves, a curve has points at every such specificity
COARSE = 0.05
RECALLS = np.arange(1, 51) / 50
SEVERAL = (
    "An image may have several labels: recall and F1 are of each label above a probability of 0.5, and there is no "
    "confusion matrix and no calibration of a likeliest class."
)


@dataclass(frozen=True)
class MethodDecisions:
    """One method in one setting; bands are over its seeds and, where predictions are stored, over patients."""

    label: str
    runs: tuple[str, ...]  # ids of the page's sources
    images: int  # mean over seeds
    support: Array  # (K,) images of each class, mean over seeds
    recall: Band
    f1: Band
    confusion: Array  # (K, K), rows are the truth: summed over seeds and networks
    calibration: Estimate | None = None
    reliability: Band | None = None
    confidence: Array = field(default_factory=lambda: np.zeros(0))  # mean in each bin
    in_bins: Array = field(default_factory=lambda: np.zeros(0))  # images, mean over seeds
    sensitivity: Mapping[int, Band] = field(default_factory=dict)  # by class, over `specificities`
    thresholds: Mapping[int, Array] = field(default_factory=dict)
    precision: Mapping[int, Band] = field(default_factory=dict)  # by class, over RECALLS


@dataclass(frozen=True)
class Decisions:
    """The methods of one setting."""

    classes: tuple[str, ...]  # as they are shown; each is different
    view: str  # "global" | "local"
    specificities: Array
    step: float  # between the specificities that can be chosen
    curved: tuple[int, ...]  # classes that have curves
    methods: tuple[MethodDecisions, ...]
    notes: tuple[str, ...] = ()

    @property
    def has_curves(self) -> bool:
        return any(method.sensitivity for method in self.methods)


def read_decisions(source: ReportSource, setting: str, settings: int = 1) -> Decisions | None:
    """None if no run of this setting has figures of classes. `settings` share the room on the page."""
    view = "global" if source.headline.view == "global" else "local"
    classes = distinct_names(source.classes_of(setting))
    several = any(run.task == "multi-label" for run in source.runs if run.setting == setting)
    notes: list[str] = [SEVERAL] if several else []
    labels = [label for label in source.labels if source.of(label, setting)][:MOST_CURVES]
    by_label = {label: _read_runs(source.of(label, setting), view, notes) for label in labels}
    support = _support(source, setting, by_label, view)
    present = [k for k in range(len(classes)) if support[k]]
    curved = tuple(sorted(sorted(present, key=lambda k: -support[k])[:MOST_CURVES]))
    step = next((step for most, step in STEPS if len(labels) * len(curved) * settings <= most), COARSE)
    grid = np.round(np.concatenate([np.arange(0, 0.5, 5 * step), np.arange(0.5, 1 + step / 2, step)]), 4)
    images = [image for runs in by_label.values() for sets in runs.values() for each in sets for image in each.ids]
    groups = {image: group for run in source.runs if run.setting == setting for image, group in _groups(run).items()}
    resampling = draw_by_name(images, groups, resamples=RESAMPLES) if images else None
    methods = []
    for label, predicted in by_label.items():
        runs = source.of(label, setting)
        if resampling is not None and predicted:
            some = [run for run in runs if run.id in predicted]
            sets = [predicted[run.id] for run in some]
            methods.append(_decide(label, some, sets, resampling, groups, grid, curved, source.spec.level))
        elif (stored := _stored(label, runs, view, len(classes))) is not None:
            methods.append(stored)
    if not methods:
        return None
    return Decisions(classes, view, grid, step, curved, tuple(methods), tuple(dict.fromkeys(notes)))


def distinct_names(names: Sequence[str], most: int = 60) -> tuple[str, ...]:
    """Names as the page shows them; those that look alike once they are bounded are marked."""
    result: list[str] = []
    for name in names:
        text = shown(name, most) or "(no name)"
        while text in result:
            text += "′"
        result.append(text)
    return tuple(result)


# reading --------------------------------------------------------------------------------------------------------------
def _read_runs(runs: Sequence[ReportRun], view: str, notes: list[str]) -> dict[str, tuple[PredictedSet, ...]]:
    """By run: the sets that are judged. Of a network for all sites, and of sites' own networks on their own images,
    that is one set; of own networks on the common test set, one each."""
    found = {}
    for run in runs:
        best = run.rounds.best or (run.rounds.evaluated[-1] if run.rounds.evaluated else None)
        if best is None:
            continue
        empty = MethodRun(run.seed, str(run.result.folder), run.task, {}, personal=bool(run.about["personal"]))
        read = with_predictions(empty, run.result, "test", best)
        sets = _judged(read, view)
        if sets:
            found[run.id] = sets
        else:
            notes.append(_why_not(run, read))
    return found


def _judged(run: MethodRun, view: str) -> tuple[PredictedSet, ...]:
    if view == "global":
        return run.sets("global")
    return (replace(run, personal=False, server=None, common={}).sets("global")) if run.own else ()


def _why_not(run: ReportRun, read: MethodRun) -> str:
    if run.result.across_hospitals:
        return (
            f"{run.label}: the predictions are at the hospitals, so there are no curves and no interval over patients"
        )
    if not run.result.config.get("evaluate", {}).get("keep_predictions", True):
        return f"{run.label}: the runs keep no predictions (evaluate.keep_predictions), so there are no curves"
    return shown(f"{run.name}: no curves, {read.missing or 'there is no such test set'}", 300)


def _groups(run: ReportRun) -> Mapping[str, str]:
    return stored_groups(run.result)


def _support(source: ReportSource, setting: str, by_label: Mapping[str, Any], view: str) -> Array:
    """(K,) test images of each class: of any run that knows them."""
    classes = len(source.classes_of(setting))
    for runs in by_label.values():
        for sets in runs.values():
            return np.asarray(sets[0].truth().sum(0))
    for run in source.runs:
        if run.setting == setting and (counts := _stored_metrics(run, view).get("support")):
            return np.asarray(counts)
    return np.zeros(classes)


# computing ------------------------------------------------------------------------------------------------------------
def _decide(
    label: str,
    runs: Sequence[ReportRun],
    sets: Sequence[Sequence[PredictedSet]],
    resampling: Resampling,
    groups: Mapping[str, str],
    grid: Array,
    curved: Sequence[int],
    level: float,
) -> MethodDecisions:
    def over_sets(curve: Callable[[PredictedSet, Array], Curve]) -> list[Curve]:
        return [mean_curve([curve(each, weights[id(each)]) for each in some]) for some in sets]

    def band(curve: Callable[[PredictedSet, Array], Curve], trials: Array) -> Band:
        return pointwise_band(over_sets(curve), resampling, level=level, trials=trials)

    weights = {id(each): resampling.weights(each.ids) for some in sets for each in some}
    classes = sets[0][0].predictions.shape[1]
    support = np.mean([some[0].truth().sum(0) for some in sets], axis=0)
    some_draws = slice(CURVE_RESAMPLES)
    found = {k: over_sets(lambda each, w, k=k: sensitivity_curve(each, k, grid, w[some_draws])) for k in curved}  # type: ignore[misc]
    decided = MethodDecisions(
        label,
        tuple(run.id for run in runs),
        round(float(np.mean([len(some[0]) for some in sets]))),
        support,
        band(class_recalls, support),
        band(class_f1, support),
        np.zeros((classes, classes)),
        sensitivity={
            k: pointwise_band(found[k], resampling, level=level, trials=_all(support[k], grid)) for k in curved
        },
        thresholds={k: nan_mean(np.stack([curve.thresholds for curve in found[k]])) for k in curved},
        precision={
            k: band(lambda each, w, k=k: precision_curve(each, k, RECALLS, w[some_draws]), _all(support[k], RECALLS))  # type: ignore[misc]
            for k in curved
        },
    )
    one_class = sets[0][0].task == "classification"
    return _with_likeliest_class(decided, sets, weights, resampling, groups, level) if one_class else decided


def _with_likeliest_class(
    decided: MethodDecisions,
    sets: Sequence[Sequence[PredictedSet]],
    weights: Mapping[int, Array],
    resampling: Resampling,
    groups: Mapping[str, str],
    level: float,
) -> MethodDecisions:
    """With what is known of the likeliest class, where an image has one class: confusion and calibration."""
    bins = [[reliability(each, weights[id(each)]) for each in some] for some in sets]
    in_bins = np.mean([np.mean([images for _, _, images in some], axis=0) for some in bins], axis=0)
    curves = [mean_curve([curve for curve, _, _ in some]) for some in bins]
    return replace(
        decided,
        confusion=np.sum([confusion(each) for some in sets for each in some], axis=0),
        calibration=_calibration(sets, groups, level),
        reliability=pointwise_band(curves, resampling, level=level, trials=in_bins),
        confidence=nan_mean(np.stack([mean for some in bins for _, mean, _ in some])),
        in_bins=in_bins,
    )


def _all(count: float, grid: Array) -> Array:
    return np.full(len(grid), count)


def _calibration(sets: Sequence[Sequence[PredictedSet]], groups: Mapping[str, str], level: float) -> Estimate:
    """One trained network: with an interval over its images. Several: their mean, with an interval over seeds."""
    if len(sets) == 1 and len(sets[0]) == 1:
        return calibration_estimate(sets[0][0], groups=groups, level=level)
    figures = [float(np.mean([plain_metric("ece", each) for each in some])) for some in sets]
    name = "expected calibration error (15 bins)"
    estimate = seeds_and_images_estimate(name, figures, None, None, level=level)
    if len(figures) == 1:
        return replace(estimate, how="one seed, and a network for each hospital: no interval")
    low, high = (None if end is None else min(max(end, 0.0), 1.0) for end in (estimate.low, estimate.high))
    return replace(estimate, low=low, high=high, how=f"over {len(figures)} seeds, on these images; t")


# without predictions --------------------------------------------------------------------------------------------------
def _stored_metrics(run: ReportRun, view: str) -> Mapping[str, Any]:
    test = run.rounds.best_metrics.get("test", {})
    metrics = test.get("global", {}) if view == "global" else test.get("local", {}).get("mean", {})
    return metrics if isinstance(metrics, Mapping) else {}


def _stored(label: str, runs: Sequence[ReportRun], view: str, classes: int) -> MethodDecisions | None:
    """The figures of metrics.jsonl, with an interval over seeds if there are several."""
    known = [(run, metrics) for run in runs if (metrics := _stored_metrics(run, view)).get("recall")]
    if not known:
        return None
    support = np.mean([stored_numbers(metrics.get("support"), classes) for _, metrics in known], axis=0)
    return MethodDecisions(
        label,
        tuple(run.id for run, _ in known),
        round(float(np.nan_to_num(support).sum())),
        np.nan_to_num(support),
        band_over_seeds([stored_numbers(metrics["recall"], classes) for _, metrics in known]),
        band_over_seeds([stored_numbers(metrics.get("f1_per_class"), classes) for _, metrics in known]),
        np.sum([stored_matrix(metrics.get("confusion"), classes) for _, metrics in known], axis=0),
    )


def stored_numbers(values: Any, classes: int) -> Array:
    """(K,) a list by class of metrics.jsonl; NaN where it is undefined or not there."""
    if not isinstance(values, list) or len(values) != classes:
        return np.full(classes, np.nan)
    return np.array([np.nan if value is None else float(value) for value in values])


def stored_matrix(values: Any, classes: int) -> Array:
    """(K, K) a confusion matrix of metrics.jsonl; zeros if it is not there."""
    return np.asarray(values) if values and len(values) == classes else np.zeros((classes, classes))


def band_over_seeds(figures: Sequence[Array]) -> Band:
    """The mean over seeds, with an interval over seeds where there are several."""
    value = nan_mean(np.stack(figures))
    bounds = [_bounds(column) for column in np.stack(figures).T]
    return Band(value, np.array([low for low, _ in bounds]), np.array([high for _, high in bounds]))


def _bounds(column: Array) -> tuple[float, float]:
    defined = column[~np.isnan(column)]
    if len(defined) < 2:
        return np.nan, np.nan
    estimate = seeds_and_images_estimate("", defined.tolist(), None, None)
    return max(estimate.low or 0.0, 0.0), min(estimate.high or 1.0, 1.0)
