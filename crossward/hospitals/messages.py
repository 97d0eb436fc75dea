"""Messages between the coordinator and a site: a header in JSON, and a tree in its encoded form.

A site's SuperNode only forwards messages to the site's worker, which holds torch and the images. Therefore nothing here
imports torch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from typing import Any

from crossward.errors import ConfigError
from crossward.foreign import printable

PROTOCOL = 3  # version of the header's keys; sites and coordinators of different protocols do not talk
# of a request's header, repeated in the reply's; nobody can guess the nonce, nor has an earlier reply the same
ECHOED_KEYS = ("run", "site", "step", "round", "ask", "nonce")
SOCKET_FAMILY = "AF_UNIX"
MAX_SOCKET_PATH = 103  # bytes of a socket's path on the strictest system; Linux takes 107
RETRY_INTERVAL = 0.2  # seconds
MAX_ATTEMPTS = 3  # a request over which the worker dies this often is not sent again


@dataclass(frozen=True)
class SiteMessage:
    """A request of the coordinator to a site, or the site's reply."""

    header: dict[str, Any]  # JSON
    payload: bytes = b""  # an encoded tree

    @property
    def failure(self) -> str:
        """Why a site did not do what it was asked, fit to be printed; empty if it did."""
        failure = self.header.get("failure")
        if failure is None or failure == "":
            return ""
        return printable(failure) or "it gives no reason"


def echoed_header(header: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request's header that its reply repeats."""
    return {key: header[key] for key in ECHOED_KEYS if key in header}


def send_message(connection: Connection, message: SiteMessage) -> None:
    """Write a message to a socket."""
    connection.send_bytes(json.dumps(message.header).encode())
    connection.send_bytes(message.payload)


def receive_message(connection: Connection) -> SiteMessage:
    """Read a message from a socket. A peer that sends anything else is treated like one that died."""
    header_json = connection.recv_bytes()
    payload = connection.recv_bytes()
    try:
        header = json.loads(header_json)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ConnectionError("the header of a message must be a JSON object")
    return SiteMessage(header, payload)


def socket_address(socket: str | os.PathLike[str]) -> str:
    """The path of a Unix socket as text; a path that is too long for the system is refused."""
    length = len(os.fsencode(socket))
    if length > MAX_SOCKET_PATH:
        raise ConfigError(
            f"the path of the worker's socket is too long ({length} bytes, {MAX_SOCKET_PATH} are allowed): "
            f"{os.fspath(socket)}",
            hint="Put it into a folder with a shorter path.",
        )
    return os.fspath(socket)


def forward_to_worker(
    message: SiteMessage,
    socket: str,
    patience: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> SiteMessage:
    """The worker's reply. Waits `patience` seconds for a worker that is starting or restarting."""
    try:
        path = socket_address(socket)
    except ConfigError:  # its text holds the path, which is the site's own
        return _failed(message, "the path of its worker's socket is too long: `crossward site up` says so")
    for _ in range(MAX_ATTEMPTS):
        connection = _connect(path, patience, clock, sleep)
        if connection is None:
            return _failed(message, "its worker does not answer: `crossward site up` starts it")
        with suppress(OSError, EOFError), connection:
            send_message(connection, message)
            return receive_message(connection)
    return _failed(message, f"its worker died {MAX_ATTEMPTS} times over this question; see its log")


def _failed(message: SiteMessage, failure: str) -> SiteMessage:
    return SiteMessage({**message.header, "failure": failure})


def _connect(
    path: str, patience: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Connection | None:
    end = clock() + patience
    while True:
        with suppress(OSError):
            return Client(path, SOCKET_FAMILY)
        if clock() > end:
            return None
        sleep(RETRY_INTERVAL)
