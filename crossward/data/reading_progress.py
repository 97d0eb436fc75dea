"""Progress of a reading: how far the decoding of images is, for whom it may concern.

Readers report to `reading`; what shows it is set by `shown_by` around them. Nothing is shown without it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TextIO

FIRST = 10.0  # s before a line is printed
EVERY = 30.0  # s between two lines


class ReadingDisplay(Protocol):
    """Shows how far a reading is."""

    def start(self, what: str, total: int) -> None: ...

    def advance(self, done: int) -> None:
        """So many more are done."""
        ...

    def end(self) -> None: ...


_display: ContextVar[ReadingDisplay | None] = ContextVar("reading_display", default=None)


@contextmanager
def shown_by(display: ReadingDisplay) -> Iterator[None]:
    """Readings inside are shown by `display`."""
    before = _display.set(display)
    try:
        yield
    finally:
        _display.reset(before)


@contextmanager
def reading(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A reading of `total` things. Call what it yields with the number of things that were done since the last call."""
    display = _display.get()
    if display is None or not total:
        yield lambda done: None
        return
    display.start(what, total)
    try:
        yield display.advance
    finally:
        display.end()


class ReadingLines:
    """A line now and then, if a reading takes long."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream
        self.clock = clock

    def start(self, what: str, total: int) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self.due = self.clock() + FIRST

    def advance(self, done: int) -> None:
        self.done += done
        now = self.clock()
        if now >= self.due and self.done < self.total:
            self.due = now + EVERY
            stream = self.stream or sys.stderr
            stream.write(f"{self.what}: {self.done:,} of {self.total:,}\n")
            stream.flush()

    def end(self) -> None:
        return
