"""Ratios: contestants take turns within one run, and only the ratios of their times count: a busy machine slows all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

Lap = Callable[[], float]  # runs some rounds and returns the seconds per round
Laps = Mapping[str, list[float]]  # contestant -> seconds per round of each lap


@dataclass(frozen=True)
class Comparison:
    """The ratio of two contestants' times, and the bar that it is held against."""

    what: str
    ratio: float  # median of all repeats
    least: float
    most: float
    bar: float
    at_least: bool  # whether the bar is a lower bound
    seconds: dict[str, float]  # per round, medians

    @property
    def met(self) -> bool:
        return self.ratio >= self.bar if self.at_least else self.ratio <= self.bar

    @property
    def verdict(self) -> str:
        return "met" if self.met else "NOT MET"

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


def take_turns(contestants: Mapping[str, Lap], repeats: int) -> Laps:
    """Seconds per round of each contestant in each repeat; who goes first changes from repeat to repeat."""
    names = list(contestants)
    laps = {name: list[float]() for name in names}
    for repeat in range(repeats):
        for k in range(len(names)):
            name = names[(repeat + k) % len(names)]
            laps[name].append(contestants[name]())
    return laps


def compare(what: str, laps: Laps, over: str, under: str, bar: float, at_least: bool = False) -> Comparison:
    """The ratio of two contestants, repeat by repeat."""
    ratios = [a / b for a, b in zip(laps[over], laps[under], strict=True)]
    seconds = {name: median(laps[name]) for name in (over, under)}
    return Comparison(what, median(ratios), min(ratios), max(ratios), bar, at_least, seconds)


def table(comparisons: Iterable[Comparison]) -> str:
    lines = [("what", "measured", "bar", "", "a round takes"), *map(_cells, comparisons)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)


def _cells(comparison: Comparison) -> tuple[str, ...]:
    measured = f"{comparison.ratio:.2f} ({comparison.least:.2f} to {comparison.most:.2f})"
    bar = f"{'>=' if comparison.at_least else '<='} {comparison.bar}"
    times = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in comparison.seconds.items())
    return comparison.what, measured, bar, comparison.verdict, times
