"""What people see while a run goes: a live display on a terminal, plain lines elsewhere, or JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import progress as rich_progress
from rich.console import Console

from crossward.cli.output import print_notes
from crossward.core.engine import Outcome
from crossward.core.evaluation import EvaluatedSites, metric_at
from crossward.core.run import Observer, Plan, Progress, RoundRecord
from crossward.errors import Interrupted
from crossward.runs.recorder import metrics_line

INTERRUPTED = 130  # the exit code of shells: 128 + SIGINT


@contextmanager
def show_progress(label: str, *, quiet: bool, as_json: bool, advice: str = "") -> Iterator[list[Observer]]:
    """The observers that show a run. However the run ends, the terminal is as it was before.

    `advice` says what to do after an interruption; by default, to resume the run.
    """
    observers = _observers(Console(), label, quiet=quiet, as_json=as_json)
    try:
        yield observers
    except Interrupted as interrupted:
        _stop(observers)
        what_next = advice or f"Go on by: crossward resume {interrupted.folder}"
        Console(stderr=True).print(f"Interrupted. {what_next}", markup=False, soft_wrap=True)
        raise SystemExit(INTERRUPTED) from None
    finally:
        _stop(observers)


def _observers(console: Console, label: str, *, quiet: bool, as_json: bool) -> list[Observer]:
    if as_json:
        return [JsonProgress(console, label)]
    if quiet:
        return []
    if console.is_terminal:
        return [LiveProgress(console, label)]
    return [PlainProgress(console, label)]


def _stop(observers: list[Observer]) -> None:
    for observer in observers:
        if isinstance(observer, LiveProgress):
            observer.restore_terminal()


class PlainProgress(Observer):
    """One line a round."""

    def __init__(self, console: Console, label: str) -> None:
        self.console = console
        self.label = label

    def on_notes(self, notes: Sequence[str]) -> None:
        print_notes(notes, self.console)

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None:
        self.metric = plan.select or sites.task.main
        self.rounds = plan.rounds
        self.rounds_before = progress.done
        self.started = time.monotonic()
        clients = sum(bool(sites.work(site, "train")) for site in sites.ids)
        resumed = f", going on after round {progress.done}" if progress.done else ""
        self._print(f"{clients} sites, {plan.rounds} rounds{resumed}")

    def on_round(self, record: RoundRecord) -> None:
        seconds_a_round = (time.monotonic() - self.started) / (record.round - self.rounds_before)
        seconds_left = seconds_a_round * (self.rounds - record.round)
        headline = round_headline(record, self.metric)
        self._print(f"round {record.round}/{self.rounds} | {headline} | {seconds_left:.0f} s left")

    def _print(self, text: str) -> None:
        line = f"{self.label}: {text}" if self.label else text
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


class LiveProgress(Observer):
    """Bars for rounds and clients, the latest metrics, and the time left."""

    def __init__(self, console: Console, label: str) -> None:
        self.label = label
        self.bars = rich_progress.Progress(
            rich_progress.SpinnerColumn(),
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(bar_width=24),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeRemainingColumn(),
            rich_progress.TextColumn("[dim]{task.fields[status]}"),
            console=console,
            transient=False,
        )

    def on_notes(self, notes: Sequence[str]) -> None:
        print_notes(notes, self.bars.console)

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None:
        self.sites = sites
        self.metric = plan.select or sites.task.main
        description = f"{self.label:<12} rounds"
        self.rounds = self.bars.add_task(description, total=plan.rounds, completed=progress.done, status="")
        self.clients = self.bars.add_task(f"{'':<12} clients", total=None, status="", visible=True)
        self.bars.start()

    def on_outcome(self, round: int, done: int, of: int, outcome: Outcome) -> None:
        status = f"{self.sites.name(outcome.job.site)} {outcome.failure or outcome.job.step}"
        self.bars.update(self.clients, completed=done, total=of, status=status)

    def on_round(self, record: RoundRecord) -> None:
        self.bars.update(self.rounds, completed=record.round, status=round_headline(record, self.metric))
        for name, why in record.failures.items():
            self.bars.console.print(f"round {record.round}: {name} left out: {why}", markup=False)

    def on_end(self, progress: Progress) -> None:
        self.bars.remove_task(self.clients)
        self.bars.stop()

    def restore_terminal(self) -> None:
        """Stop the display if a run has started it."""
        if self.bars.tasks:
            self.bars.stop()


class JsonProgress(Observer):
    """The lines of metrics.jsonl on standard output as they come."""

    def __init__(self, console: Console, label: str) -> None:
        self.console = console
        self.label = label

    def on_round(self, record: RoundRecord) -> None:
        self.console.out(json.dumps({"run": self.label, **metrics_line(record)}), highlight=False)


def round_headline(record: RoundRecord, metric: str) -> str:
    """The round in a few words: loss, then the metric on validation and test."""
    words = []
    if record.losses:
        words.append(f"loss {sum(record.losses.values()) / len(record.losses):.3f}")
    metrics = record.evaluation.metrics if record.evaluation else {}
    for split in ("val", "test"):
        values = {view: metric_at(metrics, split, view, metric) for view in ("local", "global")}
        parts = [f"{view} {value:.3f}" for view, value in values.items() if value is not None]
        if parts:
            words.append(f"{split} {metric}: {', '.join(parts)}")
    if record.is_best and metrics:
        words.append("best")
    words += [f"{name} left out: {why}" for name, why in record.failures.items()]
    return " | ".join(words)
