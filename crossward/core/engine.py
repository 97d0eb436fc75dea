"""What an engine is to the round loop: it carries out jobs at sites. It knows steps, not methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from crossward.core.disclosure import WEIGHTS
from crossward.core.loop import Diverged
from crossward.core.method import Method, Server, answer
from crossward.core.robust import Robust, agreed
from crossward.core.seeds import derive
from crossward.core.site import Site
from crossward.core.store import TreeStore
from crossward.core.tree import Tree, sizes
from crossward.errors import RunError

SERVER = -1  # the id of the place that holds the federation's own validation and test sets
Payload = Tree | Callable[[int], Tree]


class Sites(Protocol):
    """Opens any site of a federation; given to an engine, and by it to its workers."""

    method: Method
    seed: int

    @property
    def ids(self) -> list[int]: ...

    def name(self, site: int) -> str: ...

    def work(self, site: int, step: str) -> int:
        """How many images the step will see there: larger jobs are handed out first."""
        ...

    def open(self, site: int, round: int, memory: Tree, fresh: bool = False) -> Site:
        """The site with its network; `fresh` builds the network anew instead of reusing one."""
        ...

    def server(self, round: int) -> Server: ...


@dataclass(frozen=True)
class Job:
    site: int
    step: str
    round: int
    seed: int
    keep: bool  # whether the site's memory is kept afterwards


@dataclass(frozen=True)
class Outcome:
    """A reply, or the reason why there is none."""

    job: Job
    reply: Tree = field(default_factory=dict)
    failure: str = ""
    losses: tuple[float, ...] = ()


class Engine(Protocol):
    memory: TreeStore  # of every client, between rounds

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        """Outcomes in any order."""
        ...

    def close(self) -> None: ...


def carry_out(sites: Sites, job: Job, down: Tree, memory: Tree, fresh: bool = False) -> tuple[Outcome, Tree]:
    """One job at one site: the outcome and the memory to keep. A failed step leaves the memory as it was."""
    site = sites.open(job.site, job.round, dict(memory), fresh)
    try:
        reply = answer(sites.method, site, job.step, down, job.seed)
    except Diverged as error:
        return Outcome(job, failure=str(error)), memory
    return Outcome(job, reply, losses=tuple(fit.loss for fit in site.fits)), site.memory


@dataclass(frozen=True)
class Traffic:
    """Bytes of one payload item in one direction, summed over the clients of a round's step."""

    round: int
    step: str
    direction: str  # "down" to the clients, "up" from them
    item: str
    bytes: int
    clients: int


class Weighed:
    """A payload that notes how large it is for each client, so that it need not be made twice."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._sizes: dict[int, dict[str, int]] = {}

    def __call__(self, client: int) -> Tree:
        made = self._payload(client) if callable(self._payload) else self._payload
        self._sizes[client] = sizes(made)
        return made

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
    """The clients of a round (see `method.Clients`), with an account of what they sent, lost and reported."""

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
        told: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        self._sites, self._engine, self._round, self._keep = sites, engine, round, keep
        self._ids, self._min_clients, self._robust, self._told = sorted(ids), min_clients, robust, told
        self._asked: Counter[str] = Counter()
        self._stores: list[TreeStore] = []
        self.failures: dict[str, str] = {}
        self.losses: dict[str, float] = {}
        self.traffic: list[Traffic] = []

    @property
    def ids(self) -> list[int]:
        return list(self._ids)

    def ask(self, step: str, payload: Payload) -> Mapping[int, Tree]:
        turn = self._asked[step]
        self._asked[step] += 1
        jobs = [self._job(i, step, turn) for i in self._ids]
        replies = TreeStore()
        self._stores.append(replies)
        up: Counter[str] = Counter()
        weighed = Weighed(payload)
        for outcome in self._engine.perform(jobs, weighed if callable(payload) else payload):
            name = self._sites.name(outcome.job.site)
            if outcome.failure:
                self.failures[name] = outcome.failure
            else:
                replies[outcome.job.site] = outcome.reply
                up.update(sizes(outcome.reply))
                if outcome.losses:
                    self.losses[name] = sum(outcome.losses) / len(outcome.losses)
            self._told(outcome)
        self._account(step, weighed, up, len(replies))
        if self._robust and self._robust.rule != "none":
            averaged = [item for item, about in self._sites.method.discloses.items() if about == WEIGHTS]
            replies.update(agreed(self._robust, payload, replies, averaged))
        self._ids = list(replies)
        if len(self._ids) < self._min_clients:
            raise RunError(
                f"round {self._round + 1}: {len(self._ids)} clients are left, {self._min_clients} are needed",
                details=[f"{name}: {why}" for name, why in self.failures.items()],
                hint="A lower train.lr or train.clip often helps against divergence; or lower run.min_clients.",
            )
        return replies

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def _job(self, site: int, step: str, turn: int) -> Job:
        purpose = "predict" if step in ("deploy", "judge") else step  # deploy what was evaluated, to the bit
        seed = derive(self._sites.seed, purpose, self._round, turn, site)
        return Job(site, step, self._round, seed, self._keep)

    def _account(self, step: str, weighed: Weighed, up: Counter[str], replied: int) -> None:
        down = weighed.total(self._ids)
        for direction, items, clients in (("down", down, len(self._ids)), ("up", up, replied)):
            for item, count in items.items():
                self.traffic.append(Traffic(self._round, step, direction, item, count, clients))
