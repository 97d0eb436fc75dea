"""Studies that are killed or interrupted at random moments, and what their tables print in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from crossward.comparison.study_tables import document
from crossward.comparison.study_text import study_text
from crossward.comparison.text_tables import to_markdown
from crossward.studies.states import CUT_OFF
from crossward.studies.status import is_locked
from crossward.studies.study import Study

PATIENCE = 120.0  # seconds for a study to take its lock or to go through some rounds, and for its workers to end


@dataclass(frozen=True)
class Moment:
    """When a study is killed: once its cells have gone through so many rounds, and a little later."""

    rounds: int  # 0: as soon as the study has taken its lock
    seconds: float  # that are waited then


@dataclass(frozen=True)
class Kill:
    """One kill -9 that met a running study."""

    moment: Moment
    workers: int  # processes that ran cells, or were starting
    workers_killed: bool  # together with the study; else they are left to end by themselves
    cut_off: int  # cells that had begun and not finished


def printed_tables(file: Path, out: Path) -> str:
    """All tables of a study, as a document and as they are printed. Measured seconds, which never repeat, are 0."""
    tables = Study(file, out).tables()
    tables = replace(tables, costs=tuple(replace(cost, seconds=0.0) for cost in tables.costs))
    return json.dumps(document(tables), default=str) + to_markdown(study_text(tables))


def kill_again_and_again(file: Path, out: Path, kills: int, most_rounds: int, seed: int = 0) -> list[Kill]:
    """Start a study and kill it, `kills` times; the kills that met it running.

    The moment is drawn in rounds, up to `most_rounds`, since seconds mean little on a busy machine; the part of a round
    that it falls into is drawn as well, and a fifth of the kills come while workers start. Every other kill takes the
    workers along. A study that ends by itself is not counted, and is not started again.
    """
    generator = random.Random(seed)
    met: list[Kill] = []
    while len(met) < kills:
        rounds = 0 if len(met) % 5 == 4 else generator.randint(1, most_rounds)
        moment = Moment(rounds, generator.uniform(0, 0.3 if rounds else 3.0))
        kill = _start_and_kill(file, out, moment, workers_too=len(met) % 2 == 1)
        if kill is None:
            break
        met.append(kill)
    return met


def run_to_its_end(file: Path, out: Path) -> None:
    subprocess.run(_command(file, out), check=True, capture_output=True)


def ctrl_c(file: Path, out: Path, moment: Moment) -> tuple[int, str, list[int]]:
    """Start a study and interrupt it; its exit code, what it said, and the workers that it had."""
    # a shell that runs tests in the background has its children ignore Ctrl-C, which the interpreter would keep
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = f"{start}from crossward.cli.main import main; main()"
    command = [sys.executable, "-c", code, *_command(file, out)[3:]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _wait_for(moment, process, out / file.stem)
    workers = list(children(process.pid))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors, workers


def _command(file: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "crossward", "study", "run", str(file), "--out", str(out), "--quiet"]


def _wait_for(moment: Moment, process: subprocess.Popen, folder: Path) -> None:
    """Wait until the moment has come, or the study has ended. `folder` is that of the study."""
    before = rounds_done(folder)
    _wait_until(lambda: process.poll() is not None or is_locked(folder / ".lock"))
    _wait_until(lambda: process.poll() is not None or rounds_done(folder) >= before + moment.rounds)
    with suppress(subprocess.TimeoutExpired):
        process.wait(moment.seconds)


def _start_and_kill(file: Path, out: Path, moment: Moment, *, workers_too: bool) -> Kill | None:
    """None: the study ended before it could be killed."""
    process = subprocess.Popen(_command(file, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _wait_for(moment, process, out / file.stem)
    workers = list(children(process.pid))
    if process.poll() is not None:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        return None
    for pid in [process.pid, *(workers if workers_too else [])]:
        with suppress(ProcessLookupError):  # a worker may have ended just now
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    _wait_until(lambda: not any(map(is_alive, workers)))
    return Kill(moment, len(workers), workers_too, len(Study(file, out).status().in_state(CUT_OFF)))


def rounds_done(folder: Path) -> int:
    """The rounds of all cells of a study together."""
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*/metrics.jsonl"))


def children(pid: int) -> Iterator[int]:
    """The processes that a process has started and that run."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                yield int(status.parent.name)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} seconds"
        time.sleep(0.05)
