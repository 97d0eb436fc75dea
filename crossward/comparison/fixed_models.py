"""Fixed models: two trained networks on the same images. These tests say nothing of how training varies by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from crossward.comparison.intervals import LEVEL, Estimate, check_level
from crossward.comparison.weighted_metrics import Array
from crossward.errors import ConfigError


@dataclass(frozen=True)
class McNemar:
    """Whether two models are equally often right; p values are two-sided."""

    n: int
    only_first: int  # images that the first model alone has right
    only_second: int
    exact_p: float
    corrected_p: float  # chi-squared with Edwards's continuity correction
    corrected_statistic: float
    name: str = "McNemar's test of two fixed models"


def mcnemar(first_right: Array, second_right: Array) -> McNemar:
    """Compare two models by which images each has right, (n,) of bool."""
    from scipy.stats import binom, chi2

    first, second = np.asarray(first_right, dtype=bool), np.asarray(second_right, dtype=bool)
    if first.shape != second.shape:
        raise ConfigError(f"the models judged {len(first)} and {len(second)} images", hint="Both must judge the same.")
    a = int((first & ~second).sum())
    b = int((second & ~first).sum())
    exact = min(1.0, 2 * float(binom.cdf(min(a, b), a + b, 0.5))) if a + b else 1.0
    statistic = max(abs(a - b) - 1, 0) ** 2 / (a + b) if a + b else 0.0
    return McNemar(len(first), a, b, exact, float(chi2.sf(statistic, 1)), statistic)


@dataclass(frozen=True)
class DeLong:
    """The areas under the ROC curves of two models on the same images."""

    first: Estimate
    second: Estimate
    difference: Estimate  # first - second; its p is DeLong's test
    positives: int
    negatives: int
    name: str = "DeLong's test of two fixed models"


def delong(first_scores: Array, second_scores: Array, positive: Array, *, level: float = LEVEL) -> DeLong:
    """Compare two models' AUC (DeLong et al. 1988); `positive` (n,) of bool.

    Each area has an interval on the logit scale, which stays within 0 and 1; the difference has a normal one.
    """
    truth = np.asarray(positive, dtype=bool)
    scores = np.stack([np.asarray(first_scores, dtype=np.float64), np.asarray(second_scores, dtype=np.float64)])
    if scores.shape[1] != len(truth):
        raise ConfigError(f"there are {scores.shape[1]} scores for {len(truth)} images")
    m, n = int(truth.sum()), int((~truth).sum())
    if m < 2 or n < 2:
        raise ConfigError(f"DeLong's test needs two images of each class at least, not {m} and {n}")
    of_positives, of_negatives = _placements(scores, truth)
    areas = of_positives.mean(1)
    covariance = np.cov(of_positives) / m + np.cov(of_negatives) / n
    variance = float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    estimates = [_area(name, float(areas[i]), float(covariance[i, i]), level, m + n) for i, name in _NAMES.items()]
    difference = _difference(float(areas[0] - areas[1]), max(variance, 0.0), level, m + n)
    return DeLong(estimates[0], estimates[1], difference, m, n)


_NAMES = {0: "AUC of the first model", 1: "AUC of the second model"}


def _placements(scores: Array, truth: Array) -> tuple[Array, Array]:
    """(2, m) and (2, n): the share of negatives below each positive, and of positives above each negative."""
    from scipy.stats import rankdata

    m, n = int(truth.sum()), int((~truth).sum())
    everybody = rankdata(scores, axis=1)
    of_positives = (everybody[:, truth] - rankdata(scores[:, truth], axis=1)) / n
    of_negatives = 1 - (everybody[:, ~truth] - rankdata(scores[:, ~truth], axis=1)) / m
    return of_positives, of_negatives


def _area(name: str, area: float, variance: float, level: float, images: int) -> Estimate:
    from scipy.stats import norm

    error = math.sqrt(variance)
    how = "DeLong's variance, normal on the logit scale"
    if not 0 < area < 1:
        how = "none: the classes are separated, and DeLong's variance is 0"
        return Estimate(name, area, None, None, check_level(level), how, 1, images=images)
    logit = math.log(area / (1 - area))
    half = float(norm.ppf((1 + check_level(level)) / 2)) * error / (area * (1 - area))
    low, high = (1 / (1 + math.exp(-(logit + side * half))) for side in (-1, 1))
    return Estimate(name, area, low, high, level, how, 1, images=images, standard_error=error)


def _difference(value: float, variance: float, level: float, images: int) -> Estimate:
    from scipy.stats import norm

    error = math.sqrt(variance)
    half = float(norm.ppf((1 + level) / 2)) * error
    if error > 0:
        p = float(2 * norm.sf(abs(value) / error))
    else:
        p = 1.0 if value == 0 else 0.0
    name = "AUC of the first model minus that of the second"
    how = "DeLong's variance, normal; over images only, for these trained networks"
    return Estimate(name, value, value - half, value + half, level, how, 1, images=images, standard_error=error, p=p)
