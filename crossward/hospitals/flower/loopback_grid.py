"""LoopbackGrid: Flower's grid without a network, for tests. It passes every message to a ClientApp in this process; the
messages are those that would pass between machines."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

IDENTITY = 1
Tamper = Callable[[Message, Message], Message | None]  # request, reply -> the reply that arrives; None: it is lost


def set_task_identity() -> None:
    """Set the identity that Flower signs messages with, which it does not know outside its own processes."""
    TaskIdentity.run_id = IDENTITY
    TaskIdentity.task_id = IDENTITY
    TaskIdentity.node_id = IDENTITY


@dataclass
class LoopbackGrid(Grid):
    """A grid whose nodes are in this process; `tamper` can alter or lose replies."""

    app: ClientApp
    nodes: dict[int, dict[str, Any]]  # node -> its configuration
    tamper: Tamper = lambda request, reply: reply
    down: set[int] = field(default_factory=set)  # nodes that are not connected
    _replies: dict[str, Message] = field(default_factory=dict, repr=False)
    _run: Run = field(default_factory=lambda: Run.create_empty(1), repr=False)

    def __post_init__(self) -> None:
        set_task_identity()

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.nodes if node not in self.down]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(id) for id in message_ids if id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> str:
        """Answer a message at once; returns its id, by which the reply is pulled."""
        node = message.metadata.dst_node_id
        if node not in self.nodes:
            return ""  # as for a node that the SuperLink does not know
        id = uuid.uuid4().hex
        message.metadata.__dict__["_message_id"] = id
        if node in self.down:
            self._replies[id] = Message(Error(ErrorCode.NODE_UNAVAILABLE, "down"), reply_to=message)
            return id
        reply = self.tamper(message, self._answer(message, node))
        if reply is not None:
            self._replies[id] = reply
        return id

    def _answer(self, message: Message, node: int) -> Message:
        context = Context(1, node, self.nodes[node], RecordDict(), {})
        try:
            return self.app(message, context)
        except Exception as error:  # Flower, too, turns every error of a ClientApp into a message
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, repr(error)), reply_to=message)
