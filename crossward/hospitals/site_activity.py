"""What a site does, for its own people: a line for each message of the coordinator. The worker writes the lines into
activity.log, and `crossward site up` prints them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from crossward.foreign import MAX_NAME, printable
from crossward.hospitals.federation_state import STEP_WORDS
from crossward.hospitals.messages import SiteMessage

ACTIVITY_FILE = "activity.log"
SHORT_STEPS = ("judge", "deploy")  # whose beginning is not worth a line
Answer = Callable[[SiteMessage], SiteMessage]


def with_activity(answer: Answer, file: Path, clock: Callable[[], float] = time.monotonic) -> Answer:
    """The same answers, with lines about them in `file`."""

    def answer_and_write(request: SiteMessage) -> SiteMessage:
        task = request.header.get("do")
        if task not in ("open", "job"):
            return answer(request)
        words = _opening_words(request) if task == "open" else _job_words(request)
        if task == "job" and request.header.get("step") not in SHORT_STEPS:
            _write(file, f"{words} begins")
        start = clock()
        reply = answer(request)
        seconds = clock() - start
        if reply.failure:
            _write(file, f"{words} refused or failed after {seconds:.1f} s: {reply.failure}")
        elif task == "open":
            _write(file, f"{words}: this site takes part")
        else:
            _write(file, f"{words} done in {seconds:.1f} s, {size_words(len(reply.payload))} to be sent")
        return reply

    return answer_and_write


def size_words(count: int) -> str:
    """A number of bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _opening_words(request: SiteMessage) -> str:
    header = request.header
    sites = header.get("sites")
    named = f" of {len(sites)} sites" if isinstance(sites, list) else ""
    run, method = printable(header.get("run"), MAX_NAME), printable(header.get("method"), MAX_NAME)
    return f"run {run} ({method}){named}"


def _job_words(request: SiteMessage) -> str:
    header = request.header
    step = header.get("step")
    words = STEP_WORDS.get(step, "") if isinstance(step, str) else ""
    number = header.get("round")
    counted = number + 1 if isinstance(number, int) else printable(number, MAX_NAME)
    return f"round {counted}, {words or printable(step, MAX_NAME)}"


def _write(file: Path, words: str) -> None:
    line = f"{time.strftime('%H:%M:%S')} {printable(words)}\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(line)
