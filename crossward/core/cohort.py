"""Cohort: the clients of a round, and the account of what they sent, lost and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from crossward.core.disclosure import covered
from crossward.core.engine import Engine, Job, Outcome, Payload, Sites
from crossward.core.memory_budgets import budget
from crossward.core.reply_views import EditedReplies
from crossward.core.robust import Robust, robust_replies, with_bounded_counts
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


@dataclass(frozen=True)
class Ask:
    """A step that the clients of a round were asked to do, and what they replied."""

    jobs: Mapping[int, Job]
    payload: Payload
    replies: TreeStore
    memories: Mapping[int, Tree]  # of the clients, before it
    rejected: set[int] = field(default_factory=set)  # clients whose replies do not count after all


class Cohort:
    """The clients of a round, as methods see them (`method.Clients`).

    What was received is kept until the round is over. `rewind` lets the method do the round once more from it, without
    the replies that `reject` has named meanwhile; steps that were not asked before are asked then.
    """

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
        distrust: bool = False,
        on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        """`distrust`: replies may be rejected later, so that what clients remembered before is kept in mind."""
        self._sites = sites
        self._engine = engine
        self._round = round
        self._ids = sorted(ids)
        self._keep = keep
        self._keeps_memories = keep and distrust
        self._min_clients = min_clients
        self._robust = robust
        self._on_outcome = on_outcome
        self._all_ids = self._ids
        self._turns: Counter[str] = Counter()  # how often each step was asked for
        self._position = 0  # in `asks`, of the next step
        self.asks: list[Ask] = []
        self.failures: dict[str, str] = {}
        self.losses: dict[str, float] = {}
        self.traffic: list[Traffic] = []

    @property
    def ids(self) -> list[int]:
        return list(self._ids)

    def ask(self, step: str, payload: Payload) -> Mapping[int, Tree]:
        turn = self._turns[step]
        self._turns[step] += 1
        if self._position == len(self.asks):
            self.asks.append(self._ask_clients(step, turn, payload))
        self._position += 1
        replies = self.replies_to(self._position - 1)
        self._ids = list(replies)
        self._require_enough_clients()
        return replies

    def replies_to(self, number: int, without: Collection[int] = ()) -> Mapping[int, Tree]:
        """The replies to a step as the method is to see them; those of some clients can be left out."""
        ask = self.asks[number]
        replies: Mapping[int, Tree] = ask.replies
        if ask.rejected or without:
            replies = EditedReplies(ask.replies, without=(*ask.rejected, *without)).settled()
        rule = self._robust
        if rule and rule.ceiling < 1:
            replies = with_bounded_counts(rule.ceiling, replies, self._sites.method.discloses)
        if rule and rule.active:
            replies = robust_replies(rule, ask.payload, replies, covered(self._sites.method.discloses))
        return replies

    def reject(self, site: int, number: int, why: str) -> None:
        """A reply to a step turns out to be of no use: the client is out of the round from that step on, and its memory
        is what it was before."""
        ask = self.asks[number]
        for later in self.asks[number:]:
            later.rejected.add(site)
        if site in ask.memories:
            self._engine.memory[site] = ask.memories[site]
        elif site in self._engine.memory:
            del self._engine.memory[site]
        self.failures[self._sites.name(site)] = why
        self.losses.pop(self._sites.name(site), None)
        self._on_outcome(Outcome(ask.jobs[site], failure=why))

    def leave_out(self, client: int, why: str) -> None:
        """It is out from the last step on; what it remembers of the steps before stays."""
        ask = self.asks[self._position - 1]
        ask.rejected.add(client)
        self._ids = [other for other in self._ids if other != client]
        self.failures[self._sites.name(client)] = why
        self._on_outcome(Outcome(ask.jobs[client], failure=why))

    def failure_of(self, client: int) -> str:
        return self.failures.get(self._sites.name(client), "")

    def rewind(self) -> None:
        """Begin the round once more."""
        self._position = 0
        self._turns.clear()
        self._ids = self._all_ids

    def _ask_clients(self, step: str, turn: int, payload: Payload) -> Ask:
        jobs = {i: self._job(i, step, turn) for i in self._ids}
        memories = self._memories(jobs) if self._keeps_memories else {}
        measured = MeasuredPayload(payload)
        replies = TreeStore(budget=budget("replies"))
        sent_up: Counter[str] = Counter()
        for outcome in self._engine.perform(list(jobs.values()), measured if callable(payload) else payload):
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
        return Ask(jobs, payload, replies, memories)

    def _memories(self, sites: Collection[int]) -> dict[int, Tree]:
        memory = self._engine.memory
        return {site: memory[site] for site in sites if site in memory}

    def _received(self, outcome: Outcome) -> Outcome:
        """The outcome; a failure of that client if its reply cannot be accounted for."""
        try:
            sizes(outcome.reply)
        except Exception as error:  # whatever it holds, it is no reason to end the round for the others
            return Outcome(outcome.job, failure=f"rejected: its reply cannot be measured ({type(error).__name__})")
        return outcome

    def close(self) -> None:
        for ask in self.asks:
            ask.replies.close()

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
