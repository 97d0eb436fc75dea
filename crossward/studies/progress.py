"""The progress of a study: cells done, rounds of the running ones, the best of each method so far, and the time left.

It counts and computes; the command line draws it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from crossward.studies.scheduler import Job, Listener


@dataclass
class RunningCell:
    job: Job
    since: float
    round: int = 0
    rounds: int = 0
    best: float | None = None

    @property
    def share(self) -> float:
        return self.round / self.rounds if self.rounds else 0.0


@dataclass
class StudyProgress(Listener):
    """What a view shows; `begin` says what there is to do."""

    jobs: Sequence[Job] = ()
    workers: int = 1
    before: int = 0  # cells that had finished earlier
    seconds: dict[str, list[float]] = field(default_factory=dict)  # label -> of each cell that finished
    bests: dict[str, dict[str, float]] = field(default_factory=dict)  # label -> cell -> best on validation
    running: dict[str, RunningCell] = field(default_factory=dict)
    done: int = 0
    failed: list[tuple[Job, str]] = field(default_factory=list)
    metric: str = ""

    _left: dict[str, Job] = field(default_factory=dict)

    def begin(self, jobs: Sequence[Job], workers: int, before: int, seconds: Mapping[str, list[float]]) -> None:
        """Start counting. `before` is the number of cells that had finished earlier, `seconds` what they took, by
        label."""
        self.done = 0
        self.failed = []
        self.bests = {}
        self.jobs, self.workers, self.before = jobs, workers, before
        self.seconds = {label: list(each) for label, each in seconds.items()}
        self._left = {job.key: job for job in jobs}

    @property
    def total(self) -> int:
        return self.before + len(self.jobs)

    def on_start(self, job: Job) -> None:
        self.running[job.key] = RunningCell(job, time.monotonic())

    def on_round(self, job: Job, event: Mapping[str, Any]) -> None:
        cell = self.running[job.key]
        cell.round, cell.rounds, cell.best = event["round"], event["rounds"], event["best"]
        self.metric = event["metric"]
        if cell.best is not None:
            self.bests.setdefault(job.label, {})[job.key] = cell.best

    def on_done(self, job: Job, seconds: float, peak_bytes: int) -> None:
        self.done += 1
        self.seconds.setdefault(job.label, []).append(seconds)
        self._end(job)

    def on_failure(self, job: Job, reason: str) -> None:
        self.failed.append((job, reason))
        self._end(job)

    def _end(self, job: Job) -> None:
        self.running.pop(job.key, None)
        self._left.pop(job.key, None)

    def best_by_label(self) -> dict[str, tuple[float, int]]:
        """Label -> mean over its cells of the best value on validation so far, and how many cells that is."""
        return {label: (fmean(cells.values()), len(cells)) for label, cells in self.bests.items()}

    def seconds_left(self) -> float | None:
        """From what cells of the same label took; None until there is anything to go by."""
        known = [seconds for each in self.seconds.values() for seconds in each]
        now = time.monotonic()
        running = [(now - cell.since) / cell.share - (now - cell.since) for cell in self.running.values() if cell.share]
        if not known and not running:
            return None
        usual = fmean(known) if known else fmean([(now - c.since) / c.share for c in self.running.values() if c.share])
        waiting = [job for key, job in self._left.items() if key not in self.running]
        rest = [fmean(self.seconds[job.label]) if job.label in self.seconds else usual for job in waiting]
        return (sum(rest) + sum(running)) / max(1, min(self.workers, len(rest) + len(running)))
