"""Decision curves: sensitivity over specificity, precision over recall and reliability, with pointwise bands.

A curve is a table over a fixed grid, so that curves of several seeds can be averaged point by point, and a band is the
interval of `intervals.py` at every point of the grid: seeds and patients, on the same resamples for every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossward.comparison.intervals import LEVEL, SHARE_POWER, check_level
from crossward.comparison.resampling import DrawnFrom
from crossward.comparison.weighted_metrics import BINS, Array, PredictedSet

CLOSE = 1e-9  # sums of weights that differ by less are equal


@dataclass(frozen=True)
class Band:
    """A value with its interval at every point of a grid; NaN where it is undefined."""

    value: Array  # (G,)
    low: Array
    high: Array


@dataclass(frozen=True)
class Curve:
    """A curve on a grid: of all images, and of every resample."""

    figure: Array  # (G,)
    drawn: Array  # (B, G)
    thresholds: Array  # (G,): the score that was the threshold; NaN where there is none


# one class against the rest -------------------------------------------------------------------------------------------
def sensitivity_curve(predicted: PredictedSet, label: int, specificities: Array, weights: Array) -> Curve:
    """The share of positives above the lowest threshold with at least each specificity (weights are (B, n))."""
    score, positive = _scores(predicted, label)
    if not positive.any() or positive.all():
        return _undefined(len(specificities), len(weights))
    negatives, positives = np.sort(score[~positive]), np.sort(score[positive])
    order, rank = np.argsort(score[~positive], kind="stable"), np.argsort(score[positive], kind="stable")
    not_above = np.searchsorted(positives, negatives, side="right")  # positives at or below each negative's score
    rows = np.concatenate([np.ones((1, len(score)), dtype=weights.dtype), weights])
    passed = np.cumsum(rows[:, ~positive][:, order], axis=1, dtype=np.float64)
    missed = np.concatenate(
        [np.zeros((len(rows), 1)), np.cumsum(rows[:, positive][:, rank], axis=1, dtype=np.float64)], axis=1
    )
    found = np.empty((len(rows), len(specificities)))
    thresholds = np.full(len(specificities), np.nan)
    for number, (below, lost) in enumerate(zip(passed, missed, strict=True)):
        place = np.minimum(np.searchsorted(below, specificities * below[-1] - CLOSE), len(negatives) - 1)
        total = lost[-1]
        found[number] = 1 - lost[not_above[place]] / total if total and below[-1] else np.nan
        if number == 0:
            thresholds = negatives[place]
    return Curve(found[0], found[1:], thresholds)


def precision_curve(predicted: PredictedSet, label: int, recalls: Array, weights: Array) -> Curve:
    """The share of true positives among all images at or above the highest threshold with at least each recall."""
    score, positive = _scores(predicted, label)
    if not positive.any():
        return _undefined(len(recalls), len(weights))
    order = np.argsort(-score, kind="stable")
    ordered = score[order]
    last = np.searchsorted(-ordered, -ordered, side="right") - 1  # ties with a score count as above it
    truth = positive[order]
    rows = np.concatenate([np.ones((1, len(score)), dtype=weights.dtype), weights])[:, order].astype(np.float64)
    taken = np.cumsum(rows, axis=1)[:, last]
    right = np.cumsum(rows * truth, axis=1)[:, last]
    precision = np.empty((len(rows), len(recalls)))
    thresholds = np.full(len(recalls), np.nan)
    for number, (all_above, true_above) in enumerate(zip(taken, right, strict=True)):
        place = np.minimum(np.searchsorted(true_above, recalls * true_above[-1] - CLOSE), len(ordered) - 1)
        precision[number] = true_above[place] / np.maximum(all_above[place], CLOSE) if true_above[-1] else np.nan
        if number == 0:
            thresholds = ordered[place]
    return Curve(precision[0], precision[1:], thresholds)


def _scores(predicted: PredictedSet, label: int) -> tuple[Array, Array]:
    return predicted.predictions[:, label].astype(np.float64), predicted.has(label)


def _undefined(points: int, resamples: int) -> Curve:
    nothing = np.full(points, np.nan)
    return Curve(nothing, np.full((resamples, points), np.nan), nothing)


# every class ----------------------------------------------------------------------------------------------------------
def class_recalls(predicted: PredictedSet, weights: Array) -> Curve:
    """The recall of each class: the grid is the classes."""
    truth, guess = predicted.truth(), predicted.guess()
    return _quotients(truth & guess, truth, weights)


def class_f1(predicted: PredictedSet, weights: Array) -> Curve:
    """The F1 of each class: the grid is the classes."""
    truth, guess = predicted.truth(), predicted.guess()
    return _quotients(2.0 * (truth & guess), truth.astype(np.float64) + guess, weights)


def reliability(predicted: PredictedSet, weights: Array) -> tuple[Curve, Array, Array]:
    """The share of right predictions by bin of confidence, with the mean confidence and the images of each bin."""
    confidence = predicted.predictions.astype(np.float64).max(1)
    right = predicted.predictions.argmax(1) == predicted.targets
    bins = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence)
    inside = bins[:, None] == np.arange(BINS)
    images = inside.sum(0)
    mean = np.divide((inside * confidence[:, None]).sum(0), images, out=np.full(BINS, np.nan), where=images > 0)
    return _quotients(inside & right[:, None], inside, weights), mean, images


def confusion(predicted: PredictedSet) -> Array:
    """(K, K) counts; rows are the truth."""
    classes = predicted.predictions.shape[1]
    pairs = predicted.targets.astype(np.int64) * classes + predicted.predictions.argmax(1)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def _quotients(above: Array, below: Array, weights: Array) -> Curve:
    """Sums over images of `above` (n, G) by those of `below`; NaN where nothing is below."""
    parts = [
        np.concatenate([part.sum(0, keepdims=True), weights @ part.astype(weights.dtype)]) for part in (above, below)
    ]
    numerator, denominator = (part.astype(np.float64) for part in parts)  # counts: exact in float32 as well
    values = np.divide(numerator, denominator, out=np.full(numerator.shape, np.nan), where=denominator > 0)
    return Curve(values[0], values[1:], np.full(above.shape[1], np.nan))


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean of curves where they are defined: of a method whose sites have networks of their own."""
    if len(curves) == 1:
        return curves[0]
    return Curve(
        nan_mean(np.stack([curve.figure for curve in curves])),
        nan_mean(np.stack([curve.drawn for curve in curves])),
        nan_mean(np.stack([curve.thresholds for curve in curves])),
    )


