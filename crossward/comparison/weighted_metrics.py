"""Weighted metrics: the metrics of `tasks/`, for many weightings of the images at once.

A bootstrap resample is a row of weights: how often it has drawn each image. Most metrics are functions of sums over
images, so all resamples together are one matrix product; the area under the ROC curve goes by ranks. With weights of 1
each metric is what the `metrics` of the task gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossward.errors import ConfigError
from crossward.names import nearest

Array = NDArray[Any]
BINS = 15  # of the expected calibration error, as in tasks/classification.py
MIN_PROBABILITY = 1e-12  # as in tasks/classification.py
THRESHOLD = 0.5  # as in tasks/multi_label.py
MIN_LABEL_PROBABILITY = 1e-7  # as in tasks/multi_label.py
RESAMPLES_AT_ONCE = 64  # of the AUC: its tables then fit into the processor's cache


@dataclass(frozen=True)
class PredictedSet:
    """What was predicted for the images of one set, and the truth."""

    name: str  # of the site, or "server"
    task: str  # "classification" | "multi-label" | "segmentation"
    predictions: Array  # (n, K) probabilities; of segmentation (n, K-1, 3): pixels in both, predicted, true
    targets: Array  # (n,) classes, or (n, K) of 0 and 1; empty for segmentation
    ids: tuple[str, ...]  # of the images

    def __len__(self) -> int:
        return len(self.ids)

    def has(self, k: int) -> Array:
        """(n,) whether an image is of class k, or has the label k."""
        return np.asarray(self.targets[:, k] > 0 if self.targets.ndim == 2 else self.targets == k)

    def truth(self) -> Array:
        """(n, K) whether an image is of each class."""
        return np.stack([self.has(k) for k in range(self.predictions.shape[1])], axis=1)

    def guess(self) -> Array:
        """(n, K) whether an image is predicted to be of each class: the likeliest, or all above THRESHOLD."""
        if self.targets.ndim == 2:
            return np.asarray(self.predictions > THRESHOLD)
        return np.asarray(self.predictions.argmax(1)[:, None] == np.arange(self.predictions.shape[1]))

    def only(self, rows: Array) -> PredictedSet:
        """The images at these positions."""
        targets = self.targets[rows] if len(self.targets) else self.targets
        return PredictedSet(self.name, self.task, self.predictions[rows], targets, tuple(self.ids[i] for i in rows))


Features = Callable[[PredictedSet], Array]  # (n, m), to be summed over images
Value = Callable[[Array], Array]  # of sums (B, m)


def overlap_counts(prediction: Array, truth: Array, classes: int) -> Array:
    """(n, K-1, 3) pixels in both, predicted and true, of class maps (n, H, W); class 0 is background."""
    counts = np.zeros((len(truth), classes - 1, 3))
    for k in range(1, classes):
        a, b = (prediction == k), (truth == k)
        for column, pixels in enumerate((a & b, a, b)):
            counts[:, k - 1, column] = pixels.reshape(len(truth), -1).sum(1)
    return counts


def weighted_metric(metric: str, predicted: PredictedSet, weights: Array) -> Array:
    """(B,) values of a metric under the weights (B, n); NaN where it is undefined."""
    check_metric(metric, predicted.task)
    if metric == "auc":
        return _mean_of_defined(weighted_aucs(predicted.predictions, predicted.truth(), weights))
    features, value = SUMS[predicted.task][metric]
    return value(weighted_sums(features, predicted, weights))


def weighted_sums(features: Features, predicted: PredictedSet, weights: Array) -> Array:
    """(B, m): the features of the images, summed by the weights (B, n)."""
    return np.asarray(weights @ features(predicted).astype(weights.dtype), dtype=np.float64)


def plain_metric(metric: str, predicted: PredictedSet) -> float:
    """The metric of the set as it is; NaN where it is undefined."""
    return float(weighted_metric(metric, predicted, np.ones((1, len(predicted))))[0])


def metrics_of(task: str) -> tuple[str, ...]:
    """The metrics that can be computed from stored predictions."""
    return (*SUMS[task], *(("auc",) if task != "segmentation" else ()))


def check_metric(metric: str, task: str) -> None:
    if metric not in metrics_of(task):
        raise ConfigError(
            f"{metric!r} cannot be resampled over the images of a {task}", hint=nearest(metric, metrics_of(task))
        )


# sums over images -----------------------------------------------------------------------------------------------------
def class_counts(predicted: PredictedSet) -> Array:
    """(n, 3K) of each image: whether it is right, true and predicted, by class."""
    guess = predicted.guess()
    truth = predicted.truth()
    return np.concatenate([guess & truth, truth, guess], axis=1)


def _accuracy(sums: Array) -> Array:
    correct, support, _ = np.split(sums, 3, axis=1)
    return _ratio(correct.sum(1), support.sum(1))


def _balanced_accuracy(sums: Array) -> Array:
    correct, support, _ = np.split(sums, 3, axis=1)
    return _mean_of_defined(_ratio(correct, support).T)


def _f1(sums: Array) -> Array:
    correct, support, guessed = np.split(sums, 3, axis=1)
    return _mean_of_defined(_ratio(2 * correct, support + guessed).T)


def _precision(sums: Array) -> Array:
    """As `Classification.metrics`: 0 for a class that is present and never predicted."""
    correct, support, guessed = np.split(sums, 3, axis=1)
    return _mean_of_defined(_ratio(correct, np.where(guessed > 0, guessed, support)).T)


def class_features(task: str) -> Features:
    """What `class_metrics` needs the sums of."""
    return _class_dices if task == "segmentation" else class_counts


def class_metrics(task: str, sums: Array) -> dict[str, Array]:
    """Metric -> (K, B) values of each class, from the sums of `class_features`; NaN where it is undefined."""
    if task == "segmentation":
        return {"dice": _ratio(sums[:, :-1], np.broadcast_to(sums[:, -1:], sums[:, :-1].shape)).T}
    correct, support, guessed = np.split(sums, 3, axis=1)
    return {"recall": _ratio(correct, support).T, "f1": _ratio(2 * correct, support + guessed).T}


def _class_dices(predicted: PredictedSet) -> Array:
    """(n, K-1 + 1): the Dice of each class, and 1."""
    return np.concatenate([_dices(predicted.predictions), np.ones((len(predicted), 1))], axis=1)


def calibration_gaps(predicted: PredictedSet) -> Array:
    """(n, 15 + 1): the confidence minus whether it is right, in the bin of the confidence; and 1."""
    p = predicted.predictions.astype(np.float64)
    confidence = p.max(1)
    bins = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence)
    table = np.zeros((len(p), BINS + 1))
    table[np.arange(len(p)), bins] = confidence - (p.argmax(1) == predicted.targets)
    table[:, BINS] = 1
    return table


def _calibration_error(sums: Array) -> Array:
    return _ratio(np.abs(sums[:, :BINS]).sum(1), sums[:, BINS])


def _log_likelihood(predicted: PredictedSet) -> Array:
    p = predicted.predictions[np.arange(len(predicted)), predicted.targets].astype(np.float64)
    return np.stack([-np.log(np.maximum(p, MIN_PROBABILITY)), np.ones(len(p))], axis=1)


def _label_agreement(predicted: PredictedSet) -> Array:
    """(n, 2): of how many labels the prediction is right, and their number."""
    right = predicted.guess() == predicted.truth()
    return np.stack([right.sum(1), np.full(len(right), right.shape[1])], axis=1)


def _label_counts(predicted: PredictedSet) -> Array:
    """(n, 3K + 1): those of `class_counts`, and 1."""
    return np.concatenate([class_counts(predicted), np.ones((len(predicted), 1))], axis=1)


def _label_balanced_accuracy(sums: Array) -> Array:
    """The mean of sensitivity and specificity, over the labels where both are defined."""
    correct, support, guessed = np.split(sums[:, :-1], 3, axis=1)
    absent = sums[:, -1:] - support
    specificity = _ratio(absent - (guessed - correct), absent)
    return _mean_of_defined(((_ratio(correct, support) + specificity) / 2).T)


def _label_likelihood(predicted: PredictedSet) -> Array:
    p = predicted.predictions.astype(np.float64).clip(MIN_LABEL_PROBABILITY, 1 - MIN_LABEL_PROBABILITY)
    losses = -np.log(np.where(predicted.truth(), p, 1 - p))
    return np.stack([losses.sum(1), np.full(len(p), p.shape[1])], axis=1)


def _dices(counts: Array) -> Array:
    """(n, K-1); 1 where there is nothing to segment and nothing was predicted."""
    both, guessed, true = np.moveaxis(counts, 2, 0)
    return np.where(guessed + true == 0, 1.0, 2 * both / np.maximum(guessed + true, 1))


def _ious(counts: Array) -> Array:
    both, guessed, true = np.moveaxis(counts, 2, 0)
    union = guessed + true - both
    return np.where(union == 0, 1.0, both / np.maximum(union, 1))


def _with_count(values: Array) -> Array:
    """(n, 2): the mean over the classes of each image, and 1."""
    return np.stack([values.mean(1), np.ones(len(values))], axis=1)


def _positive_dices(predicted: PredictedSet) -> Array:
    positive = predicted.predictions[:, :, 2] > 0
    return np.stack([(_dices(predicted.predictions) * positive).sum(1), positive.sum(1)], axis=1)


def _false_positives(predicted: PredictedSet) -> Array:
    negative = predicted.predictions[:, :, 2] == 0
    guessed = predicted.predictions[:, :, 1] > 0
    return np.stack([(guessed & negative).sum(1), negative.sum(1)], axis=1)


def _quotient(sums: Array) -> Array:
    return _ratio(sums[:, 0], sums[:, 1])


SUMS: dict[str, dict[str, tuple[Features, Value]]] = {
    "classification": {
        "accuracy": (class_counts, _accuracy),
        "f1": (class_counts, _f1),
        "balanced_accuracy": (class_counts, _balanced_accuracy),
        "precision": (class_counts, _precision),
        "ece": (calibration_gaps, _calibration_error),
        "nll": (_log_likelihood, _quotient),
    },
    "multi-label": {
        "f1": (class_counts, _f1),
        "accuracy": (_label_agreement, _quotient),
        "balanced_accuracy": (_label_counts, _label_balanced_accuracy),
        "precision": (class_counts, _precision),
        "nll": (_label_likelihood, _quotient),
    },
    "segmentation": {
        "dice": (lambda predicted: _with_count(_dices(predicted.predictions)), _quotient),
        "iou": (lambda predicted: _with_count(_ious(predicted.predictions)), _quotient),
        "dice_positive": (_positive_dices, _quotient),
        "false_positive_rate": (_false_positives, _quotient),
    },
}


def _ratio(numerator: Array, denominator: Array) -> Array:
    """NaN where the denominator is 0."""
    result: Array = np.full(np.shape(denominator), np.nan)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result


def _mean_of_defined(values: Array) -> Array:
    """The mean over the first axis, leaving out NaN; NaN where nothing is left."""
    defined = ~np.isnan(values)
    return _ratio(np.where(defined, values, 0.0).sum(0), defined.sum(0))


# ranks ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Ranks:
    """Where the scores of a class's positives stand among those of its negatives.

    The negatives, by rising score, are cut into segments at the scores of the positives. A sparse product sums the
    weights of each segment, which costs far less than a running sum over all negatives.
    """

    positives: Array  # rows
    segments: Any  # sparse (segments, n) of 0 and 1: which negatives are in a segment
    below: Array  # of each positive, the last segment whose negatives all score lower
    up_to: Array  # the last whose negatives all score lower or the same


def weighted_aucs(scores: Array, truth: Array, weights: Array) -> Array:
    """(K, B) areas under the ROC curve, each class (n, K) against the rest; ties count half; NaN where undefined."""
    aucs = np.full((scores.shape[1], len(weights)), np.nan)
    present = [k for k in range(scores.shape[1]) if 0 < truth[:, k].sum() < len(truth)]
    ranks = {k: _ranks(scores[:, k], truth[:, k], weights.dtype) for k in present}
    for start in range(0, len(weights), RESAMPLES_AT_ONCE):
        some = slice(start, start + RESAMPLES_AT_ONCE)
        drawn = np.ascontiguousarray(weights[some].T)  # (n, b)
        for k, rank in ranks.items():
            aucs[k, some] = _auc_by_ranks(rank, drawn)
    return aucs


def _ranks(score: Array, positive: Array, dtype: Any) -> _Ranks:
    from scipy.sparse import csr_matrix

    positives = np.flatnonzero(positive)
    negatives = np.flatnonzero(~positive)
    negatives = negatives[np.argsort(score[negatives], kind="stable")]
    ordered = score[negatives]
    below = np.searchsorted(ordered, score[positives], side="left")
    up_to = np.searchsorted(ordered, score[positives], side="right")
    cuts = np.unique(np.concatenate([below, up_to]))
    segment = np.searchsorted(cuts, np.arange(len(negatives)), side="right")
    ones = np.ones(len(negatives), dtype=dtype)
    segments = csr_matrix((ones, (segment, negatives)), shape=(len(cuts) + 1, len(score)))
    return _Ranks(positives, segments, np.searchsorted(cuts, below), np.searchsorted(cuts, up_to))


def _auc_by_ranks(rank: _Ranks, drawn: Array) -> Array:
    """(b,) of weights (n, b)."""
    passed = np.cumsum(rank.segments @ drawn, axis=0)
    positive = drawn[rank.positives]
    wins = np.einsum("ib,ib->b", positive, passed[rank.below] + passed[rank.up_to]) / 2
    return _ratio(wins, positive.sum(0) * passed[-1])
