"""Post: parcels to sites and their answers, over Flower's grid; whoever is lost on the way is asked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import Error, Message
from flwr.serverapp import Grid

from crossward.engines.flower.parcel import Parcel
from crossward.engines.flower.records import parcel, records
from crossward.errors import StorageError

POLL = 0.1  # seconds between two looks at the answers
QUIET = 15.0  # seconds without an answer after which a site is asked whether it still has the question
LOST = ("NODE_UNAVAILABLE", "MESSAGE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE", "CLIENT_APP_CRASHED")


@dataclass
class Letter:
    node: int
    parcel: Parcel
    kind: str
    sent: float
    attempts: int = 1


@dataclass
class Post:
    """A SuperNode takes one message at a time, in order. So a site that answers a later, small question before an
    earlier one has lost the earlier one, as after a restart: it is sent again, and costs nothing but time, because
    every step is a pure function of what it is sent and of what the site kept."""

    grid: Grid
    deadline: float = 3600.0  # seconds for an answer
    patience: float = 120.0  # seconds for a site that is not connected to come back
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    quiet: float = QUIET
    _pending: dict[str, Letter] = field(default_factory=dict, init=False, repr=False)  # by message id
    _probes: dict[str, int] = field(default_factory=dict, init=False, repr=False)  # message id -> node
    _away: dict[int, tuple[float, Letter]] = field(default_factory=dict, init=False, repr=False)  # since when

    def connected(self) -> set[int]:
        return {int(node) for node in self.grid.get_node_ids()}

    def exchange(self, parcels: Mapping[int, Parcel], kind: str) -> Iterator[tuple[int, Parcel | str]]:
        """Every node's answer as it comes, or the reason why there is none."""
        self._pending, self._probes, self._away = {}, {}, {}
        end, probed = self.clock() + self.deadline, self.clock()
        for node, one in parcels.items():
            self._send(Letter(node, one, kind, self.clock()))
        while self._pending or self._away:
            yield from self._arrived()
            if self._pending or self._away:
                yield from self._late(end)
                if self.clock() - probed > self.quiet:
                    self._look_after()
                    probed = self.clock()
                self.sleep(POLL)

    def _send(self, letter: Letter) -> None:
        ttl = max(1.0, self.deadline)
        message = Message(records(letter.parcel), dst_node_id=letter.node, message_type=letter.kind, ttl=ttl,
                          group_id=str(letter.parcel.about.get("round", "")))  # fmt: skip
        for id in self.grid.push_messages([message]):
            if not id:  # the SuperLink does not know the node (any more)
                self._away.setdefault(letter.node, (self.clock(), letter))
            else:
                self._pending[id] = letter

    def _arrived(self) -> Iterator[tuple[int, Parcel | str]]:
        for message in self.grid.pull_messages([*self._pending, *self._probes]):
            to = message.metadata.reply_to_message_id
            if to in self._probes:
                self._alive(self._probes.pop(to), message)
            elif to in self._pending:
                letter = self._pending.pop(to)
                told = _told(message)
                if isinstance(told, Error) and _name(told) in LOST:
                    self._away.setdefault(letter.node, (self.clock(), letter))
                    continue
                yield letter.node, f"{_name(told)}: {told.reason}" if isinstance(told, Error) else told

    def _alive(self, node: int, message: Message) -> None:
        """A probe has come back: what the node was asked before it and has not answered is lost."""
        if message.has_error():
            return
        for id, letter in [(i, x) for i, x in self._pending.items() if x.node == node]:
            del self._pending[id]
            letter.attempts += 1
            self._send(letter)

    def _late(self, end: float) -> Iterator[tuple[int, str]]:
        now = self.clock()
        for node, (since, _) in list(self._away.items()):
            if now - since > self.patience or now > end:
                del self._away[node]
                yield node, f"not connected for {now - since:.0f} s"
        if now > end:
            for letter in self._pending.values():
                yield letter.node, f"no answer within {self.deadline:.0f} s"
            self._pending.clear()

    def _look_after(self) -> None:
        here = self.connected()
        for node, (_, letter) in list(self._away.items()):
            if node in here:
                del self._away[node]
                self._send(letter)
        asked = {*self._probes.values()}
        for letter in list(self._pending.values()):
            if letter.node not in asked:
                asked.add(letter.node)
                probe = Message(records(Parcel({"do": "hello"})), dst_node_id=letter.node,
                                message_type="query.hello", ttl=self.deadline)  # fmt: skip
                self._probes.update({id: letter.node for id in self.grid.push_messages([probe]) if id})


def _told(message: Message) -> Parcel | Error:
    if message.has_error():
        return message.error
    try:
        return parcel(message.content)
    except StorageError as error:
        return Parcel({"failure": error.what})


def _name(error: Error | Parcel) -> str:
    from flwr.common.constant import ErrorCode

    if isinstance(error, Parcel):
        return ""
    names = {value: name for name, value in vars(ErrorCode).items() if isinstance(value, int)}
    return names.get(error.code, f"error {error.code}")
