"""Operating points: sensitivity at a fixed specificity, calibration, and metrics of subgroups, of one fixed model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossward.comparison.intervals import LEVEL, Estimate, check_level, seeds_and_images_estimate
from crossward.comparison.norm_intervals import norm_interval, sum_of_sizes
from crossward.comparison.resampling import RESAMPLES, Resampling, draw
from crossward.comparison.weighted_metrics import (
    BINS,
    Array,
    PredictedSet,
    calibration_gaps,
    check_metric,
    plain_metric,
    weighted_metric,
    weighted_sums,
)
from crossward.errors import ConfigError


@dataclass(frozen=True)
class OperatingPoint:
    """Sensitivity at the threshold that has at least this specificity on the same images."""

    sensitivity: Estimate
    specificity: float  # that was asked for
    threshold: float  # a score above it is positive
    positives: int
    negatives: int


def sensitivity_at_specificity(
    scores: Array,
    positive: Array,
    specificity: float,
    *,
    ids: Sequence[str] | None = None,
    groups: Mapping[str, str] | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> OperatingPoint:
    """The share of positives above the threshold that leaves `specificity` of the negatives below.

    The threshold is found anew in every resample. The interval is Zhou and Qin's (2005) "BTII": the resampled counts
    with z^2/2 added on either side, their mean and standard deviation, normal.
    """
    from scipy.stats import norm

    scores, truth = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    m, n = int(truth.sum()), int((~truth).sum())
    if not 0 < specificity < 1:
        raise ConfigError(f"specificity cannot be fixed at {specificity}", hint="Say 0.95 for 95 %.")
    if not m or not n:
        raise ConfigError(f"sensitivity needs images of both classes, not {m} positive and {n} negative ones")
    names = list(ids) if ids is not None else [str(i) for i in range(len(truth))]
    resampling = _stratified(names, truth, groups or {}, resamples, seed)
    weights = resampling.weights(names)
    threshold = float(_thresholds(scores[~truth], np.ones((1, n)), specificity)[0])
    value, smoothed = smoothed_sensitivities(scores, truth, weights, specificity, level)
    z = float(norm.ppf((1 + level) / 2))
    low, high = (float(smoothed.mean() + side * z * smoothed.std(ddof=1)) for side in (-1, 1))
    how = f"bootstrap with the threshold resampled (BTII), {resamples} resamples"
    sizes = {"images": len(truth), "groups": resampling.groups, "resamples": resamples}
    name = f"sensitivity at specificity {specificity:g}"
    estimate = Estimate(name, value, max(low, 0.0), min(high, 1.0), level, how, 1, **sizes)
    return OperatingPoint(estimate, specificity, threshold, m, n)


def smoothed_sensitivities(
    scores: Array, positive: Array, weights: Array, specificity: float, level: float
) -> tuple[float, Array]:
    """The sensitivity, and (B,) under the weights (B, n), each with z^2/2 positives added on either side."""
    from scipy.stats import norm

    negatives = scores[~positive]
    [threshold] = _thresholds(negatives, np.ones((1, len(negatives))), specificity)
    thresholds = _thresholds(negatives, weights[:, ~positive], specificity)
    drawn = weights[:, positive]
    found = (drawn * (scores[positive] > thresholds[:, None])).sum(1)
    z = float(norm.ppf((1 + check_level(level)) / 2))
    return float((scores[positive] > threshold).mean()), (found + z**2 / 2) / (drawn.sum(1) + z**2)


def _stratified(names: Sequence[str], truth: Array, groups: Mapping[str, str], resamples: int, seed: int) -> Resampling:
    """Positives and negatives are drawn apart, unless a group has some of both."""
    by_class = [[name for name, label in zip(names, truth, strict=True) if label == side] for side in (True, False)]
    in_both = {groups.get(name, name) for name in by_class[0]} & {groups.get(name, name) for name in by_class[1]}
    strata = [[*by_class[0], *by_class[1]]] if in_both else by_class
    return draw(strata, groups, resamples=resamples, seed=seed)


def _thresholds(negatives: Array, weights: Array, specificity: float) -> Array:
    """(B,): the lowest score of a negative with at least `specificity` of the weight at or below it.

    Counted from the top: as many negatives may lie above it as have the rest of the weight.
    """
    order = np.argsort(-negatives, kind="stable")
    above = (1 - specificity) * weights.sum(1, dtype=np.float64) + 1e-9
    share = min(len(order), int(2 * (1 - specificity) * len(order)) + 20)
    for most in (share, len(order)):  # the top is nearly always enough
        passed = np.cumsum(weights[:, order[:most]], axis=1)
        position = (passed <= above[:, None]).sum(1)
        if most == len(order) or position.max() < most:
            break
    return np.asarray(negatives[order][np.minimum(position, len(order) - 1)])


def calibration_estimate(
    predicted: PredictedSet,
    *,
    groups: Mapping[str, str] | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """The expected calibration error over 15 bins, with an interval that allows for noise making it larger."""
    check_level(level)
    check_metric("ece", predicted.task)
    resampling = draw([predicted.ids], groups or {}, resamples=resamples, seed=seed)
    seen, deviations = ece_deviations(predicted, resampling.counts)
    low, high = norm_interval(seen, deviations * resampling.inflation**0.5, sum_of_sizes, centre=0.0, level=level)
    how = f"inverted test over images, {resamples} resamples, for this trained network"
    sizes = {"images": len(predicted), "groups": resampling.groups, "resamples": resamples}
    value = float(sum_of_sizes(seen[:, None])[0])
    return Estimate("expected calibration error (15 bins)", value, low, high, level, how, 1, **sizes)


def ece_deviations(predicted: PredictedSet, weights: Array) -> tuple[Array, Array]:
    """(bins,) gaps of confidence and accuracy, whose absolute sum is the error, and (bins, B) how resamples differ."""
    table = calibration_gaps(predicted)
    seen = table[:, :BINS].sum(0) / len(predicted)
    sums = weighted_sums(calibration_gaps, predicted, weights)
    return seen, (sums[:, :BINS] / np.maximum(sums[:, BINS:], 1)).T - seen[:, None]


@dataclass(frozen=True)
class Subgroup:
    """The images with one value of an attribute, and how they differ from all others."""

    value: str
    n: int
    estimate: Estimate
    gap: Estimate | None  # to the other images, on the same resamples; None: there are no others


def subgroup_metrics(
    predicted: PredictedSet,
    metric: str,
    attribute: Mapping[str, str],
    *,
    groups: Mapping[str, str] | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Subgroup, ...]:
    """A metric for every value of an attribute: image -> value; images without one are left out."""
    check_level(level)
    check_metric(metric, predicted.task)
    rows = np.array([i for i, image in enumerate(predicted.ids) if attribute.get(image)], dtype=np.int64)
    if not len(rows):
        raise ConfigError("no image has a value of this attribute", hint="Check that the table names the same images.")
    known = predicted.only(rows)
    values = np.array([attribute[image] for image in known.ids])
    resampling = draw([known.ids], groups or {}, resamples=resamples, seed=seed)
    found = []
    for value in dict.fromkeys(values.tolist()):
        inside = known.only(np.flatnonzero(values == value))
        outside = known.only(np.flatnonzero(values != value))
        estimate, drawn = _of_subgroup(f"{metric} of {value}", inside, metric, resampling, level)
        gap = None
        if len(outside) and not np.isnan(estimate.value):
            other, other_drawn = _of_subgroup("others", outside, metric, resampling, level)
            name = f"{metric} of {value} minus that of all others"
            difference = [estimate.value - other.value]
            gap = seeds_and_images_estimate(name, difference, (drawn - other_drawn)[None], resampling, level=level)
        found.append(Subgroup(str(value), len(inside), estimate, gap))
    return tuple(found)


def _of_subgroup(
    name: str, inside: PredictedSet, metric: str, resampling: Resampling, level: float
) -> tuple[Estimate, Array]:
    drawn = weighted_metric(metric, inside, resampling.weights(inside.ids))
    figure = plain_metric(metric, inside)
    return seeds_and_images_estimate(name, [figure], drawn[None], resampling, level=level), drawn
