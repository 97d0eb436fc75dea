"""A worker as the study sees it: a process that is sent tasks and sends events, and may die at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from crossward.core.cores import worker_environment
from crossward.foreign import printable

COMMAND = (sys.executable, "-m", "crossward.studies.worker")
STOP_TASK = {"task": "stop"}  # see worker.py
PATIENCE = 40.0  # seconds for a worker to end by itself
LONGEST_LINE = 1 << 20  # bytes of an event
TAIL = 4000  # bytes of its errors that are looked at


class WorkerProcess:
    """Owned by one thread of one study."""

    def __init__(self, command: Sequence[str] = COMMAND, workers: int = 1, number: int = 0) -> None:
        """One of so many `workers`, which take the devices of the machine in turn."""
        self.number = number
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | worker_environment(workers, number),
            start_new_session=True,  # Ctrl-C is for the study, which stops its workers in order
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._buffer = b""
        self.ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, task: Mapping[str, Any]) -> None:
        """Hand over a task. A worker that is dead is noticed when its events are read."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(json.dumps(task).encode() + b"\n")
            self._process.stdin.flush()

    def events(self) -> Iterator[dict[str, Any]]:
        """The events that have arrived; the last one is "dead" if the process has ended."""
        while True:
            try:
                data = os.read(self.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not data:
                yield {"event": "dead", "reason": self._why_dead()}
                return
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            if len(self._buffer) > LONGEST_LINE:
                self.kill()
            yield from map(json.loads, lines)

    def _why_dead(self) -> str:
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            often = ": the system does that when memory runs out" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{often}"
        return f"its process ended with code {code}{self._last_words()}"

    def _last_words(self) -> str:
        with suppress(OSError):
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - TAIL))
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            return f" ({printable(lines[-1])})" if lines else ""
        return ""

    def ask_to_stop(self) -> None:
        self.send(STOP_TASK)

    def kill(self) -> None:
        with suppress(OSError):
            self._process.kill()

    def end(self) -> None:
        """Wait for a worker that was asked to stop; one that does not end is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()
