"""Multiple datasets: which of several methods is better across datasets (Demšar 2006, Benavoli et al. 2016).

A dataset counts once: its seeds are averaged first. Friedman's test asks whether the methods differ at all, Wilcoxon's
signed-rank test compares each pair over the datasets, adjusted by Holm, and the critical-difference diagram draws the
average ranks with a bar over methods that are not distinguishable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import numpy as np

from crossward.comparison.intervals import LEVEL
from crossward.comparison.paired_tests import holm, signed_rank
from crossward.comparison.verdicts import BETTER, NOT_DISTINGUISHABLE, WORSE
from crossward.comparison.weighted_metrics import Array
from crossward.core.evaluation import LOWER_IS_BETTER
from crossward.errors import ConfigError

MIN_DATASETS = 5


@dataclass(frozen=True)
class PairAcrossDatasets:
    a: str
    b: str
    p: float  # exact signed-rank test over datasets
    p_adjusted: float  # by Holm over all pairs
    wins: int  # datasets on which a is better
    losses: int
    ties: int
    verdict: str


@dataclass(frozen=True)
class AcrossDatasets:
    """What Friedman's test, the tests of pairs and the critical-difference diagram say."""

    metric: str
    datasets: tuple[str, ...]
    methods: tuple[str, ...]  # the best average rank first
    ranks: Mapping[str, float]  # average over datasets; 1 is best
    means: Mapping[str, Mapping[str, float]]  # dataset -> method -> mean over seeds
    statistic: float | None  # Friedman's chi-squared, corrected for ties; None with two methods
    p: float | None
    pairs: tuple[PairAcrossDatasets, ...]
    cliques: tuple[tuple[str, ...], ...]  # methods under one bar of the diagram: no two are distinguishable
    level: float
    smallest_p: float  # that an exact test of a pair can give with so many datasets, after Holm
    name: str = "Friedman's test, Holm-Wilcoxon post hoc; seeds averaged first"

    @property
    def n(self) -> int:
        return len(self.datasets)


def across_datasets(
    figures: Mapping[str, Mapping[str, Sequence[float]]], metric: str, *, level: float = LEVEL
) -> AcrossDatasets:
    """Compare methods over datasets: `figures` is dataset -> method -> figures of its seeds."""
    methods = _check(figures)
    means = {dataset: {m: fmean(row[m]) for m in methods} for dataset, row in figures.items()}
    table = np.array([[row[m] for m in methods] for row in means.values()])
    gain = -table if metric in LOWER_IS_BETTER else table
    ranks = _ranks(gain)
    order = np.argsort(ranks.mean(0), kind="stable")
    names = tuple(methods[i] for i in order)
    pairs = _pairs(gain[:, order], names, level)
    statistic, p = _friedman(ranks) if len(methods) > 2 else (None, None)
    return AcrossDatasets(
        metric=metric,
        datasets=tuple(figures),
        methods=names,
        ranks={methods[i]: float(ranks.mean(0)[i]) for i in order},
        means=means,
        statistic=statistic,
        p=p,
        pairs=pairs,
        cliques=_cliques(names, pairs),
        level=level,
        smallest_p=min(1.0, len(pairs) * 2.0 ** (1 - len(figures))),
    )


def _check(figures: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """The methods, if there are enough datasets and each has every method."""
    if len(figures) < MIN_DATASETS:
        raise ConfigError(
            f"{len(figures)} dataset(s) are too few for a test across datasets: it needs {MIN_DATASETS} at least",
            hint="Compare the methods on each dataset by itself; seeds of one dataset are not datasets.",
        )
    methods = list(dict.fromkeys(method for row in figures.values() for method in row))
    if len(methods) < 2:
        raise ConfigError("a test across datasets needs two methods at least")
    lacking = [f"{data}: no {m}" for data, row in figures.items() for m in methods if not row.get(m)]
    if lacking:
        raise ConfigError("every method must have run on every dataset", details=lacking, hint="Run them, or leave the "
                          "method or the dataset out.")  # fmt: skip
    return methods


def _ranks(gain: Array) -> Array:
    """(datasets, methods): 1 is best, ties share."""
    from scipy.stats import rankdata

    ranks: Array = rankdata(-gain, axis=1)
    return ranks


def _friedman(ranks: Array) -> tuple[float, float]:
    """Chi-squared, corrected for ties, and its p."""
    from scipy.stats import chi2

    n, k = ranks.shape
    squares = float((ranks**2).sum()) - n * k * (k + 1) ** 2 / 4  # of ranks about their mean
    if squares == 0:
        return 0.0, 1.0
    between = float(((ranks.sum(0) - n * (k + 1) / 2) ** 2).sum())
    statistic = (k - 1) * between / squares
    return statistic, float(chi2.sf(statistic, k - 1))


def _pairs(gain: Array, names: Sequence[str], level: float) -> tuple[PairAcrossDatasets, ...]:
    positions = list(combinations(range(len(names)), 2))
    p_values = [signed_rank(gain[:, i] - gain[:, j]) or 1.0 for i, j in positions]
    pairs = []
    for (i, j), p, adjusted in zip(positions, p_values, holm(p_values), strict=True):
        difference = gain[:, i] - gain[:, j]
        wins, losses = int((difference > 0).sum()), int((difference < 0).sum())
        verdict = NOT_DISTINGUISHABLE
        if adjusted <= 1 - level:
            verdict = BETTER if _signed_rank_sum(difference) > 0 else WORSE
        pairs.append(
            PairAcrossDatasets(names[i], names[j], p, adjusted, wins, losses, len(difference) - wins - losses, verdict)
        )
    return tuple(pairs)


def _signed_rank_sum(difference: Array) -> float:
    from scipy.stats import rankdata

    nonzero = difference[difference != 0]
    return float((rankdata(np.abs(nonzero)) * np.sign(nonzero)).sum())


def _cliques(names: Sequence[str], pairs: Sequence[PairAcrossDatasets]) -> tuple[tuple[str, ...], ...]:
    """The longest runs of neighbours by rank in which no pair is distinguishable; none lies within another."""
    apart = {(pair.a, pair.b) for pair in pairs if pair.verdict != NOT_DISTINGUISHABLE}
    runs: list[tuple[int, int]] = []
    for start in range(len(names)):
        end = start
        while end + 1 < len(names) and all((names[i], names[end + 1]) not in apart for i in range(start, end + 1)):
            end += 1
        if end > start and not any(first <= start and end <= last for first, last in runs):
            runs.append((start, end))
    return tuple(tuple(names[first : last + 1]) for first, last in runs)
