"""What people see while images are read: a bar on a terminal, a line now and then elsewhere, on standard error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crossward.data.reading_progress import ReadingLines, shown_by

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.0  # s before a bar appears


@contextmanager
def show_reading() -> Iterator[None]:
    """Readings inside are shown. However they end, the terminal is as it was before."""
    from rich.console import Console

    bar = ReadingBar() if Console(stderr=True).is_terminal else None
    try:
        with shown_by(bar or ReadingLines()):
            yield
    finally:
        if bar is not None:
            bar.end()


class ReadingBar:
    """A bar that goes when the reading is done. A reading that takes a moment shows none."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    def start(self, what: str, total: int) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self.due = time.monotonic() + PATIENCE

    def advance(self, done: int) -> None:
        self.done += done
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], completed=self.done)
        elif time.monotonic() > self.due:
            self._appear()

    def end(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def _appear(self) -> None:
        from rich import progress
        from rich.console import Console

        self.progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.progress.add_task(self.what, total=self.total, completed=self.done)
        self.progress.start()
