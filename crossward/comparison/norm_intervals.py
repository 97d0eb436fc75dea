"""Norm intervals: for how far several figures are from being equal, or from 0.

The standard deviation over sites, Gini's index, max - min and the calibration error are all norms of a vector: noise
makes each of them larger than the truth, and a percentile interval then misses the truth almost always. So the test is
inverted: the vector is shrunk or stretched by a factor, the bootstrap's deviations are added, and the interval holds the
norms of those factors under which the norm that was seen is neither too large nor too small. It reaches 0 where noise
alone explains what was seen.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from crossward.comparison.weighted_metrics import Array

Norm = Callable[[Array], Array]  # (m, B) -> (B,)
FACTORS = np.concatenate([np.linspace(0, 1.5, 31), np.linspace(1.6, 5, 35)])


def norm_interval(seen: Array, deviations: Array, norm: Norm, *, centre: float, level: float) -> tuple[float, float]:
    """The interval of norm(truth) when `seen` (m,) is the truth plus noise like `deviations` (m, B)."""
    vectors = centre + FACTORS[:, None] * (seen - centre)  # (factors, m)
    values = norm(vectors.T)
    tails = ((1 - level) / 2, (1 + level) / 2)
    expected = np.array([np.quantile(norm(vector[:, None] + deviations), tails) for vector in vectors])
    observed = float(norm(seen[:, None])[0])
    return _crossing(expected[:, 1] - observed, values), _crossing(expected[:, 0] - observed, values)


def _crossing(above: Array, values: Array) -> float:
    """The value where `above` first reaches 0; the last value if it never does."""
    reached = np.flatnonzero(above >= 0)
    if not len(reached):
        return float(values[-1])
    k = int(reached[0])
    if k == 0:
        return float(values[0])
    share = above[k - 1] / (above[k - 1] - above[k])
    return float(values[k - 1] + share * (values[k] - values[k - 1]))


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
