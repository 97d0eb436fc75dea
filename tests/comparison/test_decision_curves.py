"""Decision curves against scikit-learn, `operating_points` and `intervals`."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, f1_score, precision_recall_curve, recall_score, roc_curve

from crossward.comparison.decision_curves import (
    Curve,
    class_f1,
    class_recalls,
    confusion,
    mean_curve,
    pointwise_band,
    precision_curve,
    reliability,
    sensitivity_curve,
)
from crossward.comparison.intervals import seeds_and_images_estimate
from crossward.comparison.operating_points import sensitivity_at_specificity
from crossward.comparison.resampling import draw
from crossward.comparison.weighted_metrics import PredictedSet, plain_metric

GRID = np.array([0.0, 0.25, 0.5, 0.8, 0.9, 0.95, 1.0])


def predicted(seed: int = 0, n: int = 80, classes: int = 3, *, ties: bool = False) -> PredictedSet:
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, classes)) + 1.2 * np.eye(classes)[targets]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if ties:
        p = np.round(p, 1)
    return PredictedSet("north", "classification", p, targets, tuple(map(str, range(n))))


@pytest.mark.parametrize("ties", [False, True])
def test_sensitivity_is_the_best_that_roc_curve_has_at_this_specificity(ties: bool) -> None:
    some = predicted(ties=ties)
    curve = sensitivity_curve(some, 1, GRID, np.ones((2, 80)))
    false_positive, true_positive, _ = roc_curve(some.targets == 1, some.predictions[:, 1], drop_intermediate=False)
    for specificity, value in zip(GRID[1:], curve.figure[1:], strict=True):
        best = true_positive[false_positive <= 1 - specificity + 1e-9].max()
        assert value == pytest.approx(best)
    assert np.allclose(curve.drawn, curve.figure)


def test_sensitivity_is_that_of_operating_points_resampled_alike() -> None:
    some = predicted(3)
    curve = sensitivity_curve(some, 0, np.array([0.9]), np.ones((1, 80)))
    point = sensitivity_at_specificity(some.predictions[:, 0], some.targets == 0, 0.9)
    assert curve.figure[0] == pytest.approx(point.sensitivity.value)
    assert curve.thresholds[0] == pytest.approx(point.threshold)


def test_a_resample_counts_as_repeated_images() -> None:
    some = predicted(1)
    weights = np.random.default_rng(5).poisson(1, (1, 80)).astype(np.float32)
    repeated = some.only(np.repeat(np.arange(80), weights[0].astype(int)))
    ones = np.ones((1, len(repeated)))
    for function in (sensitivity_curve, precision_curve):
        drawn = function(some, 2, GRID, weights).drawn[0]
        assert np.allclose(drawn, function(repeated, 2, GRID, ones).figure)


@pytest.mark.parametrize("ties", [False, True])
def test_precision_is_that_of_precision_recall_curve(ties: bool) -> None:
    some = predicted(2, ties=ties)
    curve = precision_curve(some, 0, GRID, np.ones((1, 80)))
    precision, recall, _ = precision_recall_curve(some.targets == 0, some.predictions[:, 0])
    for wanted, value in zip(GRID[1:], curve.figure[1:], strict=True):
        at = np.flatnonzero(recall >= wanted - 1e-9)[-1]  # recall falls: the highest threshold that has it
        assert value == pytest.approx(precision[at])


def test_classes_and_confusion_are_those_of_scikit_learn() -> None:
    some = predicted(4)
    guess = some.predictions.argmax(1)
    ones = np.ones((1, 80))
    assert np.allclose(class_recalls(some, ones).figure, recall_score(some.targets, guess, average=None))
    assert np.allclose(class_f1(some, ones).figure, f1_score(some.targets, guess, average=None))
    assert (confusion(some) == confusion_matrix(some.targets, guess)).all()


def test_reliability_adds_up_to_the_calibration_error() -> None:
    some = predicted(4)
    curve, confidence, images = reliability(some, np.ones((1, 80)))
    error = np.nansum(np.abs(confidence - curve.figure) * images) / images.sum()
    assert images.sum() == 80
    assert error == pytest.approx(plain_metric("ece", some))


def test_a_class_without_images_is_undefined() -> None:
    some = predicted(0, classes=3)
    absent = PredictedSet(some.name, some.task, np.pad(some.predictions, ((0, 0), (0, 1))), some.targets, some.ids)
    ones = np.ones((1, 80))
    assert np.isnan(sensitivity_curve(absent, 3, GRID, ones).figure).all()
    assert np.isnan(precision_curve(absent, 3, GRID, ones).figure).all()
    assert np.isnan(class_recalls(absent, ones).figure[3])


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_a_band_is_the_interval_of_the_tables_at_every_point(seeds: int) -> None:
    resampling = draw([list(map(str, range(80)))], {}, resamples=200)
    curves = [
        sensitivity_curve(predicted(s), 1, GRID, resampling.weights(list(map(str, range(80))))) for s in range(seeds)
    ]
    band = pointwise_band(curves, resampling)
    for point in range(1, len(GRID) - 1):
        figures = [float(curve.figure[point]) for curve in curves]
        drawn = np.stack([curve.drawn[:, point] for curve in curves])
        estimate = seeds_and_images_estimate("", figures, drawn, resampling)
        assert band.value[point] == pytest.approx(estimate.value)
        assert band.low[point] == pytest.approx(max(estimate.low or 0.0, 0.0), abs=1e-6)
        assert band.high[point] == pytest.approx(min(estimate.high or 1.0, 1.0), abs=1e-6)


def test_where_all_resamples_agree_the_interval_is_wilsons() -> None:
    resampling = draw([list(map(str, range(80)))], {}, resamples=100)
    perfect = Curve(np.array([1.0]), np.ones((100, 1)), np.array([np.nan]))
    band = pointwise_band([perfect], resampling, trials=np.array([5]))
    wilson = binomtest(5, 5).proportion_ci(method="wilson")
    assert band.low[0] == pytest.approx(wilson.low)
    assert band.high[0] == pytest.approx(wilson.high)


def test_networks_of_sites_are_averaged_where_they_are_defined() -> None:
    one = Curve(np.array([0.2, np.nan]), np.array([[0.2, np.nan]]), np.array([0.5, np.nan]))
    two = Curve(np.array([0.4, 0.6]), np.array([[0.4, 0.6]]), np.array([0.7, 0.1]))
    mean = mean_curve([one, two])
    assert np.allclose(mean.figure, [0.3, 0.6])
    assert np.allclose(mean.drawn, [[0.3, 0.6]])
