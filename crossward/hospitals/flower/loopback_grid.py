"""LoopbackGrid: Flower's grid without a network. It hands every message to a ClientApp in this process, for tests and
for rehearsing faults; what passes is what would pass between machines."""

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

Tamper = Callable[[Message, Message], Message | None]  # question, reply -> what arrives; None: nothing


@dataclass
class LoopbackGrid(Grid):
    app: ClientApp
    nodes: dict[int, dict[str, Any]]  # node -> its configuration
    tamper: Tamper = lambda question, reply: reply
    down: set[int] = field(default_factory=set)  # nodes that are not connected
    _replies: dict[str, Message] = field(default_factory=dict, repr=False)
    _run: Run = field(default_factory=lambda: Run.create_empty(1), repr=False)

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # messages are signed with them

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
        return [self._delivered(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(id) for id in message_ids if id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _delivered(self, message: Message) -> str:
        id, node = uuid.uuid4().hex, message.metadata.dst_node_id
        if node not in self.nodes:
            return ""  # as of a node that the SuperLink does not know
        message.metadata.__dict__["_message_id"] = id
        if node in self.down:
            self._replies[id] = Message(Error(ErrorCode.NODE_UNAVAILABLE, "down"), reply_to=message)
            return id
        context = Context(1, node, self.nodes[node], RecordDict(), {})
        try:
            reply = self.app(message, context)
        except Exception as error:  # as Flower does with whatever a ClientApp raises
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, repr(error)), reply_to=message)
        if (arrived := self.tamper(message, reply)) is not None:
            self._replies[id] = arrived
        return id
