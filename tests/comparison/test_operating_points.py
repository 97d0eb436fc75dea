"""Operating points: by hand, and how often their intervals cover the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_curve

from crossward.comparison.intervals import seeds_and_images_estimate
from crossward.comparison.operating_points import (
    calibration_estimate,
    sensitivity_at_specificity,
    smoothed_sensitivities,
    subgroup_metrics,
)
from crossward.comparison.resampling import draw_by_name
from crossward.comparison.weighted_metrics import PredictedSet, plain_metric
from crossward.errors import ConfigError


def test_sensitivity_by_hand():
    scores = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.35, 0.45, 0.6, 0.7])
    positive = np.arange(9) >= 5
    point = sensitivity_at_specificity(scores, positive, 0.8)
    assert (point.threshold, point.sensitivity.value) == (0.4, 0.75)  # four of five negatives are at or below 0.4
    assert (point.positives, point.negatives, point.sensitivity.images) == (4, 5, 9)
    assert sensitivity_at_specificity(scores, positive, 0.81).threshold == 0.5


def test_sensitivity_is_on_the_roc_curve_of_scikit_learn():
    generator = np.random.default_rng(0)
    positive = generator.random(300) < 0.3
    scores = generator.normal(0, 1, 300) + positive
    point = sensitivity_at_specificity(scores, positive, 0.9)
    false_rate, true_rate, _ = roc_curve(positive, scores, drop_intermediate=False)
    assert point.sensitivity.value == true_rate[false_rate <= 0.1 + 1e-12].max()


def test_patients_with_many_images_widen_the_interval():
    generator = np.random.default_rng(1)
    positive = np.repeat(generator.random(60) < 0.5, 5)
    scores = np.repeat(generator.normal(0, 1, 60), 5) + positive
    ids = [f"i{i}" for i in range(300)]
    patients = {image: f"p{i // 5}" for i, image in enumerate(ids)}
    apart = sensitivity_at_specificity(scores, positive, 0.8, ids=ids).sensitivity
    grouped = sensitivity_at_specificity(scores, positive, 0.8, ids=ids, groups=patients).sensitivity
    assert grouped.high - grouped.low > 1.5 * (apart.high - apart.low)
    assert grouped.groups == 60


def test_bad_requests_are_refused():
    with pytest.raises(ConfigError, match="both classes, not 0 positive and 3"):
        sensitivity_at_specificity(np.arange(3), np.zeros(3, bool), 0.9)
    with pytest.raises(ConfigError, match="cannot be fixed at 95"):
        sensitivity_at_specificity(np.arange(3), np.array([True, False, True]), 95)


@pytest.mark.parametrize(("m", "n", "specificity", "shift"), [(50, 200, 0.9, 2.0), (200, 400, 0.8, 1.0)])
def test_coverage_of_sensitivity(m, n, specificity, shift):
    truth = stats.norm.sf(stats.norm.ppf(specificity) - shift)
    generator = np.random.default_rng(0)
    positive = np.arange(m + n) < m
    covered = 0
    for repetition in range(300):
        scores = generator.normal(0, 1, m + n) + shift * positive
        point = sensitivity_at_specificity(scores, positive, specificity, resamples=200, seed=repetition)
        covered += not point.sensitivity.excludes(truth)
    assert 0.92 <= covered / 300 <= 0.98  # measured: 95 and 96.7 %


def overconfident(generator: np.random.Generator, n: int, share: float) -> PredictedSet:
    """Of the confidence above one half, this share is true."""
    confidence = generator.uniform(0.5, 1, n)
    right = generator.random(n) < 0.5 + (confidence - 0.5) * share
    p = np.stack([confidence, 1 - confidence], axis=1)
    return PredictedSet("a", "classification", p, np.where(right, 0, 1), tuple(f"i{i}" for i in range(n)))


@pytest.mark.parametrize(
    "share", [pytest.param(1.0, marks=pytest.mark.e2e), 0.8, pytest.param(0.5, marks=pytest.mark.e2e)]
)
def test_coverage_of_the_calibration_error(share):
    generator = np.random.default_rng(0)
    truth = 0.25 * (1 - share)  # the mean of (confidence - 0.5)(1 - share)
    estimates = [calibration_estimate(overconfident(generator, 800, share), resamples=400, seed=i) for i in range(300)]
    covered = np.mean([not estimate.excludes(truth) for estimate in estimates])
    assert 0.92 <= covered <= 0.98  # measured: 96.7, 92.7 and 93 %; of 400 others 93.5 and 94.3


def test_the_calibration_error_is_the_metric():
    predicted = overconfident(np.random.default_rng(1), 300, 0.7)
    estimate = calibration_estimate(predicted)
    assert estimate.value == pytest.approx(plain_metric("ece", predicted))
    assert (estimate.images, estimate.resamples, estimate.level) == (300, 1000, 0.95)


def test_subgroups_by_hand():
    predicted = overconfident(np.random.default_rng(2), 200, 0.7)
    attribute = {f"i{i}": "old" if i % 4 else "young" for i in range(180)}
    old, young = sorted(subgroup_metrics(predicted, "accuracy", attribute), key=lambda each: each.value)
    right = predicted.predictions.argmax(1) == predicted.targets
    mask = np.arange(180) % 4 > 0
    assert (old.value, old.n, young.value, young.n) == ("old", 135, "young", 45)
    assert old.estimate.value == pytest.approx(right[:180][mask].mean())
    assert old.gap.value == pytest.approx(right[:180][mask].mean() - right[:180][~mask].mean())
    assert old.gap.value == pytest.approx(-young.gap.value)
    expected = np.sqrt(right[:180][mask].var() / 135 + right[:180][~mask].var() / 45)
    assert old.gap.standard_error == pytest.approx(expected, rel=0.15)
    with pytest.raises(ConfigError, match="no image has a value"):
        subgroup_metrics(predicted, "accuracy", {})


def test_coverage_of_a_gap_between_subgroups():
    generator = np.random.default_rng(0)
    attribute = {f"i{i}": "old" if i % 3 else "young" for i in range(240)}
    covered = 0
    for repetition in range(300):
        predicted = overconfident(generator, 240, 0.7)
        found = subgroup_metrics(predicted, "accuracy", attribute, resamples=150, seed=repetition)
        covered += not found[0].gap.excludes(0.0)
    assert 0.92 <= covered / 300 <= 0.98  # measured: 92 %; of 500 others 94.6 %


@pytest.mark.parametrize("seeds", [1, 3])
def test_coverage_of_the_sensitivity_over_seeds(seeds):
    """Scores of 60 positives and 140 negatives: what all seeds see in an image, what each sees, and a seed's skill."""
    generator = np.random.default_rng(3)
    positive = np.arange(200) < 60
    ids = [str(i) for i in range(200)]
    skill, spread = 1.5, 0.15 if seeds > 1 else 0.0
    cut = stats.norm.ppf(0.9) * 2**0.5
    truth = float(stats.norm.sf((cut - skill) / (2 + spread**2) ** 0.5))
    covered = 0
    for repetition in range(300):
        shared = generator.normal(0, 1, 200)
        weights = draw_by_name(ids, {}, resamples=150, seed=repetition)
        rows = []
        for _ in range(seeds):
            scores = shared + generator.normal(0, 1, 200) + (skill + generator.normal(0, spread)) * positive
            rows.append(smoothed_sensitivities(scores, positive, weights.counts, 0.9, 0.95)[1])
        figures = [float(row.mean()) for row in rows]
        covered += not seeds_and_images_estimate("x", figures, np.stack(rows), weights).excludes(truth)
    assert 0.92 <= covered / 300 <= 0.98  # measured: 95.3 and 95.7 %
