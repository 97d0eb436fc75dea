"""Rehearsal: a short run from start to end, what it leaves behind, and whether two runs left the same."""

from __future__ import annotations

import atexit
from functools import cache

import torch

from crossward.core.engine import Engine
from crossward.core.run import Observer, Plan, Progress, RoundRecord, run
from crossward.core.store import TreeStore
from crossward.core.tree import Tree, encode, finite, flatten, items
from crossward.engines.pool import Worker, WorkerPool
from crossward.runs.sites import RunSites

ROUNDS = 2
MOST_WORKERS = 3


def finished(run_sites: RunSites, engine: Engine, *observers: Observer, progress: Progress | None = None) -> Tree:
    """A run to its end: the server's state, the clients' memory, the best round and its value."""
    try:
        return kept(run(run_sites, engine, Plan(ROUNDS, seed=run_sites.seed), observers, progress), engine.memory)
    finally:
        engine.close()


def kept(progress: Progress, memory: TreeStore) -> Tree:
    best = {"round": progress.best_round} | ({} if progress.best_value is None else {"value": progress.best_value})
    return {"state": progress.state, "memory": {str(site): tree for site, tree in memory.items()}, "best": best}


class Records(Observer):
    """Keeps the record of every round, and with a `memory` to look at, a checkpoint."""

    def __init__(self, memory: TreeStore | None = None) -> None:
        self.seen: list[RoundRecord] = []
        self.checkpoints: list[bytes] = []
        self.memory = memory

    def on_round(self, record: RoundRecord) -> None:
        self.seen.append(record)
        if self.memory is not None:
            self.checkpoints.append(encode(kept(record.progress, self.memory)))


class Squad(WorkerPool):
    """The first workers of a crew, which stays the one that replaces them."""

    def __init__(self, whole: WorkerPool, workers: int) -> None:
        self.whole, self.count = whole, workers

    @property
    def workers(self) -> list[Worker]:  # type: ignore[override]
        return self.whole.workers[: self.count]

    def replace(self, worker: Worker) -> Worker:
        return self.whole.replace(worker)


@cache
def everybody() -> WorkerPool:
    """One crew for all runs of this process: a worker takes seconds to start."""
    made = WorkerPool(MOST_WORKERS)
    atexit.register(made.stop)
    return made


def crew(workers: int) -> WorkerPool:
    return Squad(everybody(), workers)


def assert_same(found: Tree, expected: Tree, how: str = "") -> None:
    """To the bit."""
    (tensors, outline), (others, other) = flatten(found), flatten(expected)
    assert outline == other, f"{how}: {outline}\ninstead of\n{other}"
    unlike = [path for path in tensors if tensors[path].numpy().tobytes() != others[path].numpy().tobytes()]
    assert not unlike, f"{how}: {len(unlike)} of {len(tensors)} tensors differ: {unlike[:8]}"


def assert_finite(tree: Tree) -> None:
    assert finite(tree), f"not finite: {[path for path, t in items(tree) if not bool(torch.isfinite(t).all())]}"
