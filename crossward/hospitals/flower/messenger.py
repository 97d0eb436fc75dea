"""Messenger: sends messages to sites over Flower's grid and collects the replies; lost messages are sent again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx
from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from crossward.errors import StorageError
from crossward.foreign import printable
from crossward.hospitals.flower.records import SharedArrays, from_records, to_records
from crossward.hospitals.messages import SiteMessage

MIN_POLL_INTERVAL = 0.1  # seconds between two looks for replies
MAX_POLL_INTERVAL = 1.0
MIN_SLEEP = 0.01  # seconds between two looks that took as long as that
POLL_SHARE = 0.05  # the interval grows with the time waited so far: every look costs the SuperLink some work
RECONNECT_INTERVAL = 1.0  # seconds between two looks at which nodes are connected again
LOOK_INTERVAL = 5.0  # seconds between two looks at which nodes are connected, while sites work
PROBE_AFTER = 15.0  # seconds without a reply after which a site is probed for whether it still has the message
MAX_ATTEMPTS = 5  # a message that is lost this often is not sent again
SENT_TOGETHER = 32  # messages in one request; their contents follow one by one
TTL_SLACK = 60.0  # seconds that a message lives beyond the deadline: the SuperLink has a clock of its own
ERROR_NAMES = {value: name for name, value in vars(ErrorCode).items() if isinstance(value, int)}
LOST_MESSAGE_ERRORS = (
    "NODE_UNAVAILABLE",
    "MESSAGE_UNAVAILABLE",
    "REPLY_MESSAGE_UNAVAILABLE",
    "CLIENT_APP_CRASHED",
)
LOSS_WORDS = {
    "NODE_UNAVAILABLE": "not connected",
    "MESSAGE_UNAVAILABLE": "the message was lost",
    "REPLY_MESSAGE_UNAVAILABLE": "the reply was lost",
    "CLIENT_APP_CRASHED": "a process of the site crashed",
}


SendAgain = Callable[[int, SiteMessage], SiteMessage | None]  # node, reply -> a message that it wants in its place


class NodeWatch(Protocol):
    """Is notified of which nodes are connected, and of messages that are lost and sent again."""

    def nodes_connected(self, nodes: set[int]) -> None: ...

    def node_lost(self, node: int, why: str, seconds: float) -> None:
        """The node has so many seconds to come back."""
        ...

    def node_asked_again(self, node: int, seconds: float) -> None:
        """The node has so many seconds to answer."""
        ...


@dataclass
class PendingMessage:
    """A message to a node that has not been answered yet."""

    node: int
    message: SiteMessage
    message_type: str
    attempts: int = 0
    last_loss: str = ""  # how the last attempt was lost
    probe_interval: float = 0.0  # seconds until the next probe, doubled each time
    probe_time: float = 0.0  # when the next probe is due


@dataclass
class Messenger:
    """Sends one message to each of several nodes and reports each node once: its reply, or why there is none.

    A SuperNode handles one message at a time, in order. A site that answers a later, small message (a probe) before an
    earlier one has therefore lost the earlier one, for example by a restart. The message is then sent again; that costs
    only time, because every step depends only on the message and on what the site remembers.
    """

    grid: Grid
    deadline: float = 3600.0  # seconds for a reply
    patience: float = 120.0  # seconds for a site that is not connected to come back
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    probe_after: float = PROBE_AFTER
    poll_share: float = POLL_SHARE
    watch: NodeWatch | None = None
    _end: float = field(default=0.0, init=False, repr=False)
    _pending: dict[str, PendingMessage] = field(default_factory=dict, init=False, repr=False)  # by message id
    _probes: dict[str, int] = field(default_factory=dict, init=False, repr=False)  # message id -> node
    _lost: dict[int, tuple[float, PendingMessage]] = field(default_factory=dict, init=False, repr=False)  # since when
    _one_by_one: bool = field(default=False, init=False, repr=False)  # a reply could not be unpacked: whose is it?

    def connected_nodes(self) -> set[int]:
        nodes = {int(node) for node in self.grid.get_node_ids()}
        if self.watch is not None:
            self.watch.nodes_connected(nodes)
        return nodes

    def exchange(
        self, messages: Mapping[int, SiteMessage], message_type: str, again: SendAgain = lambda node, reply: None
    ) -> Iterator[tuple[int, SiteMessage | str]]:
        """Every node's reply as it arrives, or the reason why there is none. A reply upon which there is something to
        be sent `again` is not the last one of its node."""
        self._pending = {}
        self._probes = {}
        self._lost = {}
        self._one_by_one = False
        start = self.clock()
        last_look = start
        self._end = start + self.deadline
        first = [PendingMessage(node, message, message_type) for node, message in messages.items()]
        for at in range(0, len(first), SENT_TOGETHER):
            self._send(*first[at : at + SENT_TOGETHER])
        while self._pending or self._lost:
            looked = self.clock()
            yield from self._collect_replies(again)
            yield from self._give_up()
            if self.clock() - last_look >= (RECONNECT_INTERVAL if self._lost else LOOK_INTERVAL):
                self._resend_lost(self.connected_nodes())
                last_look = self.clock()
            self._send_probes()
            if self._pending or self._lost:
                interval = min(max(MIN_POLL_INTERVAL, self.poll_share * (self.clock() - start)), MAX_POLL_INTERVAL)
                self.sleep(max(MIN_SLEEP, interval - (self.clock() - looked)))  # the SuperLink lets a look wait

    def _send(self, *sent: PendingMessage) -> None:
        for pending in sent:
            pending.attempts += 1
            pending.probe_interval = self.probe_after
            pending.probe_time = self.clock() + self.probe_after
            # probes that were sent before this message say nothing about it
            self._probes = {id: node for id, node in self._probes.items() if node != pending.node}
        for pending, id in zip(sent, self._push(sent), strict=True):
            if id:
                self._pending[id] = pending
            else:
                self._mark_lost(pending, "the SuperLink does not take it")

    def _push(self, sent: Sequence[PendingMessage]) -> list[str]:
        """The ids of messages; empty if the SuperLink does not know the node (any more), or refuses the message."""
        ttl = max(0.0, self._end - self.clock()) + TTL_SLACK
        arrays = SharedArrays()
        messages = [
            Message(
                to_records(each.message, arrays),
                dst_node_id=each.node,
                message_type=each.message_type,
                ttl=ttl,
                group_id=str(each.message.header.get("round", "")),
            )
            for each in sent
        ]
        try:
            ids = [id or "" for id in self.grid.push_messages(messages)]
        except ObjectPushError:
            ids = []
        return ids or [""] * len(sent)

    def _mark_lost(self, pending: PendingMessage, reason: str) -> None:
        pending.last_loss = reason
        self._lost[pending.node] = (self.clock(), pending)
        if self.watch is not None:
            seconds = min(self.patience, max(0.0, self._end - self.clock()))
            self.watch.node_lost(pending.node, LOSS_WORDS.get(reason, reason), seconds)

    def _collect_replies(self, again: SendAgain) -> Iterator[tuple[int, SiteMessage | str]]:
        replies = self._pull_replies()
        answered = [id for id in replies if id in self._pending]  # before probes, which show what is still missing
        for id in answered:
            pending = self._pending.pop(id)
            reply = _decode_reply(replies[id])
            if reply in LOST_MESSAGE_ERRORS:
                self._mark_lost(pending, str(reply))
            elif not isinstance(reply, str) and (message := again(pending.node, reply)) is not None:
                self._send(PendingMessage(pending.node, message, pending.message_type))
            else:
                yield pending.node, reply
        for id in [id for id in replies if id in self._probes]:
            node = self._probes.pop(id)
            if _decode_reply(replies[id]) not in LOST_MESSAGE_ERRORS:
                self._mark_unanswered_lost(node)

    def _pull_replies(self) -> dict[str, Message | str]:
        """The replies that have come, by the id of the message that they answer; or the reason why one cannot be read.

        Flower unpacks what a site has sent in this process, and fails for all if it cannot unpack one. Replies are then
        pulled one by one: what was lost with the bad one is sent again, and its sender is known.
        """
        ids = [*self._pending, *self._probes]
        if not self._one_by_one:
            try:
                return _by_request(self.grid.pull_messages(ids))
            except (httpx.HTTPError, OSError):  # the SuperLink cannot be reached: no site's fault
                raise
            except Exception:
                self._one_by_one = True
                return {}
        replies: dict[str, Message | str] = {}
        for id in ids:
            try:
                replies |= {
                    key: reply for key, reply in _by_request(self.grid.pull_messages([id])).items() if key == id
                }
            except (httpx.HTTPError, OSError):
                raise
            except Exception as error:
                replies[id] = f"rejected: its reply cannot be unpacked ({type(error).__name__})"
        return replies

    def _mark_unanswered_lost(self, node: int) -> None:
        """A node has answered a probe: messages that it got before and has not answered are lost."""
        for id in [id for id, pending in self._pending.items() if pending.node == node]:
            self._mark_lost(self._pending.pop(id), "the site was started anew")

    def _give_up(self) -> Iterator[tuple[int, str]]:
        now = self.clock()
        for node, (since, pending) in list(self._lost.items()):
            reason = self._reason_to_give_up(pending, now, now - since)
            if reason:
                del self._lost[node]
                yield node, reason
        if now > self._end:
            nodes = [pending.node for pending in self._pending.values()]
            self._pending.clear()
            yield from ((node, self._deadline_reason()) for node in nodes)

    def _reason_to_give_up(self, pending: PendingMessage, now: float, seconds_away: float) -> str:
        """Why a lost message is not sent again; empty if it still may be."""
        if pending.attempts >= MAX_ATTEMPTS:
            return f"lost {pending.attempts} times, at last: {pending.last_loss}"
        away = f"not connected for {seconds_away:.0f} s"
        if seconds_away > self.patience:
            return away
        if now > self._end:
            return f"{self._deadline_reason()}, {away}"
        return ""

    def _deadline_reason(self) -> str:
        return f"no answer within {self.deadline:.0f} s"

    def _resend_lost(self, connected: set[int]) -> None:
        """Send lost messages again to the nodes that are connected."""
        for node, (_, pending) in list(self._lost.items()):
            if node in connected:
                del self._lost[node]
                if self.watch is not None:
                    self.watch.node_asked_again(node, max(0.0, self._end - self.clock()))
                self._send(pending)

    def _send_probes(self) -> None:
        now = self.clock()
        for pending in [pending for pending in self._pending.values() if now > pending.probe_time]:
            pending.probe_interval *= 2
            pending.probe_time = now + pending.probe_interval
            (id,) = self._push([PendingMessage(pending.node, SiteMessage({"do": "hello"}), "query.hello")])
            if id:
                self._probes[id] = pending.node


def _by_request(pulled: Iterable[Message]) -> dict[str, Message | str]:
    return {message.metadata.reply_to_message_id: message for message in pulled}


def _decode_reply(message: Message | str) -> SiteMessage | str:
    """The reply; or Flower's name of an error, with its reason unless the message is merely lost. Whatever a site has
    sent, this does not fail."""
    if isinstance(message, str):
        return message
    try:
        if message.has_error():
            name = ERROR_NAMES.get(message.error.code, f"error {printable(message.error.code)}")
            return name if name in LOST_MESSAGE_ERRORS else printable(f"{name}: {message.error.reason}")
        return from_records(message.content)
    except StorageError as error:
        return SiteMessage({"failure": error.what})
    except Exception as error:
        return SiteMessage({"failure": f"rejected: its reply cannot be read ({type(error).__name__})"})
