"""What a person sees while a run goes: a live display on a terminal, plain lines elsewhere, or JSON lines."""

from __future__ import annotations

import json
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from crossward.core.engine import Outcome
from crossward.core.evaluation import EvaluatedSites, at
from crossward.core.run import Observer, Plan, RoundRecord
from crossward.core.run import Progress as Standing
from crossward.runs.recorder import metrics_line


def headline(record: RoundRecord, metric: str) -> str:
    """The round in a few words: loss, then the metric on validation and test."""
    words = []
    if record.losses:
        words.append(f"loss {sum(record.losses.values()) / len(record.losses):.3f}")
    metrics = record.evaluation.metrics if record.evaluation else {}
    for split in ("val", "test"):
        told = [
            f"{view} {v:.3f}" for view in ("local", "global") if (v := at(metrics, split, view, metric)) is not None
        ]
        if told:
            words.append(f"{split} {metric}: {', '.join(told)}")
    if record.is_best and metrics:
        words.append("best")
    words += [f"{name} left out: {why}" for name, why in record.failures.items()]
    return " | ".join(words)


class PlainProgress(Observer):
    """One line a round."""

    def __init__(self, console: Console, label: str = "") -> None:
        self.console, self.label = console, label

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Standing) -> None:
        self.metric, self.plan, self.began, self.first = plan.select or sites.task.main, plan, time.monotonic(), None
        clients = sum(bool(sites.work(i, "train")) for i in sites.ids)
        went_on = f", going on after round {progress.done}" if progress.done else ""
        self._say(f"{clients} sites, {plan.rounds} rounds{went_on}")
        self.done_before = progress.done

    def on_round(self, record: RoundRecord) -> None:
        spent = time.monotonic() - self.began
        left = spent / (record.round - self.done_before) * (self.plan.rounds - record.round)
        self._say(f"round {record.round}/{self.plan.rounds} | {headline(record, self.metric)} | {left:.0f} s left")

    def _say(self, text: str) -> None:
        self.console.print(
            f"{self.label}: {text}" if self.label else text, highlight=False, markup=False, soft_wrap=True
        )


class LiveProgress(Observer):
    """Bars for rounds and clients, the latest metrics, and the time left."""

    def __init__(self, console: Console, label: str = "") -> None:
        self.label = label
        self.bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[told]}"),
            console=console,
            transient=False,
        )

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Standing) -> None:
        self.metric = plan.select or sites.task.main
        self.rounds = self.bars.add_task(
            f"{self.label:<12} rounds", total=plan.rounds, completed=progress.done, told=""
        )
        self.clients = self.bars.add_task(f"{'':<12} clients", total=None, told="", visible=True)
        self.sites = sites
        self.bars.start()

    def on_outcome(self, round: int, done: int, of: int, outcome: Outcome) -> None:
        told = f"{self.sites.name(outcome.job.site)} {outcome.failure or outcome.job.step}"
        self.bars.update(self.clients, completed=done, total=of, told=told)

    def on_round(self, record: RoundRecord) -> None:
        self.bars.update(self.rounds, completed=record.round, told=headline(record, self.metric))
        for name, why in record.failures.items():
            self.bars.console.print(f"round {record.round}: {name} left out: {why}", markup=False)

    def on_end(self, progress: Standing) -> None:
        self.stop()

    def stop(self) -> None:
        self.bars.remove_task(self.clients)
        self.bars.stop()


class JsonProgress(Observer):
    """The lines of metrics.jsonl on standard output as they come."""

    def __init__(self, console: Console, label: str = "") -> None:
        self.console, self.label = console, label

    def on_round(self, record: RoundRecord) -> None:
        self.console.out(json.dumps({"run": self.label, **metrics_line(record)}), highlight=False)


def observer(console: Console, label: str, *, quiet: bool, as_json: bool) -> list[Observer]:
    if as_json:
        return [JsonProgress(console, label)]
    if quiet:
        return []
    return [LiveProgress(console, label) if console.is_terminal else PlainProgress(console, label)]


def stop(observers: list[Observer]) -> None:
    """Give the terminal back after an error or Ctrl-C."""
    for each in observers:
        if isinstance(each, LiveProgress) and each.bars.tasks:
            each.bars.stop()


def megabytes(count: Any) -> str:
    return f"{count / 1e6:.1f} MB" if count else "—"
