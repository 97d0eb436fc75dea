"""A lower bound on epsilon from guesses about canaries, after "Privacy Auditing with One (1) Training Run", Steinke,
Nasr, Jagielski, NeurIPS 2023, https://arxiv.org/abs/2305.08846, Theorem 5.2 and Appendix D.

m canaries are trained on or not, each by the toss of a coin. An attacker guesses of r of them, a number fixed in
advance, whether they were, and is right v times. If training is (epsilon, delta)-private when one canary is added or
removed, then

    P(right >= v) <= P(W >= v) + 2 m delta max_i P(v > W >= v - i) / i      W ~ Binomial(r, e^epsilon / (1 + e^epsilon))

An epsilon at which this is below 1 - level is refuted; the largest such epsilon is the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossward.comparison.intervals import LEVEL, check_level
from crossward.comparison.weighted_metrics import Array
from crossward.errors import ConfigError

LARGEST = 64.0  # epsilon; no number of guesses refutes as much
HALVINGS = 40
GUESSED = (1.0, 0.5, 0.125)  # shares of the canaries that are guessed, the surest; the best counts, at a stricter level


@dataclass(frozen=True)
class CanaryBound:
    """The most that guesses refute."""

    epsilon: float  # with probability `level`, no smaller epsilon is true; 0: nothing is refuted
    level: float
    canaries: int
    guesses: int  # those that gave the bound
    right: int

    @property
    def accuracy(self) -> float:
        return self.right / self.guesses


def refutation_p(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """A bound on the probability of so many right guesses if training is (epsilon, delta)-private."""
    from scipy.stats import binom

    if not 0 <= right <= guesses <= canaries:
        raise ConfigError(f"{right} right guesses of {guesses}, about {canaries} canaries, cannot be")
    chance = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, chance))
    if delta == 0 or right == 0:
        return min(tail, 1.0)
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))  # P(v > W >= v - i), i = 1 … v
    slope = float((below / np.arange(1, right + 1)).max())
    return min(tail + 2 * canaries * delta * slope, 1.0)


def epsilon_lower_bound(canaries: int, guesses: int, right: int, delta: float, level: float = LEVEL) -> float:
    """The largest epsilon that so many right guesses refute; 0 if they refute none."""
    most = 1 - check_level(level)

    def refuted(epsilon: float) -> bool:
        return refutation_p(canaries, guesses, right, epsilon, delta) < most

    low, high = 0.0, 1.0
    if not refuted(low):
        return 0.0
    while refuted(high) and high < LARGEST:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def bound_from_scores(
    scores: Array,
    included: Array,
    delta: float,
    *,
    level: float = LEVEL,
    shares: Sequence[float] = GUESSED,
) -> CanaryBound:
    """The bound from scores that are high for canaries that were trained on. Of each share the surest guesses are made:
    scores far above the middle were trained on, those far below were not. Several shares are tried; each is tested at
    the level that the best of them then has (Bonferroni)."""
    m = len(scores)
    if m < 2 or len(included) != m:
        raise ConfigError(f"{m} canaries are too few to guess about", hint="Plant 32 or more.")
    stricter = 1 - (1 - check_level(level)) / len(shares)
    distance = np.asarray(scores, dtype=np.float64) - middle_of(scores)
    surest = np.argsort(-np.abs(distance), kind="stable")
    is_right = ((distance > 0) == np.asarray(included, dtype=bool))[surest]
    bounds = []
    for share in shares:
        guesses = max(1, int(share * m))
        right = int(is_right[:guesses].sum())
        epsilon = epsilon_lower_bound(m, guesses, right, delta, stricter)
        bounds.append(CanaryBound(epsilon, level, m, guesses, right))
    return max(bounds, key=lambda bound: (bound.epsilon, bound.accuracy))


def middle_of(scores: Array) -> float:
    """Between the two groups into which the scores fall: the cut with the largest variance between groups (Otsu)."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    sizes = np.arange(1, len(ordered))
    lower = np.cumsum(ordered)[:-1] / sizes
    upper = np.cumsum(ordered[::-1])[::-1][1:] / sizes[::-1]
    cut = int(np.argmax(sizes * sizes[::-1] * (upper - lower) ** 2))
    return float((ordered[cut] + ordered[cut + 1]) / 2)
