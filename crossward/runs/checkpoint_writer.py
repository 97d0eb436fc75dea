"""CheckpointWriter: puts checkpoints on disk in a thread of its own, while the next round trains.

At most one is being written: a round that ends meanwhile waits for it if a checkpoint is due, and is not written
otherwise. A checkpoint is a state of the run, not a copy of it: server state and memory are trees that nobody changes,
so that holding one costs nothing until the rounds after it have replaced them. What is not on disk when a process is
killed is computed again, to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from crossward.core.run import Progress, RoundRecord
from crossward.core.store import Snapshot, TreeStore
from crossward.core.tree import Tree
from crossward.errors import StorageError
from crossward.runs.run_directory import RunDir

CHECKPOINT = "checkpoint/last.safetensors"
BEST = "checkpoint/best.safetensors"
Every = int | Literal["auto"]
SHARE = 0.1  # of a run's time that writing may take, with every = "auto"
SHORT = 0.5  # seconds; a checkpoint that takes less is written after every round


@dataclass(frozen=True)
class RunState:
    """Where a run stands after a round."""

    round: int
    progress: Progress
    memory: Snapshot


@dataclass
class CheckpointWriter:
    rundir: RunDir
    memory: TreeStore
    every: Every = "auto"  # rounds; "auto": as often as writing takes a tenth of the time at most
    in_background: bool = True  # False: a round ends when its checkpoint is on disk
    written: Callable[[Progress], None] = lambda progress: None  # called, in the thread, when one is on disk
    clock: Callable[[], float] = time.monotonic
    newest: int = 0  # the round of the last checkpoint that is on disk or being written
    _best: RunState | None = None  # that is not on disk yet
    _last: RunState | None = None
    _best_files: frozenset[str] = frozenset()  # of memory, which the best checkpoint on disk names
    _writing: Future[None] | None = None
    _held: tuple[RunState, ...] = ()  # what is being written
    _begun: float = -float("inf")  # when the last checkpoint was
    _took: float = 0.0  # seconds
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
    )

    def resume(self, progress: Progress) -> None:
        """The run goes on from the checkpoint that is on disk."""
        self.newest = progress.done
        if progress.best_round:
            self._best_files = frozenset(self.rundir.tree(BEST)["memory"].values())

    def round_ended(self, record: RoundRecord) -> None:
        """Take note of a round, and write a checkpoint if one is due."""
        self._last = RunState(record.round, record.progress, self.memory.snapshot())
        if record.is_best:
            self._best = self._last
        if self._is_due(record.round):
            self._wait()
            self._start()
        if not self.in_background:
            self._wait()

    def finish(self) -> None:
        """Wait until the state after the last round is on disk."""
        self._wait()
        if self._last is not None:
            self._start()
            self._wait()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Put what has been computed on disk, also when the run was interrupted, and end the thread. On a disk that is
        full the first error is the one to report: the thread's, or else the one that ended the run."""
        try:
            self._wait()
            with suppress(StorageError) if kind else nullcontext():
                self.finish()
        finally:
            self._thread.shutdown()

    def _is_due(self, round: int) -> bool:
        if self.every != "auto":
            return round % self.every == 0
        if self._writing is not None and not self._writing.done():
            return False
        return self._took < SHORT or self.clock() - self._begun >= self._took / SHARE

    def _wait(self) -> None:
        """Until nothing is being written; an error of the thread is raised here."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _start(self) -> None:
        last, best = self._last, self._best
        assert last is not None
        self._held = (last,) if best is None else (last, best)
        self._last = self._best = None
        self.newest = last.round
        self._writing = self._thread.submit(self._write, last, best)

    def _write(self, last: RunState, best: RunState | None) -> None:
        """The best state first: a crash between the two leaves one that the rounds to come will find again."""
        self._begun = self.clock()
        if best is not None:
            files = self.memory.commit(best.memory)
            self.rundir.keep(BEST, {"round": best.round, "state": best.progress.state, "memory": files})
        self.rundir.keep(CHECKPOINT, _checkpoint(last, self.memory.commit(last.memory)))
        if best is not None:
            self._best_files = frozenset(files.values())
        self.memory.discard_unnamed(self._best_files, self._snapshots())
        self.written(last.progress)
        self._held = ()
        self._took = self.clock() - self._begun

    def _snapshots(self) -> Iterator[Snapshot]:
        """What is to be written yet, as it is when somebody looks."""
        yield from (state.memory for state in (self._last, self._best, *self._held) if state is not None)


def _checkpoint(state: RunState, files: dict[str, str]) -> Tree:
    progress = state.progress
    best: dict[str, Any] = {} if progress.best_value is None else {"best_value": progress.best_value}
    return {
        "done": progress.done,
        "best_round": progress.best_round,
        **best,
        "state": progress.state,
        "memory": files,
    }


def read_checkpoint(rundir: RunDir, memory: TreeStore) -> Progress | None:
    """Where an interrupted run stands; the clients' memory is taken up with it. None: before its first checkpoint."""
    if not (rundir.folder / CHECKPOINT).exists():
        return None
    stored = rundir.tree(CHECKPOINT)
    memory.restore(stored["memory"])
    return Progress(stored["state"], stored["done"], stored["best_round"], stored.get("best_value"))
