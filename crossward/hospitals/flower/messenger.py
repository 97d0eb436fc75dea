"""Post: parcels to sites and their answers, over Flower's grid; whoever is lost on the way is asked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from crossward.errors import StorageError
from crossward.hospitals.flower.records import parcel, records
from crossward.hospitals.messages import Parcel

POLL = 0.1  # seconds between two looks at the answers, at least
RARELY = 0.05  # and as a part of the time waited so far: every look costs the SuperLink some work
LOOK = 1.0  # seconds between two looks at who has come back
QUIET = 15.0  # seconds without an answer after which a site is asked whether it still has the question
ATTEMPTS = 5  # a question that is lost so often is not sent again
SLACK = 60.0  # seconds that a message lives beyond the deadline: the SuperLink has a clock of its own
ERRORS = {value: name for name, value in vars(ErrorCode).items() if isinstance(value, int)}
LOST = ("NODE_UNAVAILABLE", "MESSAGE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE", "CLIENT_APP_CRASHED")


@dataclass
class Letter:
    node: int
    parcel: Parcel
    kind: str
    attempts: int = 0
    lost: str = ""  # how the last attempt was
    quiet: float = 0.0  # seconds until the next probe, twice as long each time
    probe: float = 0.0  # when it is due


@dataclass
class Post:
    """A SuperNode takes one message at a time, in order. So a site that answers a later, small question (a probe)
    before an earlier one has lost the earlier one, as after a restart: it is sent again, and costs nothing but time,
    because every step is a pure function of what it is sent and of what the site kept."""

    grid: Grid
    deadline: float = 3600.0  # seconds for an answer
    patience: float = 120.0  # seconds for a site that is not connected to come back
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    quiet: float = QUIET
    rarely: float = RARELY
    _end: float = field(default=0.0, init=False, repr=False)
    _pending: dict[str, Letter] = field(default_factory=dict, init=False, repr=False)  # by message id
    _probes: dict[str, int] = field(default_factory=dict, init=False, repr=False)  # message id -> node
    _away: dict[int, tuple[float, Letter]] = field(default_factory=dict, init=False, repr=False)  # since when

    def connected(self) -> set[int]:
        return {int(node) for node in self.grid.get_node_ids()}

    def exchange(self, parcels: Mapping[int, Parcel], kind: str) -> Iterator[tuple[int, Parcel | str]]:
        """Every node's answer as it comes, or the reason why there is none."""
        self._pending, self._probes, self._away = {}, {}, {}
        began = looked = self.clock()
        self._end = began + self.deadline
        for node, one in parcels.items():
            self._send(Letter(node, one, kind))
        while self._pending or self._away:
            yield from self._arrived()
            yield from self._given_up()
            if self._away and self.clock() - looked >= LOOK:
                self._send_again()
                looked = self.clock()
            self._probe()
            if self._pending or self._away:
                self.sleep(min(max(POLL, self.rarely * (self.clock() - began)), LOOK))

    def _send(self, letter: Letter) -> None:
        letter.attempts += 1
        letter.quiet, letter.probe = self.quiet, self.clock() + self.quiet
        self._probes = {id: node for id, node in self._probes.items() if node != letter.node}  # they went before it
        if id := self._pushed(letter.node, letter.parcel, letter.kind):
            self._pending[id] = letter
        else:
            self._lose(letter, "the SuperLink does not take it")

    def _pushed(self, node: int, parcel: Parcel, kind: str) -> str:
        """The message's id; empty if the SuperLink does not know the node (any more), or does not take the message."""
        ttl = max(0.0, self._end - self.clock()) + SLACK
        group = str(parcel.about.get("round", ""))
        message = Message(records(parcel), dst_node_id=node, message_type=kind, ttl=ttl, group_id=group)
        try:
            return next(iter(self.grid.push_messages([message])), "") or ""
        except ObjectPushError:
            return ""

    def _lose(self, letter: Letter, why: str) -> None:
        letter.lost = why
        self._away[letter.node] = (self.clock(), letter)

    def _arrived(self) -> Iterator[tuple[int, Parcel | str]]:
        pulled = self.grid.pull_messages([*self._pending, *self._probes])
        replies = {message.metadata.reply_to_message_id: message for message in pulled}
        for id in [id for id in replies if id in self._pending]:  # before probes, which tell what is still missing
            letter, told = self._pending.pop(id), _told(replies[id])
            if told in LOST:
                self._lose(letter, str(told))
            else:
                yield letter.node, told
        for id in [id for id in replies if id in self._probes]:
            node = self._probes.pop(id)
            if _told(replies[id]) not in LOST:
                self._missing(node)

    def _missing(self, node: int) -> None:
        """A probe has come back: what the node was asked before it and has not answered is lost."""
        for id in [id for id, letter in self._pending.items() if letter.node == node]:
            self._lose(self._pending.pop(id), "the site was started anew")

    def _given_up(self) -> Iterator[tuple[int, str]]:
        now = self.clock()
        late = f"no answer within {self.deadline:.0f} s" if now > self._end else ""
        for node, (since, letter) in list(self._away.items()):
            away = f"not connected for {now - since:.0f} s"
            often = f"lost {letter.attempts} times, at last: {letter.lost}" if letter.attempts >= ATTEMPTS else ""
            if why := often or (away if now - since > self.patience else late and f"{late}, {away}"):
                del self._away[node]
                yield node, why
        if late:
            nodes = [letter.node for letter in self._pending.values()]
            self._pending.clear()
            yield from ((node, late) for node in nodes)

    def _send_again(self) -> None:
        here = self.connected()
        for node, (_, letter) in list(self._away.items()):
            if node in here:
                del self._away[node]
                self._send(letter)

    def _probe(self) -> None:
        now = self.clock()
        for letter in [letter for letter in self._pending.values() if now > letter.probe]:
            letter.quiet *= 2
            letter.probe = now + letter.quiet
            if id := self._pushed(letter.node, Parcel({"do": "hello"}), "query.hello"):
                self._probes[id] = letter.node


def _told(message: Message) -> Parcel | str:
    """The answer, or Flower's name of what went wrong, and its reason unless the question is merely lost."""
    if message.has_error():
        name = ERRORS.get(message.error.code, f"error {message.error.code}")
        return name if name in LOST else f"{name}: {message.error.reason}"
    try:
        return parcel(message.content)
    except StorageError as error:
        return Parcel({"failure": error.what})
