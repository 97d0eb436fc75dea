"""Invariants: what must hold after every round of methods that keep the mean of their clients' memories."""

from __future__ import annotations

from collections.abc import Mapping

from crossward.core.engine import Sites
from crossward.core.run import Observer, Plan, Progress, RoundRecord
from crossward.core.store import TreeStore
from crossward.core.weights import mean


class MeanOfAll(Observer):
    """How far the mean over all clients of what each keeps, those never asked counting as 0, is from the server's;
    `names`: of the server's state -> of a client's memory."""

    def __init__(self, memory: TreeStore, names: Mapping[str, str]) -> None:
        self.memory, self.names = memory, names
        self.gaps: list[float] = []
        self.sizes: list[float] = []  # of the server's, which must not be 0 for the gaps to mean anything
        self.clients = 0

    def on_start(self, sites: Sites, plan: Plan, progress: Progress) -> None:
        self.clients = len([i for i in sites.ids if sites.work(i, "train")])

    def on_round(self, record: RoundRecord) -> None:
        for at_server, at_client in self.names.items():
            kept = record.progress.state[at_server]
            total = mean([tree[at_client] for tree in self.memory.values()]) * (len(self.memory) / self.clients)
            self.gaps.append((total - kept).norm().item())
            self.sizes.append(kept.norm().item())
