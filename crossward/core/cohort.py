"""Cohort: the clients of a round, and the account of what they sent, lost and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from crossward.core.disclosure import WEIGHTS
from crossward.core.engine import Engine, Job, Outcome, Payload, Sites
from crossward.core.robust import Robust, robust_replies
from crossward.core.seeds import derive
from crossward.core.store import TreeStore
from crossward.core.tree import Tree, sizes
from crossward.errors import RunError


@dataclass(frozen=True)
class Traffic:
    """Bytes of one payload item in one direction, summed over the clients of a round's step."""

    round: int
    step: str
    direction: str  # "down" to the clients, "up" from them
    item: str
    bytes: int
    clients: int


class MeasuredPayload:
    """A payload that notes how large it is for each client, so that it need not be made twice."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._sizes: dict[int, dict[str, int]] = {}

    def __call__(self, client: int) -> Tree:
        tree = self._payload(client) if callable(self._payload) else self._payload
        self._sizes[client] = sizes(tree)
        return tree

    def total(self, clients: Sequence[int]) -> Counter[str]:
        """Bytes of each item, summed over the clients."""
        if not callable(self._payload):
            return Counter({item: count * len(clients) for item, count in sizes(self._payload).items()})
        total: Counter[str] = Counter()
        for client in clients:
            if client not in self._sizes:  # it was never reached
                self(client)
            total.update(self._sizes[client])
        return total


class Cohort:
    """The clients of a round, as methods see them (`method.Clients`)."""

    def __init__(
        self,
        sites: Sites,
        engine: Engine,
        round: int,
        ids: Sequence[int],
        *,
        keep: bool = True,
        min_clients: int = 0,
        robust: Robust | None = None,
        on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        self._sites = sites
        self._engine = engine
        self._round = round
        self._ids = sorted(ids)
        self._keep = keep
        self._min_clients = min_clients
        self._robust = robust
        self._on_outcome = on_outcome
        self._turns: Counter[str] = Counter()  # how often each step was asked for
        self._stores: list[TreeStore] = []
        self.failures: dict[str, str] = {}
        self.losses: dict[str, float] = {}
        self.traffic: list[Traffic] = []

    @property
    def ids(self) -> list[int]:
        return list(self._ids)

    def ask(self, step: str, payload: Payload) -> Mapping[int, Tree]:
        turn = self._turns[step]
        self._turns[step] += 1
        jobs = [self._job(i, step, turn) for i in self._ids]
        measured = MeasuredPayload(payload)
        replies = TreeStore()
        self._stores.append(replies)
        sent_up: Counter[str] = Counter()
        for outcome in self._engine.perform(jobs, measured if callable(payload) else payload):
            received = self._received(outcome)
            name = self._sites.name(outcome.job.site)
            if received.failure:
                self.failures[name] = received.failure
            else:
                replies[received.job.site] = received.reply
                sent_up.update(sizes(received.reply))
                if received.losses:
                    self.losses[name] = sum(received.losses) / len(received.losses)
            self._on_outcome(received)
        self._count_traffic(step, measured, sent_up, len(replies))
        if self._robust and self._robust.active:
            averaged = [item for item, about in self._sites.method.discloses.items() if about == WEIGHTS]
            replies.update(robust_replies(self._robust, payload, replies, averaged))
        self._ids = list(replies)
        self._require_enough_clients()
        return replies

    def _received(self, outcome: Outcome) -> Outcome:
        """The outcome; a failure of that client if its reply cannot be accounted for."""
        try:
            sizes(outcome.reply)
        except Exception as error:  # whatever it holds, it is no reason to end the round for the others
            return Outcome(outcome.job, failure=f"rejected: its reply cannot be measured ({type(error).__name__})")
        return outcome

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def _job(self, site: int, step: str, turn: int) -> Job:
        purpose = "predict" if step in ("deploy", "judge") else step  # deploy what was evaluated, to the bit
        seed = derive(self._sites.seed, purpose, self._round, turn, site)
        return Job(site, step, self._round, seed, self._keep)

    def _count_traffic(self, step: str, measured: MeasuredPayload, sent_up: Counter[str], replied: int) -> None:
        sent_down = measured.total(self._ids)
        for direction, items, clients in (("down", sent_down, len(self._ids)), ("up", sent_up, replied)):
            for item, count in items.items():
                self.traffic.append(Traffic(self._round, step, direction, item, count, clients))

    def _require_enough_clients(self) -> None:
        if len(self._ids) < self._min_clients:
            raise RunError(
                f"round {self._round + 1}: {len(self._ids)} clients are left, {self._min_clients} are needed",
                details=[f"{name}: {why}" for name, why in self.failures.items()],
                hint="A lower train.lr or train.clip often helps against divergence; or lower run.min_clients.",
            )
