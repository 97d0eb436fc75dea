"""The cores of this machine, and how many processes share them."""

from __future__ import annotations

import os

WORKERS = "CROSSWARD_WORKERS"  # environment: how many processes on this machine train as this one does
WORKER = "CROSSWARD_WORKER"  # environment: which of them this one is, from 0


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def training_processes() -> int:
    """How many processes train on this machine, this one included, as far as the one that started them said."""
    return int(os.environ.get(WORKERS, "1"))


def worker_number() -> int:
    """Which of the processes that were started together this one is: they take the devices in turn."""
    return int(os.environ.get(WORKER, "0"))


def worker_environment(workers: int, number: int) -> dict[str, str]:
    """For one of so many processes that this one starts to train in its place."""
    return {WORKERS: str(workers * training_processes()), WORKER: str(number)}
