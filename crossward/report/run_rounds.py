"""The rounds of a run as the report draws them: its metrics by view, and the figures of each site.

metrics.jsonl holds every confusion matrix of every site; a study has hundreds of megabytes of it. Each line is read
once, what charts need is kept, and the rest is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from crossward.runs.result import Result

VIEWS = ("mean", "worst", "global")


@dataclass(frozen=True)
class RunRounds:
    """What the rounds of a run left, on the test sets."""

    last: int = 0  # the last round that is done
    evaluated: tuple[int, ...] = ()
    scores: Mapping[tuple[str, str], Mapping[int, float]] = field(default_factory=dict)  # (view, metric) -> round ->
    best: int | None = None  # the round that validation chose
    best_metrics: Mapping[str, Any] = field(default_factory=dict)  # the whole document of that round, or of the last
    seconds: float = 0.0
    bytes: Mapping[int, int] = field(default_factory=dict)  # sent up and down, by round
    failures: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # round -> sites that were left out

    def curve(self, view: str, metric: str) -> Mapping[int, float]:
        """Round -> value, of the rounds in which it is defined."""
        return self.scores.get((view, metric), {})

    def has(self, view: str, metric: str) -> bool:
        return bool(self.scores.get((view, metric)))

    def site_metrics(self) -> Mapping[str, Mapping[str, Any]]:
        """Each site's metrics on its own test set, in the round that validation chose."""
        sites = self.best_metrics.get("test", {}).get("local", {}).get("sites", {})
        return sites if isinstance(sites, Mapping) else {}


def read_rounds(result: Result) -> RunRounds:
    """The rounds that are done; a last line that a crash cut short is not there."""
    scores: dict[tuple[str, str], dict[int, float]] = {}
    evaluated: list[int] = []
    sent: dict[int, int] = {}
    failures: dict[int, tuple[str, ...]] = {}
    last, seconds, best, kept = 0, 0.0, None, {}
    for line in result.each_round():
        last = int(line["round"])
        seconds += float(line.get("seconds") or 0.0)
        sent[last] = sum(int(count) for count in line["bytes"].values())
        if line.get("failures"):
            failures[last] = tuple(map(str, line["failures"]))
        metrics = line["metrics"]
        if not metrics:
            continue
        evaluated.append(last)
        for view, metric, value in _scores(metrics.get("test", {})):
            scores.setdefault((view, metric), {})[last] = value
        if line.get("best"):
            best, kept = last, metrics
        elif best is None:
            kept = metrics
    return RunRounds(last, tuple(evaluated), scores, best, kept, seconds, sent, failures)


def _scores(test: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    local = test.get("local", {})
    for view, scores in (("mean", local.get("mean")), ("worst", local.get("worst")), ("global", test.get("global"))):
        for metric, value in (scores or {}).items():
            if isinstance(value, float):
                yield view, metric, value
