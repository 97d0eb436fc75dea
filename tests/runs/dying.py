"""Runs that end their own process at a chosen moment. A module by itself, because such processes must import it."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

from crossward.core.run import Observer
from crossward.core.store import TreeStore
from crossward.engines.pool import WorkerPool
from crossward.errors import Interrupted
from crossward.runs import lifecycle as api
from crossward.runs.checkpoint_writer import BEST, CheckpointWriter
from crossward.runs.run_directory import RunDir


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class At(Observer):
    """Calls `then` at one moment."""

    def __init__(self, moment, then=die) -> None:
        self.moment, self.then = moment, then

    def on_outcome(self, round, done, of, outcome) -> None:
        if self.moment == ("outcome", round, done):
            self.then()

    def on_round(self, record) -> None:
        if self.moment == ("round", record.round):
            self.then()

    def on_end(self, progress) -> None:
        if self.moment == ("end",):
            self.then()


def dying(kind, name, when, *, after=False) -> None:
    """Let a method of `kind` end this process, before or after it did its work."""
    real = getattr(kind, name)

    def until_then(self, *args, **kwargs):
        now = when(self, *args)
        if now and not after:
            die()
        made = real(self, *args, **kwargs)
        if now:
            die()
        return made

    setattr(kind, name, until_then)


def torn_line(rundir, name, lines) -> None:
    if name == "metrics.jsonl" and next(iter(lines))["round"] == 2:
        with (rundir.folder / name).open("a") as out:
            out.write('{"round": 2, "clients": ["hosp')
            out.flush()
            die()


def torn_file(number) -> None:
    """The n-th file that is written loses its tail, and the process its life."""
    real, left = os.fsync, [number]

    def fsync(file) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.ftruncate(file, max(0, os.fstat(file).st_size - 30))
            die()
        real(file)

    os.fsync = fsync


def second():
    """At the second call."""
    calls = []
    return lambda *_: calls.append(0) or len(calls) == 2


ANYWHERE = {  # for every method, whether it has memory or not
    "before round 1 is done": lambda: At(("outcome", 1, 1)),
    "between the lines and the checkpoint": lambda: dying(CheckpointWriter, "round_ended", second()),
    "after round 2": lambda: At(("round", 2)),
    "in the middle of a line": lambda: dying(RunDir, "append", torn_line),
    "between two deployed networks": lambda: dying(RunDir, "keep", lambda d, name, t: name.startswith("weights/best")),
}
POINTS = ANYWHERE | {
    "at the second client of round 2": lambda: At(("outcome", 2, 2)),
    "between memory and checkpoint": lambda: dying(TreeStore, "commit", second(), after=True),
    "between the first best and last checkpoint": lambda: dying(
        RunDir, "keep", lambda d, name, tree: name == BEST and tree["round"] == 1, after=True
    ),
    "between the best and the last checkpoint": lambda: dying(
        RunDir, "keep", lambda d, name, tree: name == BEST and tree["round"] == 2, after=True
    ),
    "before old memory is discarded": lambda: dying(TreeStore, "discard_unnamed", second()),
    "after the last round": lambda: At(("end",)),
    "before the summary": lambda: dying(RunDir, "write", lambda d, name, t: name == "summary.json"),
}


def keep_tidy(config) -> None:
    """The pool's copy of the images outlives a kill: let it be where pytest clears up."""
    tempfile.tempdir = str(Path(config["run"]["out"]).parent)


def run_and_die(config, point) -> None:
    keep_tidy(config)
    observer = torn_file(point) if isinstance(point, int) else POINTS[point]()
    api.run(config, observers=[observer] if observer else [])


def resume_and_die(folder, point) -> None:
    observer = POINTS[point]()
    api.resume(folder, observers=[observer] if observer else [])


def stop() -> None:
    raise KeyboardInterrupt


def pool_and_die(configs, pids: Path) -> None:
    """All but the last run are stopped by Ctrl-C, as a kill ends the workers, too."""
    keep_tidy(configs[0])
    worker_pool = WorkerPool(2)
    pids.write_text(" ".join(str(worker.process.pid) for worker in worker_pool.workers))
    for config in configs[:-1]:
        try:
            api.run(config, observers=[At(("round", 2), stop)], worker_pool=worker_pool)
        except Interrupted:
            continue
    api.run(configs[-1], observers=[At(("outcome", 2, 2))], worker_pool=worker_pool)
