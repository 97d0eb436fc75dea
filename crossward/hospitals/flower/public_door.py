"""The public door of a coordinator: what of Flower's SuperLink a hospital reaches, and who gets so far.

TLS asks every caller for a certificate of the federation's authority. A connection whose certificate is not for the key
of a registered site is dropped before a byte of a request is read. Of the SuperLink's routes only those are there that
a SuperNode needs; all others do not exist at this door. A request must be signed by the key that the connection has.

A site's question for messages waits here until there is one, see mailboxes.py.
"""

from __future__ import annotations

import asyncio
import gc
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from crossward.hospitals.flower.mailboxes import Mailboxes
from crossward.hospitals.flower.short_ways import App, Receive, Scope, Send, handing_over
from crossward.hospitals.pem import certified_key, encode_public_key

Drop = Callable[[], None]

SUPERNODE_ROUTES = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
SELF_REGISTRATION_ROUTES = frozenset({"/v1/fleet/register-node", "/v1/fleet/unregister-node"})  # without keys only
QUESTION_ROUTE = "/v1/fleet/pull-messages"
PUBLIC_KEY_HEADER = b"flwr-public-key"
KEPT_HEADERS = (b"content-type", b"content-length", b"accept")  # and those that begin with flwr-
SMALL_BODY = 64 * 1024  # bytes of a request that only names things
BODY_LIMITS = {  # bytes, where it is more
    "/v1/fleet/push-messages": 2**20,  # the ids of a message's objects
    "/v1/fleet/push-object": 8 * 2**20,  # Flower moves contents in pieces of 7.5 MiB
}
MAX_HEAD = 32 * 1024  # bytes of a request's line and headers
BODY_TIMEOUT = 120.0  # seconds for a body to arrive
LINGER = 0.2  # seconds for a refusal to reach a site that still sends
MAX_REQUESTS_OF_SITE = 16  # at a time; a SuperNode sends 2 objects at a time, and a heartbeat
MAX_CONNECTIONS_OF_SITE = 32
COLLECT_AFTER = 32  # closed connections, of 256 KiB each
ANYBODY = ""  # the site of every connection where there are no certificates


