"""Norm intervals: for how far several figures are from being equal, or from 0.

The standard deviation over sites, Gini's index, max - min and the calibration error are all norms of a vector: noise
makes each of them larger than the truth, and a percentile interval then misses the truth almost always. So the test is
inverted: the vector is shrunk or stretched by a factor, the bootstrap's deviations are added, and the interval holds
the norms of those factors under which the norm that was seen is neither too large nor too small. It reaches 0 where
noise alone explains what was seen.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from crossward.comparison.weighted_metrics import Array

Norm = Callable[[Array], Array]  # (m, B) -> (B,)
LARGEST_FACTOR = 64.0
HALVINGS = 10  # of the factor: to a thousandth


def norm_interval(seen: Array, deviations: Array, norm: Norm, *, centre: float, level: float) -> tuple[float, float]:
    """The interval of norm(truth) when `seen` (m,) is the truth plus noise like `deviations` (m, B)."""
    observed = float(norm(seen[:, None])[0])
    bounds = []
    for tail in ((1 + level) / 2, (1 - level) / 2):
        factor = _factor(seen - centre, deviations + centre, norm, tail, observed)
        bounds.append(float(norm(centre + factor * (seen - centre)[:, None])[0]))
    return bounds[0], bounds[1]


def _factor(vector: Array, deviations: Array, norm: Norm, tail: float, observed: float) -> float:
    """The factor of the vector under which `observed` is this quantile of the norm; 0 if it is below that at 0."""

    def below(factor: float) -> bool:
        return float(np.quantile(norm(factor * vector[:, None] + deviations), tail)) < observed

    if not below(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while below(high) and high < LARGEST_FACTOR:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


def sample_deviation(values: Array) -> Array:
    return np.asarray(values.std(0, ddof=1))


def largest_gap(values: Array) -> Array:
    return np.asarray(values.max(0) - values.min(0))


def gini(values: Array) -> Array:
    """Gini's index: half the mean absolute difference of two sites, as a share of the mean; 0 is equal."""
    n = len(values)
    coefficients = (2 * np.arange(1, n + 1) - n - 1).reshape(-1, *[1] * (values.ndim - 1))
    total = (coefficients * np.sort(values, axis=0)).sum(0)
    mean = values.mean(0)
    return np.asarray(np.divide(total, n**2 * mean, out=np.zeros_like(total), where=mean != 0))


def sum_of_sizes(values: Array) -> Array:
    return np.asarray(np.abs(values).sum(0))
