"""FleetGuard: a site receives and answers its own messages, and no others; and its answers have a size.

Flower checks that a request was signed by the key of the node that it names. It does not check that a message that the
node pushes is a reply, or its own: a site could send messages to other sites in the coordinator's name. The guard
stands before the handlers of Flower's Fleet API, when the node is known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

MEGABYTE = 2**20
MIN_REPLY_BYTES = 256 * MEGABYTE  # that every reply may have, if federation.toml does not say otherwise
REPLY_FACTOR = 4  # a reply may be this many times as large as the largest message that the site was sent
MAX_OBJECTS = 4096  # of a message; Flower cuts its arrays into pieces of 5 MiB
REMEMBERED_MESSAGES = 32  # of each site, whose objects it may still pull or push
GUARDED_HANDLERS = ("pull_messages", "push_messages", "pull_object", "push_object", "confirm_message_received")


class Refused(Exception):
    """A request that no SuperNode of Crossward makes."""


@dataclass
class MessageObjects:
    """The objects of a message, by their ids, and how many bytes of them have passed."""

    ids: frozenset[str]
    passed: int = 0


@dataclass
class NodeTraffic:
    """What a node has been sent and is sending."""

    received: OrderedDict[str, MessageObjects] = field(default_factory=OrderedDict)  # by the id of the message
    sent: OrderedDict[str, MessageObjects] = field(default_factory=OrderedDict)  # by Flower's session
    largest: int = 0  # bytes of the largest message that it was sent


@dataclass
class FleetGuard:
    """The rules of the Fleet API between sites. Handlers run in several threads."""

    min_reply_bytes: int = MIN_REPLY_BYTES
    _nodes: dict[int, NodeTraffic] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def guarded(self, name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        """A handler of Flower's, behind the rule of its name."""
        rule = getattr(self, f"_{name}")

        def guarded_handler(request: Any, **rest: Any) -> Any:
            from fastapi import HTTPException

            try:
                return rule(lambda: handler(request=request, **rest), request)
            except Refused as refusal:
                raise HTTPException(403, str(refusal)) from None

        return guarded_handler

    def _pull_messages(self, handle: Callable[[], Any], request: Any) -> Any:
        response = handle()
        with self._lock:
            node = self._node(request)
            for tree in response.message_object_trees:
                _remember(node.received, tree.object_id, MessageObjects(tree_ids(tree)))
        return response

    def _push_messages(self, handle: Callable[[], Any], request: Any) -> Any:
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise Refused("a site pushes one message at a time")
        metadata = request.messages_list[0].metadata
        if metadata.src_node_id != request.node.node_id:
            raise Refused("a site pushes messages of its own only")
        if not metadata.reply_to_message_id:
            raise Refused("a site replies; it does not ask")
        ids = tree_ids(request.message_object_trees[0])
        if metadata.message_id != request.message_object_trees[0].object_id:
            raise Refused("a message and its objects must belong together")
        response = handle()
        with self._lock:
            _remember(self._node(request).sent, response.session_id, MessageObjects(ids))
        return response

    def _pull_object(self, handle: Callable[[], Any], request: Any) -> Any:
        with self._lock:
            node = self._node(request)
            message = next((each for each in reversed(node.received.values()) if request.object_id in each.ids), None)
        if message is None:
            raise Refused("a site pulls objects of its own messages only")
        response = handle()
        with self._lock:
            message.passed += len(response.object_content)
            node.largest = max(node.largest, message.passed)
        return response

    def _push_object(self, handle: Callable[[], Any], request: Any) -> Any:
        with self._lock:
            node = self._node(request)
            message = node.sent.get(request.session_id)
            if message is None or request.object_id not in message.ids:
                raise Refused("a site pushes objects of its own messages only")
            message.passed += len(request.object_content)
            if message.passed > max(self.min_reply_bytes, REPLY_FACTOR * node.largest):
                raise Refused(f"a reply of {message.passed} bytes is too large for this run")
        return handle()

    def _confirm_message_received(self, handle: Callable[[], Any], request: Any) -> Any:
        with self._lock:
            if request.message_object_id not in self._node(request).received:
                raise Refused("a site confirms its own messages only")
        return handle()

    def _node(self, request: Any) -> NodeTraffic:
        """Of a node that Flower has authenticated, so that there are no more than the coordinator has registered."""
        return self._nodes.setdefault(request.node.node_id, NodeTraffic())


def tree_ids(tree: Any) -> frozenset[str]:
    """The ids of all objects of a message; refuses messages of too many."""
    ids: set[str] = set()
    seen, pending = 0, [tree]
    while pending:
        each = pending.pop()
        seen += 1
        if seen > MAX_OBJECTS:
            raise Refused(f"a message has at most {MAX_OBJECTS} objects")
        ids.add(each.object_id)
        pending.extend(each.children)
    return frozenset(ids)


def _remember(messages: OrderedDict[str, MessageObjects], id: str, message: MessageObjects) -> None:
    messages[id] = message
    while len(messages) > REMEMBERED_MESSAGES:
        messages.popitem(last=False)