@dataclass
class PublicDoor:
    """An ASGI application in front of the SuperLink's. `keys` maps each site to its public key in PEM; None does
    without TLS and keys."""

    app: App
    keys: Mapping[str, bytes] | None
    routes: frozenset[str] = SUPERNODE_ROUTES
    mailboxes: Mailboxes = field(default_factory=Mailboxes)
    nodes: set[tuple[str, int]] = field(default_factory=set)  # site and node that Flower has answered a question of
    connections: Counter[str] = field(default_factory=Counter)  # of each site
    requests: Counter[str] = field(default_factory=Counter)
    closed: int = 0  # connections, of anybody

    def site_of(self, ssl_object: Any) -> str | None:
        """Which site a connection is from, by its certificate; None if from none."""
        if self.keys is None:
            return ANYBODY
        certificate = ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None
        if not certificate:
            return None
        with suppress(ValueError):
            key = certified_key(certificate)
            return next((site for site, known in self.keys.items() if known == key), None)
        return None

    async def handle(self, site: str, drop: Drop, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a site, or let the SuperLink answer it. `drop` ends the connection at once."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self.routes:
            return await _refuse(send, 404)
        headers = scope["headers"]
        if self.keys is not None and _values(headers, PUBLIC_KEY_HEADER) != [b64encode(self.keys[site])]:
            return await _refuse(send, 403)
        if self.requests[site] >= MAX_REQUESTS_OF_SITE:
            return await _refuse(send, 503)
        self.requests[site] += 1
        try:
            body = await _read_body(headers, receive, BODY_LIMITS.get(scope["path"], SMALL_BODY))
            if body is None:
                await _refuse(send, 413)
                asyncio.get_running_loop().call_later(LINGER, drop)  # TLS would wait for the rest of the body
                return None
            if scope["path"] == QUESTION_ROUTE:
                send = await self._wait(site, body, receive, send)
            request = {"type": "http.request", "body": body, "more_body": False}
            await self.app(_plain_scope(scope), handing_over(request, receive), send)
        except (ConnectionError, TimeoutError):  # nobody is there any more to be answered
            drop()
        finally:
            self.requests[site] -= 1

    async def _wait(self, site: str, body: bytes, receive: Receive, send: Send) -> Send:
        """Let a question wait until there is a message for its node, if the node is this site's: nobody learns when
        another gets one. Whose a node is, Flower says by answering; the `send` that is returned notices it."""
        node = _node_of(body)
        if node is None:
            return send
        if (site, node) in self.nodes:
            await _unless_gone(self.mailboxes.wait_for_message(node), receive)
            return send

        async def noticing(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.OK:
                self.nodes.add((site, node))
            await send(message)

        return noticing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Connections go through SiteProtocol, which knows their site; a request that does not is refused."""
        await _refuse(send, 404)


class SiteProtocol(HttpToolsProtocol):
    """A connection at the public door: it has a site, or is dropped."""

    site: str | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        door: PublicDoor = self.config.app  # type: ignore[assignment]
        site = door.site_of(transport.get_extra_info("ssl_object"))
        if site is None or door.connections[site] >= MAX_CONNECTIONS_OF_SITE:
            transport.abort()
            return
        self.site = site
        door.connections[site] += 1
        self.app = partial(door.handle, site, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        door: PublicDoor = self.config.app  # type: ignore[assignment]
        if self.site is not None:
            door.connections[self.site] -= 1
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # after an error uvicorn leaves it, and it holds the connection for long
        door.closed += 1
        if door.closed % COLLECT_AFTER == 0:
            gc.collect()  # frees the connections before this one, see freed_memory.py

    def data_received(self, data: bytes) -> None:
        if self.site is None:
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()


def public_keys(openssh: Mapping[str, bytes]) -> dict[str, bytes]:
    """The public keys of sites as a door compares them, from OpenSSH's format."""
    return {site: encode_public_key(content) for site, content in openssh.items()}


async def _read_body(headers: Iterable[tuple[bytes, bytes]], receive: Receive, limit: int) -> bytes | None:
    """The whole body; None if it is, or says that it is, too large."""
    for length in _values(headers, b"content-length"):
        if not length.isdigit() or int(length[:20]) > limit:
            return None
    pieces: list[bytes] = []
    size = 0
    async with asyncio.timeout(BODY_TIMEOUT):
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ConnectionError
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > limit:
                return None
            if not message.get("more_body", False):
                return b"".join(pieces)


def _node_of(body: bytes) -> int | None:
    """The node that a question for messages names; None if it cannot be read: Flower refuses it."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from google.protobuf.message import DecodeError

    try:
        return int(PullMessagesRequest.FromString(body).node.node_id)
    except DecodeError:
        return None


async def _unless_gone(wait: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Wait for something; ConnectionError if the caller goes away meanwhile."""
    waiting, gone = asyncio.ensure_future(wait), asyncio.ensure_future(receive())
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ConnectionError
    finally:
        for task in (waiting, gone):
            task.cancel()
        await asyncio.gather(waiting, gone, return_exceptions=True)


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def _plain_scope(scope: Scope) -> Scope:
    """A request with nothing in it that Flower does not need. It takes the path from the header Host, among others."""
    headers = [(b"host", b"localhost")]
    headers += [(key, value) for key, value in scope["headers"] if key in KEPT_HEADERS or key.startswith(b"flwr-")]
    path = scope["path"]
    return {**scope, "headers": headers, "query_string": b"", "raw_path": path.encode("ascii"), "root_path": ""}


async def _refuse(send: Send, status: int) -> None:
    """An answer without a word, after which the connection ends."""
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    with suppress(RuntimeError):  # an answer has been begun
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
