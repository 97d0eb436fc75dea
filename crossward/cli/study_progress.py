"""What people see while a study goes: one live view on a terminal, plain lines elsewhere, or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from crossward.cli.amounts import in_words
from crossward.cli.output import print_json
from crossward.studies.progress import StudyProgress
from crossward.studies.scheduler import Job

SHOWN_LABELS = 12  # methods whose best is shown live


@contextmanager
def show_study(*, quiet: bool, as_json: bool) -> Iterator[StudyProgress]:
    """The view of a study. However the study ends, the terminal is as it was before."""
    console = Console()
    if as_json:
        yield JsonStudyView()
    elif quiet:
        yield StudyProgress()
    elif console.is_terminal:
        view = LiveStudyView(console)
        try:
            yield view
        finally:
            view.close()
    else:
        yield PlainStudyView(console)


class PlainStudyView(StudyProgress):
    """A line for each cell."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def begin(self, jobs: Sequence[Job], workers: int, before: int, seconds: Mapping[str, list[float]]) -> None:
        super().begin(jobs, workers, before, seconds)
        self._print(f"{before} of {self.total} cells have finished, {len(jobs)} to do, {workers} at a time")

    def on_done(self, job: Job, seconds: float, peak_bytes: int) -> None:
        best = self.bests.get(job.label, {}).get(job.key)
        super().on_done(job, seconds, peak_bytes)
        words = [f"{cell_name(job)} done in {in_words(seconds)}"]
        if best is not None:
            words.append(f"best {self.metric} on validation {best:.3f}")
        left = self.seconds_left()
        if left:
            words.append(f"about {in_words(left)} left")
        self._print(f"[{self.before + self.done}/{self.total}] {' | '.join(words)}")

    def on_failure(self, job: Job, reason: str) -> None:
        super().on_failure(job, reason)
        self._print(f"FAILED {cell_name(job)}: {reason}")

    def on_note(self, text: str) -> None:
        self._print(f"note: {text}")

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


class JsonStudyView(StudyProgress):
    """A JSON line for each event."""

    def on_start(self, job: Job) -> None:
        super().on_start(job)
        print_json({"event": "start", "cell": cell_name(job)})

    def on_round(self, job: Job, event: Mapping[str, Any]) -> None:
        super().on_round(job, event)
        print_json({**event, "cell": cell_name(job)})

    def on_done(self, job: Job, seconds: float, peak_bytes: int) -> None:
        super().on_done(job, seconds, peak_bytes)
        cost = {"seconds": round(seconds, 3), "peak_bytes": peak_bytes}
        print_json({"event": "done", "cell": cell_name(job), **cost, "seconds_left": self.seconds_left()})

    def on_failure(self, job: Job, reason: str) -> None:
        super().on_failure(job, reason)
        print_json({"event": "failed", "cell": cell_name(job), "reason": reason})

    def on_note(self, text: str) -> None:
        print_json({"event": "note", "text": text})


class LiveStudyView(StudyProgress):
    """Cells, the rounds of those that run, the best of each method so far, and the time left, drawn anew."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.live = Live(console=console, get_renderable=self.draw, refresh_per_second=2)

    def begin(self, jobs: Sequence[Job], workers: int, before: int, seconds: Mapping[str, list[float]]) -> None:
        super().begin(jobs, workers, before, seconds)
        if jobs:
            self.live.start()

    def close(self) -> None:
        """Stop the display if it was started."""
        if self.live.is_started:
            self.live.stop()

    def on_failure(self, job: Job, reason: str) -> None:
        super().on_failure(job, reason)
        self._print(f"[red]failed[/] {escape(cell_name(job))}: {escape(reason)}")

    def on_note(self, text: str) -> None:
        self._print(f"[yellow]note:[/] {escape(text)}")

    def _print(self, text: str) -> None:
        self.live.console.print(text, highlight=False, soft_wrap=True)

    def draw(self) -> RenderableType:
        done = self.before + self.done
        left = self.seconds_left()
        head = Table.grid(padding=(0, 2))
        counts = f"{done}/{self.total} cells" + (f", [red]{len(self.failed)} failed[/]" if self.failed else "")
        time_left = "" if left is None else f"about {in_words(left)} left"
        head.add_row("[bold]study[/]", ProgressBar(max(1, self.total), done, width=30), counts, time_left)
        running = Table.grid(padding=(0, 2))
        for cell in self.running.values():
            bar = ProgressBar(max(1, cell.rounds), cell.round, width=20)
            best = "" if cell.best is None else f"best {self.metric} {cell.best:.3f}"
            running.add_row(f"  {escape(cell_name(cell.job))}", bar, f"round {cell.round}/{cell.rounds or '?'}", best)
        return Group(head, running, self._bests())

    def _bests(self) -> Table:
        """Of each method the mean over its cells of the best value on validation."""
        table = Table.grid(padding=(0, 2))
        ordered = sorted(self.best_by_label().items(), key=lambda item: -item[1][0])
        for label, (value, cells) in ordered[:SHOWN_LABELS]:
            table.add_row(f"  [dim]{escape(label)}", f"[dim]{self.metric} on validation {value:.3f}, {cells} cell(s)")
        return table


def cell_name(job: Job) -> str:
    return Path(job.task["folder"]).name
