"""Paired tests: two methods over the same seeds, several p values at once.

Seeds are few. The paired t test is the one with power; the signed-rank test and the sign test are exact and make no
assumption, but cannot reject at 5 % with fewer than six seeds, whatever the figures are: `smallest_p` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossward.comparison.weighted_metrics import Array
from crossward.errors import ConfigError

EXACT_PAIRS = 50  # up to here the distribution of ranks is counted out


@dataclass(frozen=True)
class PairedTests:
    """Two lists of figures over the same n seeds; all p values are two-sided."""

    n: int
    wins: int  # the first is better
    losses: int
    ties: int
    t_p: float | None  # paired t test; None below two pairs
    wilcoxon_p: float | None  # exact signed-rank test over the pairs that differ
    sign_p: float | None  # exact sign test over the pairs that differ
    smallest_p: float | None  # that the exact tests could give with so many pairs that differ
    name: str = "paired tests across seeds"


def paired_tests(a: Sequence[float], b: Sequence[float], *, lower_is_better: bool = False) -> PairedTests:
    """Compare figures seed by seed."""
    if len(a) != len(b) or not a:
        raise ConfigError(f"{len(a)} and {len(b)} figures are no pairs", hint="Give one of each method for each seed.")
    differences = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    better = differences < 0 if lower_is_better else differences > 0
    differing = int((differences != 0).sum())
    wins = int(better.sum())
    return PairedTests(
        n=len(differences),
        wins=wins,
        losses=differing - wins,
        ties=len(differences) - differing,
        t_p=paired_t(differences),
        wilcoxon_p=signed_rank(differences),
        sign_p=sign_test(wins, differing),
        smallest_p=min(1.0, 2.0 ** (1 - differing)) if differing else None,
    )


def paired_t(differences: Array) -> float | None:
    """p of the mean difference being 0; None below two differences."""
    from scipy.stats import t

    n = len(differences)
    if n < 2:
        return None
    error = float(differences.std(ddof=1)) / n**0.5
    if error == 0:
        return 0.0 if differences.any() else 1.0
    return float(2 * t.sf(abs(differences.mean()) / error, n - 1))


def signed_rank(differences: Array) -> float | None:
    """p of Wilcoxon's signed-rank test, exact also where ranks are tied; differences of 0 are left out."""
    from scipy.stats import rankdata, wilcoxon

    nonzero = differences[differences != 0]
    if not len(nonzero):
        return None
    if len(nonzero) > EXACT_PAIRS:
        return float(wilcoxon(nonzero, method="asymptotic").pvalue)
    ranks = np.rint(2 * rankdata(np.abs(nonzero))).astype(int)  # doubled, so that tied ranks are whole
    ways = np.ones(1)
    for rank in ranks:  # how many of the 2^n signs give each sum of the positive ranks
        longer = np.zeros(len(ways) + rank)
        longer[: len(ways)] += ways
        longer[rank:] += ways
        ways = longer
    positive = int(ranks[nonzero > 0].sum())
    low = min(positive, int(ranks.sum()) - positive)
    return float(min(1.0, 2 * ways[: low + 1].sum() / ways.sum()))


def sign_test(wins: int, n: int) -> float | None:
    """p of so many wins in n tosses of a coin."""
    from scipy.stats import binom

    return float(min(1.0, 2 * binom.cdf(min(wins, n - wins), n, 0.5))) if n else None


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for their number by Holm's step-down; each counts by itself then."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    highest = 0.0
    for position, index in enumerate(order):
        highest = max(highest, (len(p_values) - position) * p_values[index])
        adjusted[index] = min(1.0, highest)
    return [float(p) for p in adjusted]
