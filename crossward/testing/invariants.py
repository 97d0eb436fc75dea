"""Invariants: what must hold after every round of methods whose server keeps the mean of the clients' memories."""

from __future__ import annotations

from collections.abc import Mapping

from crossward.core.engine import Sites
from crossward.core.run import Observer, Plan, Progress, RoundRecord
from crossward.core.store import TreeStore
from crossward.core.weights import mean


class MeanOfMemories(Observer):
    """Measures after every round how far the server's mean is from the mean over all clients of what each remembers;
    a client that was never asked counts as 0. `names`: name in the server's state -> name in a client's memory."""

    def __init__(self, memory: TreeStore, names: Mapping[str, str]) -> None:
        self.memory = memory
        self.names = names
        self.gaps: list[float] = []
        self.sizes: list[float] = []  # of the server's, which must not be 0 for the gaps to mean anything
        self.clients = 0

    def on_start(self, sites: Sites, plan: Plan, progress: Progress) -> None:
        self.clients = len([i for i in sites.ids if sites.work(i, "train")])

    def on_round(self, record: RoundRecord) -> None:
        for at_server, at_client in self.names.items():
            servers_mean = record.progress.state[at_server]
            share = len(self.memory) / self.clients
            clients_mean = mean([tree[at_client] for tree in self.memory.values()]) * share
            self.gaps.append((clients_mean - servers_mean).norm().item())
            self.sizes.append(servers_mean.norm().item())
