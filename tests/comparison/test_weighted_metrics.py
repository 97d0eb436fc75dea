"""Weighted metrics: with weights of 1 the tasks' own, with other weights scikit-learn's, and repeated images alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, roc_auc_score

from crossward.comparison.weighted_metrics import (
    PredictedSet,
    metrics_of,
    overlap_counts,
    plain_metric,
    weighted_aucs,
    weighted_metric,
)
from crossward.errors import ConfigError
from crossward.tasks.classification import Classification
from crossward.tasks.multi_label import MultiLabel
from crossward.tasks.segmentation import Segmentation


def classified(n: int = 120, classes: int = 4, seed: int = 0) -> PredictedSet:
    """Probabilities rounded to tenths, so that scores are tied."""
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, classes, n)
    scores = generator.random((n, classes)).round(1) + 0.3 * (targets[:, None] == np.arange(classes)) + 0.01
    p = (scores / scores.sum(1, keepdims=True)).astype(np.float32)
    return PredictedSet("a", "classification", p, targets, tuple(f"i{i}" for i in range(n)))


def labelled(n: int = 90) -> PredictedSet:
    """Several labels an image; the last label is on none."""
    generator = np.random.default_rng(4)
    targets = (generator.random((n, 4)) < (0.5, 0.3, 0.1, 0)).astype(np.uint8)
    p = (0.7 * generator.random((n, 4)).round(1) + 0.3 * targets).astype(np.float32)
    return PredictedSet("a", "multi-label", p, targets, tuple(f"i{i}" for i in range(n)))


def segmented(n: int = 30) -> tuple[PredictedSet, torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(1)
    truth = (generator.random((n, 6, 6)) < generator.random((n, 1, 1))).astype(np.uint8) * 2
    guess = np.where(generator.random((n, 6, 6)) < 0.8, truth, generator.integers(0, 3, (n, 6, 6))).astype(np.uint8)
    truth[:4] = 0
    guess[:2] = 0
    counts = overlap_counts(guess, truth, 3)
    ids = tuple(f"i{i}" for i in range(n))
    return PredictedSet("a", "segmentation", counts, np.zeros(0, int), ids), torch.tensor(guess), torch.tensor(truth)


@pytest.mark.parametrize("metric", metrics_of("classification"))
def test_weights_of_one_give_the_metric_of_the_task(metric):
    predicted = classified()
    task = Classification(("a", "b", "c", "d"))
    expected = task.metrics(torch.tensor(predicted.predictions), torch.tensor(predicted.targets))[metric]
    assert plain_metric(metric, predicted) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", metrics_of("multi-label"))
def test_several_labels_give_the_metric_of_the_task(metric):
    predicted = labelled()
    task = MultiLabel(("a", "b", "c", "d"))
    expected = task.metrics(torch.tensor(predicted.predictions), torch.tensor(predicted.targets))[metric]
    assert plain_metric(metric, predicted) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", metrics_of("segmentation"))
def test_overlaps_give_the_metric_of_the_task(metric):
    predicted, guess, truth = segmented()
    expected = Segmentation(("background", "a", "b")).metrics(guess, truth, full=False)[metric]
    assert plain_metric(metric, predicted) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("predicted", "metric"),
    [(each, metric) for each in (classified(), labelled()) for metric in metrics_of(each.task)],
    ids=lambda value: value if isinstance(value, str) else value.task,
)
def test_a_weight_of_two_is_an_image_that_is_there_twice(predicted, metric):
    weights = np.random.default_rng(2).integers(0, 4, (5, len(predicted)))
    values = weighted_metric(metric, predicted, weights.astype(np.float32))
    for row, value in zip(weights, values, strict=True):
        repeated = predicted.only(np.repeat(np.arange(len(predicted)), row))
        assert value == pytest.approx(plain_metric(metric, repeated), rel=1e-5)


def test_weights_are_those_of_scikit_learn():
    predicted = classified()
    weights = np.random.default_rng(3).random((1, len(predicted)))
    y, guess = predicted.targets, predicted.predictions.argmax(1)
    options = {"sample_weight": weights[0]}
    assert weighted_metric("accuracy", predicted, weights)[0] == pytest.approx(accuracy_score(y, guess, **options))
    expected = balanced_accuracy_score(y, guess, **options)
    assert weighted_metric("balanced_accuracy", predicted, weights)[0] == pytest.approx(expected)
    expected = f1_score(y, guess, average="macro", **options)
    assert weighted_metric("f1", predicted, weights)[0] == pytest.approx(expected)
    aucs = weighted_aucs(predicted.predictions, predicted.truth(), weights)[:, 0]
    for k, auc in enumerate(aucs):
        assert auc == pytest.approx(roc_auc_score(y == k, predicted.predictions[:, k], **options))


def test_a_class_that_a_resample_lacks_does_not_count():
    predicted = PredictedSet("a", "classification", np.eye(3)[[0, 1, 1, 2]], np.array([0, 1, 2, 2]), tuple("abcd"))
    weights = np.array([[1.0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]])
    assert weighted_metric("balanced_accuracy", predicted, weights)[:2] == pytest.approx([1.0, 0.5])
    assert weighted_metric("f1", predicted, weights)[:2] == pytest.approx([1.0, (0 + 2 / 3) / 2])
    assert np.isnan([weighted_metric(metric, predicted, weights)[2] for metric in ("accuracy", "f1", "auc")]).all()


def test_an_unknown_metric_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="cannot be resampled") as caught:
        plain_metric("acuracy", classified())
    assert "'accuracy'" in caught.value.hint
