"""Signals that end a command in order."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType


def exit_on_signals(numbers: Sequence[int] = (signal.SIGTERM, signal.SIGINT), code: int = 0) -> None:
    """Let SIGTERM, as systemd and docker send it, end a command as Ctrl-C does: everything it started is stopped."""

    def exit_orderly(number: int, frame: FrameType | None) -> None:
        raise SystemExit(code)

    for number in numbers:
        signal.signal(number, exit_orderly)
