"""Short runs: a run of two rounds from start to end, its result as one tree, and comparisons of such trees."""

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
MOST_WORKERS = 2


def run_to_end(run_sites: RunSites, engine: Engine, *observers: Observer, progress: Progress | None = None) -> Tree:
    """Run ROUNDS rounds, or the rest of them after `progress`, and close the engine; the snapshot of the end."""
    try:
        end = run(run_sites, engine, Plan(ROUNDS, seed=run_sites.seed), observers, progress)
        return snapshot(end, engine.memory)
    finally:
        engine.close()


def snapshot(progress: Progress, memory: TreeStore) -> Tree:
    """The server's state, the clients' memory, the best round and its value: all that a run goes on with."""
    best: Tree = {"round": progress.best_round}
    if progress.best_value is not None:
        best["value"] = progress.best_value
    return {"state": progress.state, "memory": {str(site): tree for site, tree in memory.items()}, "best": best}


class Records(Observer):
    """Keeps the record of every round; with the engine's `memory`, also a checkpoint after every round."""

    def __init__(self, memory: TreeStore | None = None) -> None:
        self.rounds: list[RoundRecord] = []
        self.checkpoints: list[bytes] = []
        self.memory = memory

    def on_round(self, record: RoundRecord) -> None:
        self.rounds.append(record)
        if self.memory is not None:
            self.checkpoints.append(encode(snapshot(record.progress, self.memory)))


class PartOfPool(WorkerPool):
    """The first workers of a larger pool, which replaces those that die."""

    def __init__(self, whole: WorkerPool, workers: int) -> None:
        self.whole = whole
        self.count = workers

    @property
    def workers(self) -> list[Worker]:  # type: ignore[override]
        return self.whole.workers[: self.count]

    def replace(self, worker: Worker) -> Worker:
        return self.whole.replace(worker)


@cache
def _whole_pool() -> WorkerPool:
    """One pool for all runs of this process: a worker takes seconds to start."""
    pool = WorkerPool(MOST_WORKERS)
    atexit.register(pool.stop)
    return pool


def shared_pool(workers: int) -> WorkerPool:
    """Workers that all tests of this process share; at most MOST_WORKERS."""
    return PartOfPool(_whole_pool(), workers)


def assert_same(tree: Tree, expected: Tree, how: str = "") -> None:
    """Fail unless two trees are the same to the bit; `how` says in the message which run it was."""
    tensors, outline = flatten(tree)
    expected_tensors, expected_outline = flatten(expected)
    assert outline == expected_outline, f"{how}: {outline}\ninstead of\n{expected_outline}"
    differing = [
        path for path, tensor in tensors.items() if tensor.numpy().tobytes() != expected_tensors[path].numpy().tobytes()
    ]
    assert not differing, f"{how}: {len(differing)} of {len(tensors)} tensors differ: {differing[:8]}"


def assert_finite(tree: Tree) -> None:
    if not finite(tree):
        bad = [path for path, tensor in items(tree) if not bool(torch.isfinite(tensor).all())]
        raise AssertionError(f"not finite: {bad}")