# bands ----------------------------------------------------------------------------------------------------------------
def pointwise_band(
    curves: Sequence[Curve], drawn_from: DrawnFrom, *, level: float = LEVEL, trials: Array | None = None
) -> Band:
    """The mean over seeds with its interval at every point, as `seeds_and_images_estimate` has it; within 0 and 1.

    Where all seeds and resamples agree (a sensitivity of 100 %), the interval is Wilson's over the (G,) `trials`.
    """
    from scipy.stats import t

    figures, drawn = np.stack([curve.figure for curve in curves]), np.stack([curve.drawn for curve in curves])
    seeds = len(figures)
    tail = (1 + check_level(level)) / 2
    value = nan_mean(figures)
    across = _variance(nan_mean(drawn)) * drawn_from.inflation
    patients, between = across, np.zeros_like(across)
    few, many = float(t.ppf(tail, max(seeds - 1, 1))), float(t.ppf(tail, drawn_from.degrees))
    least = many * np.sqrt(across) / 2  # of half the interval: half of that over the images alone
    if seeds > 1:
        within = nan_mean(np.stack([_variance(row) for row in drawn])) * drawn_from.inflation
        patients = np.maximum(across - np.maximum(within - across, 0) / (seeds - 1), 0)
        between = _variance(figures) / seeds
    total = between + patients
    share = np.divide(between, total, out=np.zeros_like(total), where=total > 0)
    if few < many:  # fewer patients than seeds
        few, many, share = many, few, 1 - share
    quantile = many**2 + (few**2 - many**2) * share**SHARE_POWER
    half = np.maximum(np.sqrt(np.maximum(quantile, 0) * total), least)
    low, high = value - half, value + half
    if trials is not None:
        low, high = _with_wilson(value, half, low, high, trials, tail)
    return Band(value, np.clip(low, 0, 1), np.clip(high, 0, 1))


def _with_wilson(value: Array, half: Array, low: Array, high: Array, trials: Array, tail: float) -> tuple[Array, Array]:
    from scipy.stats import norm

    z = float(norm.ppf(tail))
    n = np.maximum(np.asarray(trials, dtype=np.float64), 1)
    centre = (value + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * np.sqrt(np.maximum(value * (1 - value), 0) / n + z**2 / (4 * n**2))
    agreed = half < CLOSE
    return np.where(agreed, centre - reach, low), np.where(agreed, centre + reach, high)


def nan_mean(values: Array) -> Array:
    """Over the first axis, leaving out NaN; NaN where nothing is left."""
    defined = ~np.isnan(values)
    count = defined.sum(0)
    total = np.where(defined, values, 0.0).sum(0)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))


def _variance(values: Array) -> Array:
    """Sample variance over the first axis, leaving out NaN; 0 with fewer than two values."""
    defined = ~np.isnan(values)
    count = defined.sum(0)
    centred = np.where(defined, values - nan_mean(values), 0.0)
    return np.asarray((centred**2).sum(0) / np.maximum(count - 1, 1))
