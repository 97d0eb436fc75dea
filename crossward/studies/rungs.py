"""Rungs: rounds at which runs are compared on validation, so that the weaker ones stop there.

A run that stops at a rung is a run directory as any other, interrupted after that round. It may go on later: its
configuration always has all rounds, so that schedules do not depend on where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from crossward.config.schema import Config
from crossward.core.evaluation import LOWER_IS_BETTER, metric_at
from crossward.core.run import Plan
from crossward.errors import ConfigError
from crossward.runs.run_directory import RunDir
from crossward.studies.cells import Cell, run_task
from crossward.studies.planned_cell import plan_cell
from crossward.studies.progress import StudyProgress
from crossward.studies.scheduler import Execute, Job, Listener
from crossward.studies.states import BLOCKED


def evaluated_round(config: Config, round: int) -> int:
    """The first round from this one on that is evaluated."""
    if not config.evaluate.every:
        raise ConfigError(
            "evaluate.every = 0: without validation there is nothing to choose by", hint="Write evaluate.every = 1."
        )
    plan = Plan(config.run.rounds, evaluate_every=config.evaluate.every, evaluate_first=config.evaluate.first)
    return next(r for r in range(max(1, round), plan.rounds + 1) if plan.evaluates(r))


def rung_rounds(config: Config, levels: int, min_rounds: int = 1) -> tuple[int, ...]:
    """The rounds of up to `levels` rungs, each at twice the rounds of the one before; the last is the last round."""
    total = config.run.rounds
    wanted = [max(min_rounds, ceil(total / 2**k)) for k in range(levels - 1, -1, -1)]
    return tuple(dict.fromkeys(evaluated_round(config, min(round, total)) for round in wanted))


def run_to_rungs(wanted: Sequence[tuple[Cell, int]], execute: Execute, view: Listener, workers: int) -> dict[Path, str]:
    """Run each cell to its rung; those that are there already do nothing. Folder -> why it failed."""
    failures: dict[Path, str] = {}
    jobs: dict[Path, Job] = {}
    for cell, rung in wanted:
        planned = plan_cell(cell)
        if planned.state == BLOCKED:
            failures[cell.folder] = planned.reason
        elif rounds_done(cell.folder) < rung:
            task = {**run_task(cell), "until": rung}
            jobs[cell.folder] = Job(f"{cell.folder.name}-until-{rung}", cell.label, task)
    if jobs:
        if isinstance(view, StudyProgress):
            view.begin(list(jobs.values()), workers, 0, {})
        execute(list(jobs.values()), _FailureCollector(view, failures))
    return failures


class _FailureCollector(Listener):
    """Keeps why jobs failed, and passes everything on to the view."""

    def __init__(self, view: Listener, failures: dict[Path, str]) -> None:
        self.view, self.failures = view, failures

    def on_start(self, job: Job) -> None:
        self.view.on_start(job)

    def on_round(self, job: Job, event: Mapping[str, Any]) -> None:
        self.view.on_round(job, event)

    def on_done(self, job: Job, seconds: float, peak_bytes: int) -> None:
        self.view.on_done(job, seconds, peak_bytes)

    def on_failure(self, job: Job, reason: str) -> None:
        self.failures[Path(job.task["folder"])] = reason
        self.view.on_failure(job, reason)

    def on_note(self, text: str) -> None:
        self.view.on_note(text)

    def on_tick(self) -> None:
        self.view.on_tick()


def rounds_done(folder: Path) -> int:
    """How many rounds a run has behind it."""
    if not (folder / "metrics.jsonl").exists():
        return 0
    lines = RunDir(folder).lines("metrics.jsonl")
    return lines[-1]["round"] if lines else 0


def selection(folder: Path) -> tuple[str, str]:
    """The metric that chooses the best round of a run, and the view of validation."""
    about = RunDir(folder).about
    evaluate = about["config"]["evaluate"]
    return evaluate.get("select") or about["task"]["main"], evaluate["view"]


def value_at_rung(folder: Path, rung: int, metric: str | None = None) -> float | None:
    """The metric on validation (None: the one that chooses) in the best round up to the rung; None: there is none."""
    chosen_by, view = selection(folder)
    lines = [line for line in RunDir(folder).lines("metrics.jsonl") if line["metrics"] and line["round"] <= rung]
    best = next((line for line in reversed(lines) if line["best"]), None)
    if best is None:
        return None
    other = "global" if view == "local" else "local"
    values = [metric_at(best["metrics"], "val", each, metric or chosen_by) for each in (view, other)]
    return next((value for value in values if value is not None), None)


def better_first(metric: str, value: float) -> float:
    """A key to sort by: the best value comes first."""
    return value if metric in LOWER_IS_BETTER else -value
