"""What people see of the demo: one line for each situation while it runs, and a table of results at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from crossward.cli.amounts import in_words
from crossward.cli.output import print_json, print_notes
from crossward.cli.study_progress import cell_name
from crossward.demo.situations import ALONE, FEDAVG, Situation
from crossward.studies.progress import StudyProgress
from crossward.studies.scheduler import Job

UNCLEAR = ("may be chance", "dim")  # not distinguishable, in words that fit
MOST_UNJUDGED = 5  # methods of a situation that was made for none of them


class DemoView(StudyProgress):
    """Says nothing; counts the situations."""

    def __init__(self, situations: int) -> None:
        super().__init__()
        self.situations = situations
        self.number = 0
        self.situation: Situation | None = None
        self.since = time.monotonic()

    def begin_situation(self, situation: Situation) -> None:
        self.number += 1
        self.situation = situation
        self.since = time.monotonic()


@contextmanager
def show_demo(situations: int, *, quiet: bool, as_json: bool) -> Iterator[DemoView]:
    """The view of a demo. However it ends, the terminal is as it was before."""
    console = Console()
    if as_json:
        yield JsonDemoView(situations)
    elif quiet:
        yield DemoView(situations)
    elif console.is_terminal:
        view = LiveDemoView(situations, console)
        with view.live:
            yield view
            view.finish()
    else:
        yield PlainDemoView(situations, console)


class JsonDemoView(DemoView):
    """A JSON line for each situation and each run."""

    def begin_situation(self, situation: Situation) -> None:
        super().begin_situation(situation)
        print_json({"event": "situation", "situation": situation.name, "title": situation.title})

    def on_done(self, job: Job, seconds: float, peak_bytes: int) -> None:
        super().on_done(job, seconds, peak_bytes)
        name = self.situation.name if self.situation else ""
        print_json({"event": "done", "situation": name, "run": cell_name(job), "seconds": round(seconds, 3)})

    def on_failure(self, job: Job, reason: str) -> None:
        super().on_failure(job, reason)
        print_json({"event": "failed", "run": cell_name(job), "reason": reason})

    def on_note(self, text: str) -> None:
        print_json({"event": "note", "text": text})


class PlainDemoView(DemoView):
    """A line for each situation: for files and terminals that cannot draw."""

    def __init__(self, situations: int, console: Console) -> None:
        super().__init__(situations)
        self.console = console

    def begin(self, jobs: Sequence[Job], workers: int, before: int, seconds: Mapping[str, list[float]]) -> None:
        super().begin(jobs, workers, before, seconds)
        title = self.situation.title if self.situation else ""
        self._print(f"{self.number} of {self.situations}  {title}: {len(jobs)} runs, {workers} at a time")

    def on_note(self, text: str) -> None:
        self._print(f"note: {text}")

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


class LiveDemoView(DemoView):
    """A line for each situation with its bar, drawn anew; it stays when the demo has ended."""

    def __init__(self, situations: int, console: Console) -> None:
        super().__init__(situations)
        self.finished: list[tuple[str, str]] = []
        self.live = Live(console=console, get_renderable=self.draw, refresh_per_second=4)

    def begin_situation(self, situation: Situation) -> None:
        self.finish()
        super().begin_situation(situation)

    def finish(self) -> None:
        """The situation that runs is done."""
        if self.situation is not None:
            took = in_words(time.monotonic() - self.since)
            self.finished.append((self.situation.title, f"{self.done} runs in {took}"))

    def on_note(self, text: str) -> None:
        print_notes([text])

    def draw(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for title, words in self.finished:
            table.add_row("[green]✓[/]", escape(title), ProgressBar(1, 1, width=20), f"[dim]{words}[/]")
        if self.situation is not None and len(self.finished) < self.number:
            rounds = sum(cell.share for cell in self.running.values())
            bar = ProgressBar(max(1, self.total), self.done + rounds, width=20)
            methods = ", ".join(dict.fromkeys(cell.job.label for cell in self.running.values()))
            words = f"{self.done}/{self.total} runs" + (f": {methods}" if methods else ", reading them")
            table.add_row("[cyan]▸[/]", escape(self.situation.title), bar, f"[dim]{escape(words)}[/]")
        for _ in range(self.situations - max(self.number, len(self.finished))):
            table.add_row("[dim]·[/]", "[dim]…[/]", "", "")
        return table


# results --------------------------------------------------------------------------------------------------------------
def result_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each situation with rich's markup: its verdict, then a line for each method, the best first; where no method of a
    paper is judged, the first few."""
    width = max((len(row["method"]) for row in rows), default=0)
    lines = [f"[dim]  {'':{width}}  result  {'over training alone':21}over FedAvg[/]"]
    for _, group in groupby(rows, key=lambda row: row["situation"]):
        methods = list(group)
        first = methods[0]
        metric = first["measured"].partition(",")[0]
        lines.append(f"[bold]{escape(first['nav'])}[/], {escape(metric)}: {escape(first['verdict'])}")
        judged = any(row["of_the_paper"] for row in methods)
        shown = methods if judged or len(methods) <= MOST_UNJUDGED else methods[:MOST_UNJUDGED]
        lines += [_method_line(row, width) for row in shown]
        if len(shown) < len(methods):
            lines.append(f"  [dim]{len(methods) - len(shown)} more methods in the report[/]")
    return lines


def _method_line(row: Mapping[str, Any], width: int) -> str:
    method = escape(f"{row['method']:{width}}")
    method = f"[bold]{method}[/]" if row["of_the_paper"] else method
    alone = _difference(row[f"over_{ALONE}"], 21)
    fedavg = _difference(row[f"over_{FEDAVG}"])
    return f"  {method}  {100 * row['value']:6.1f}  {alone}{fedavg}".rstrip()


def _difference(row: Mapping[str, Any] | None, width: int = 0) -> str:
    """In points, with its verdict, padded to a width."""
    if row is None:
        return " " * width
    word, colour = {"better": ("better", "blue"), "worse": ("worse", "yellow")}.get(row["verdict"], UNCLEAR)
    points = f"{100 * row['value']:+6.1f}"
    return f"{points} [{colour}]{word}[/]{' ' * (width - len(points) - 1 - len(word))}"
