"""Noise floor: how large a difference chance alone makes between two runs of the same method.

The runs of a pair have the same method, data, partition and seed of the weights, and differ in the order of batches
only. The mean of such a difference is 0, so the next one lies within t * sqrt(mean square difference) with 95 %, where
t has as many degrees of freedom as there are pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import variance

from crossward.comparison.intervals import LEVEL, check_level
from crossward.errors import ConfigError


@dataclass(frozen=True)
class NoiseFloor:
    """The band within which a difference of two runs is no more than chance."""

    metric: str
    band: float  # a difference of two single runs is within -band .. band
    level: float
    sets: int  # of runs that are the same but for the order of batches
    runs: int  # in all
    largest: float  # difference that was seen within a set
    standard_deviation: float  # of one run about the mean of its set (n - 1)
    degrees: int
    how: str = "t-based prediction band from runs that differ in the order of batches only; the mean difference is 0"

    def of_means(self, seeds: int) -> float:
        """The band of a difference of two means over so many seeds, as far as the order of batches goes."""
        if seeds < 1:
            raise ConfigError(f"a mean is over one seed at least, not {seeds}")
        return self.band / math.sqrt(seeds)

    def covers(self, difference: float, seeds: int = 1) -> bool:
        """Whether chance makes differences as large as this one."""
        return abs(difference) <= self.of_means(seeds)


def noise_floor(repeats: Sequence[Sequence[float]], metric: str, *, level: float = LEVEL) -> NoiseFloor:
    """The noise floor of a metric: `repeats` has, for each setting, the figures of its repeated runs (two or more)."""
    from scipy.stats import t

    check_level(level)
    short = [position for position, figures in enumerate(repeats, 1) if len(figures) < 2]
    if not repeats or short:
        raise ConfigError(
            "a noise floor needs each setting run twice at least",
            details=[f"setting {position} has fewer than two runs" for position in short],
            hint="Run the same method again with another order of batches.",
        )
    degrees = sum(len(figures) - 1 for figures in repeats)
    squares = sum((len(figures) - 1) * variance(figures) for figures in repeats)
    deviation = math.sqrt(squares / degrees)
    return NoiseFloor(
        metric=metric,
        band=float(t.ppf((1 + level) / 2, degrees)) * deviation * math.sqrt(2),
        level=level,
        sets=len(repeats),
        runs=sum(map(len, repeats)),
        largest=max(max(figures) - min(figures) for figures in repeats),
        standard_deviation=deviation,
        degrees=degrees,
    )
