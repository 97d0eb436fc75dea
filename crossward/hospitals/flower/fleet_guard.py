"""FleetGuard: a site receives and answers its own messages, and no others; and its answers have a size and a shape.

Flower checks that a request was signed by the key of the node that it names. It does not check that a message that the
node pushes is a reply, or its own: a site could send messages to other sites in the coordinator's name. The guard
stands before the handlers of Flower's Fleet API, when the node is known.

Flower hands a reply to the run as soon as it is announced, and the run then waits for its contents, for all sites, up
to two hours. The guard hands over replies whose contents have all come: a site that never sends them holds up nobody.

It sees every message and every reply that passes, and tells the mailboxes, where sites and runs wait for them.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

from crossward.hospitals.flower.mailboxes import Mailboxes

Content = TypeVar("Content")
MEGABYTE = 2**20
MIN_REPLY_BYTES = 256 * MEGABYTE  # that every reply may have, if federation.toml does not say otherwise
REPLY_FACTOR = 4  # a reply may be this many times as large as the largest message that the site was sent
MAX_OBJECTS = 4096  # of a message; its array is cut into pieces of 7.5 MiB
MAX_RECORDS = 2  # of a message, besides the pieces of its array: see records.to_records
MAX_DEPTH = 4  # message, records, record, array, piece
REMEMBERED_MESSAGES = 32  # of each site, whose objects it may still pull or push
MAX_REPLIES = 16  # to one message: a SuperNode tries again when a connection breaks off
MAX_TEXT = 256  # bytes of a name in a message's metadata
HASH = re.compile(r"[0-9a-f]{64}")
GUARDED_HANDLERS = (  # of the Fleet API
    "pull_messages",
    "push_messages",
    "pull_object",
    "push_object",
    "confirm_message_received",
    "get_run",
    "get_fab",
)


class Refused(Exception):
    """A request that no SuperNode of Crossward makes."""


@dataclass
class MessageObjects:
    """The objects of a message, by their ids, and how many bytes of them have passed."""

    ids: frozenset[str]
    reply_to: str = ""  # the message that it answers
    passed: int = 0
    replies: int = 0  # to it, that were announced


@dataclass
class NodeTraffic:
    """What a node has been sent and is sending."""

    received: OrderedDict[str, MessageObjects] = field(default_factory=OrderedDict)  # by the id of the message
    sent: OrderedDict[str, MessageObjects] = field(default_factory=OrderedDict)  # by Flower's session
    arriving: OrderedDict[str, set[str]] = field(default_factory=OrderedDict)  # message -> objects that its reply lacks
    largest: int = 0  # bytes of the largest message that it was sent


class PushedObject:
    """A request that brings an object, which is read once: Flower's handler asks for it twice, and gets a copy each
    time."""

    def __init__(self, request: Any) -> None:
        self._request = request

    @cached_property
    def object_content(self) -> bytes:
        content: bytes = self._request.object_content
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


@dataclass
class FleetGuard:
    """The rules of the Fleet API between sites. Handlers run in several threads."""

    min_reply_bytes: int = MIN_REPLY_BYTES
    mailboxes: Mailboxes = field(default_factory=Mailboxes)
    _nodes: dict[int, NodeTraffic] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def guarded(self, name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        """A handler of Flower's, behind the rule of its name."""
        rule = getattr(self, f"_{name}")

        def guarded_handler(request: Any, **rest: Any) -> Any:
            from fastapi import HTTPException

            read = PushedObject(request) if name == "push_object" else request
            try:
                return rule(lambda: handler(request=read, **rest), request)
            except Refused as refusal:
                raise HTTPException(403, str(refusal)) from None

        return guarded_handler

    def _pull_messages(self, handle: Callable[[], Any], request: Any) -> Any:
        came = self.mailboxes.came(request.node.node_id)
        response = handle()
        self.mailboxes.read(request.node.node_id, came, len(response.message_object_trees))
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
        _check_metadata(metadata)
        ids = tree_ids(request.message_object_trees[0], MAX_RECORDS)
        if metadata.message_id != request.message_object_trees[0].object_id:
            raise Refused("a message and its objects must belong together")
        del request.clientapp_runtime_list[:]  # Flower adds it up, and infinity would stay
        with self._lock:  # before the run can see the reply
            node = self._node(request)
            question = node.received.get(metadata.reply_to_message_id)
            if question is None:
                raise Refused("a site replies to messages that it was sent")
            question.replies += 1
            if question.replies > MAX_REPLIES:  # each leaves a row in Flower's database
                raise Refused(f"a site replies to a message at most {MAX_REPLIES} times")
            _remember(node.arriving, metadata.reply_to_message_id, {*ids})
        response = handle()
        with self._lock:
            _remember(node.sent, response.session_id, MessageObjects(ids, metadata.reply_to_message_id))
            _remember(node.arriving, metadata.reply_to_message_id, {*response.objects_to_push})
        if not response.objects_to_push:
            self.mailboxes.add_reply(metadata.reply_to_message_id)
        return response

    def _pull_object(self, handle: Callable[[], Any], request: Any) -> Any:
        with self._lock:
            node = self._node(request)
            message = next((each for each in reversed(node.received.values()) if request.object_id in each.ids), None)
        if message is None:
            raise Refused("a site pulls objects of its own messages only")
        response = handle()
        with self._lock:
            message.passed += response.ByteSize()  # to look at the content itself would copy it
            node.largest = max(node.largest, message.passed)
        return response

    def _push_object(self, handle: Callable[[], Any], request: Any) -> Any:
        with self._lock:
            node = self._node(request)
            message = node.sent.get(request.session_id)
            if message is None or request.object_id not in message.ids:
                raise Refused("a site pushes objects of its own messages only")
            message.passed += request.ByteSize()
            if message.passed > max(self.min_reply_bytes, REPLY_FACTOR * node.largest):
                raise Refused(f"a reply of {message.passed} bytes is too large for this run")
        response = handle()
        if response.stored:
            with self._lock:
                lacking = node.arriving.get(message.reply_to, set())
                lacking.discard(request.object_id)
            if not lacking:
                self.mailboxes.add_reply(message.reply_to)
        return response

    def _get_run(self, handle: Callable[[], Any], request: Any) -> Any:
        """A site has no use for the settings of a run in Flower's sense, which hold a folder of the coordinator."""
        response = handle()
        response.run.override_config.clear()
        return response

    def _get_fab(self, handle: Callable[[], Any], request: Any) -> Any:
        if not HASH.fullmatch(request.hash_str):  # Flower writes it to its log as it is
            raise Refused("a bundle is named by its hash")
        return handle()

    def arrived(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler by which a run asks for replies, which gets some that are whole. If there is none, it waits a
        little, and then asks about all that are not on their way: Flower says which nodes are gone."""

        def arrived_handler(request: Any, *rest: Any, **options: Any) -> Any:
            answered = self.mailboxes.wait_for_replies(request.message_ids)
            with self._lock:
                lacking = {id for node in self._nodes.values() for id, objects in node.arriving.items() if objects}
            whole = [id for id in answered or request.message_ids if id not in lacking]
            del request.message_ids[:]
            request.message_ids.extend(whole)
            return handler(request, *rest, **options)

        return arrived_handler

    def announced(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler by which a run sends messages; the mailboxes are told of them."""

        def announced_handler(request: Any, *rest: Any, **options: Any) -> Any:
            response = handler(request, *rest, **options)
            lacking = {*response.objects_to_push}
            for message, tree, id in zip(request.messages_list, request.message_object_trees, response.message_ids):
                if id:
                    self.mailboxes.announce(id, message.metadata.dst_node_id, tree_ids(tree) & lacking)
            return response

        return announced_handler

    def stored(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler by which a run sends the contents of messages; the mailboxes are told of them."""

        def stored_handler(request: Any, *rest: Any, **options: Any) -> Any:
            response = handler(request, *rest, **options)
            if response.stored:
                self.mailboxes.add_contents(request.object_id)
            return response

        return stored_handler

    def _confirm_message_received(self, handle: Callable[[], Any], request: Any) -> Any:
        with self._lock:
            if request.message_object_id not in self._node(request).received:
                raise Refused("a site confirms its own messages only")
        return handle()

    def _node(self, request: Any) -> NodeTraffic:
        """Of a node that Flower has authenticated, so that there are no more than the coordinator has registered."""
        return self._nodes.setdefault(request.node.node_id, NodeTraffic())


def tree_ids(tree: Any, records: int = MAX_OBJECTS) -> frozenset[str]:
    """The ids of all objects of a message; refuses messages of too many, or of more than so many records."""
    ids: set[str] = set()
    seen, pending = 0, [(tree, 0)]
    while pending:
        each, depth = pending.pop()
        seen += 1
        if seen > MAX_OBJECTS:
            raise Refused(f"a message has at most {MAX_OBJECTS} objects")
        if depth > MAX_DEPTH or (depth < MAX_DEPTH - 1 and len(each.children) > records):
            raise Refused("a message that is not made as Crossward makes one")
        ids.add(each.object_id)
        pending.extend((child, depth + 1) for child in each.children)
    return frozenset(ids)


def _check_metadata(metadata: Any) -> None:
    """Refuse what Flower would store and fail over later, when the run asks for the replies of all sites."""
    if not math.isfinite(metadata.created_at) or not math.isfinite(metadata.ttl):
        raise Refused("a message has times that are numbers")
    texts = (metadata.message_id, metadata.reply_to_message_id, metadata.message_type, metadata.group_id)
    if any(len(text) > MAX_TEXT or not text.isprintable() for text in texts):
        raise Refused("a message has names of one short line")


def _remember(messages: OrderedDict[str, Content], id: str, message: Content) -> None:
    messages[id] = message
    while len(messages) > REMEMBERED_MESSAGES:
        messages.popitem(last=False)
