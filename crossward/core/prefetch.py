"""Prefetch: a helper thread prepares the next item while the caller uses the one it has.

There is one such thread in a process, which starts when it is first needed and is idle between items: who abandons an
iteration has nothing to clean up. A forked process has none of its own until it needs one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import torch

from crossward.core.cores import training_processes, usable_cores

T = TypeVar("T")
_END = object()


class _Helper:
    """The thread, of which torch uses no more than one to compute."""

    def __init__(self) -> None:
        self.thread: ThreadPoolExecutor | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self.thread = None

    def start(self) -> ThreadPoolExecutor:
        if self.thread is None:
            self.thread = ThreadPoolExecutor(1, thread_name_prefix="crossward-prefetch")
            threads = torch.get_num_threads()
            self.thread.submit(_compute_alone).result()
            torch.set_num_threads(threads)  # each thread has a number of its own, but later ones start with the last
        return self.thread


def _compute_alone() -> None:
    torch.get_num_threads()  # a thread takes the number of the process when it first needs it
    torch.set_num_threads(1)


_helper = _Helper()


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items; from the second on, each is prepared while the caller uses the one before. What preparing it
    raises is raised when it is asked for."""
    item = next(items, _END)
    while item is not _END:
        helper = _helper.start()
        upcoming = helper.submit(next, items, _END)
        try:
            yield cast(T, item)
            if helper is not _helper.thread:
                raise RuntimeError("batches are prepared by a thread of the process that this one was forked from")
            item = upcoming.result()
        finally:
            upcoming.cancel()


def has_spare_core() -> bool:
    """Whether a core is left for the helper when all that train on this machine do."""
    return usable_cores() > torch.get_num_threads() * training_processes()
