"""RoundLog: what the logs for other programs have in common.

The recorder writes a round before any log does. So a log may lack the last rounds of a run that was interrupted, and
never has one too many: when the run goes on, the log takes up what is missing from metrics.jsonl.
"""

from __future__ import annotations

import calendar
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from crossward.config.schema import Config
from crossward.core.evaluation import EvaluatedSites
from crossward.core.run import Observer, Plan, Progress, RoundRecord
from crossward.runs.observers.scalars import Scalars, round_scalars, safe_names, summary_scalars
from crossward.runs.recorder import metrics_line
from crossward.runs.run_directory import RunDir


class RoundLog(Observer):
    def __init__(self, rundir: RunDir, config: Config) -> None:
        self.rundir, self.config = rundir, config
        self._sites: dict[str, str] = {}
        self._best: Mapping[str, Any] | None = None
        self._seconds = 0.0  # of all rounds so far
        self._started = 0.0

    @abstractmethod
    def open(self) -> int:
        """Begin the log, or go on with it; the last round that it has."""

    @abstractmethod
    def write(self, round: int, when: float, scalars: Scalars) -> None:
        """Add a round, done at `when` (seconds since 1970), which is the same however often a run is resumed."""

    @abstractmethod
    def finish(self, summary: Scalars) -> None:
        """Add what the whole run came to."""

    def close(self) -> None:
        """Let go of files, however the run ended."""

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None:
        self._sites = safe_names(sites.name(i) for i in sites.ids)
        self._started = _seconds_since_1970(self.rundir.about["created"])
        last = self.open()
        for line in self.rundir.lines("metrics.jsonl"):
            if line["round"] <= progress.done:
                self._add(line, known=line["round"] <= last)

    def on_round(self, record: RoundRecord) -> None:
        self._add(metrics_line(record), known=False)

    def on_end(self, progress: Progress) -> None:
        self.finish(summary_scalars(self._best, self._sites))

    def _add(self, line: Mapping[str, Any], known: bool) -> None:
        self._seconds += line["seconds"]
        if line["best"]:
            self._best = line
        if not known:
            self.write(line["round"], self._started + self._seconds, round_scalars(line, self._sites))


def _seconds_since_1970(written: str) -> float:
    return float(calendar.timegm(time.strptime(written, "%Y-%m-%dT%H:%M:%SZ")))
