"""The in-process engine: one client after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from crossward.core.engine import Job, Outcome, Payload, Sites, run_job
from crossward.core.store import TreeStore
from crossward.core.tree import Tree, decode, encode
from crossward.freed_memory import keep_freed_memory, return_freed_memory


class LocalEngine:
    """`strict` passes every payload, memory and reply through the codec and builds each network anew, as a real
    federation would: whatever a method hides on a live object, or edits in its payload, then changes the result."""

    def __init__(
        self, sites: Sites, *, threads: int = 1, strict: bool = False, memory: TreeStore | None = None
    ) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()  # each step allocates again what the one before has freed
        self.sites = sites
        self.strict = strict
        self.memory = TreeStore() if memory is None else memory

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        for job in jobs:
            down = payload(job.site) if callable(payload) else payload
            before = self.memory.get(job.site, {})
            outcome, memory = run_job(self.sites, job, self._copied(down), self._copied(before), fresh=self.strict)
            if job.keep and not outcome.failure and (memory or job.site in self.memory):
                self.memory[job.site] = self._copied(memory)
            yield Outcome(job, self._copied(outcome.reply), outcome.failure, outcome.losses)

    def close(self) -> None:
        self.memory.close()
        return_freed_memory()

    def _copied(self, tree: Tree) -> Tree:
        return decode(encode(tree)) if self.strict else tree
