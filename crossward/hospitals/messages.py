"""Parcel: what passes between the coordinator and a site: words about it, and a tree in its encoded form.

Flower starts a process for every message. That process only hands the parcel on to the site's worker, which is there
all the time with torch and the images; so nothing here imports torch.
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

PROTOCOL = 1  # of what `about` says; sites and coordinators of different protocols do not talk
REPEATED = ("run", "site", "step", "round", "ask")  # of a question, in its answer
FAMILY = "AF_UNIX"
LONGEST = 103  # bytes of a socket's path on the strictest system; Linux takes 107
RETRY = 0.2  # seconds
TRIES = 3  # a question over which the worker dies so often is not asked again


@dataclass(frozen=True)
class Parcel:
    about: dict[str, Any]  # JSON
    tree: bytes = b""

    @property
    def failure(self) -> str:
        """Why a site did not do what it was asked; empty if it did."""
        return str(self.about.get("failure", ""))


def repeated(about: Mapping[str, Any]) -> dict[str, Any]:
    """What the answer to a question says again."""
    return {key: about[key] for key in REPEATED if key in about}


def hand_over(connection: Connection, parcel: Parcel) -> None:
    connection.send_bytes(json.dumps(parcel.about).encode())
    connection.send_bytes(parcel.tree)


def take_in(connection: Connection) -> Parcel:
    """What was handed over. Whoever hands over anything else is treated as one that died."""
    said, tree = connection.recv_bytes(), connection.recv_bytes()
    try:
        about = json.loads(said)
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict):
        raise ConnectionError("what was handed over is no parcel")
    return Parcel(about, tree)


def address(socket: str | os.PathLike[str]) -> str:
    """The socket's path, if a system takes it."""
    if (length := len(os.fsencode(socket))) > LONGEST:
        raise ConfigError(
            f"the path of the worker's socket is too long ({length} bytes, {LONGEST} are allowed): {os.fspath(socket)}",
            hint="Put it into a folder with a shorter path.",
        )
    return os.fspath(socket)


def passed_on(
    parcel: Parcel,
    socket: str,
    patience: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Parcel:
    """The worker's answer; one that is being started, or started again in the middle, is waited for."""
    try:
        path = address(socket)
    except ConfigError as error:
        return Parcel({**parcel.about, "failure": str(error)})
    for _ in range(TRIES):
        connection = _connected(path, patience, clock, sleep)
        if connection is None:
            return Parcel({**parcel.about, "failure": "its worker does not answer: `crossward site up` starts it"})
        with suppress(OSError, EOFError), connection:
            hand_over(connection, parcel)
            return take_in(connection)
    return Parcel({**parcel.about, "failure": f"its worker died {TRIES} times over this question; see its log"})


def _connected(
    path: str, patience: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Connection | None:
    end = clock() + patience
    while True:
        with suppress(OSError):
            return Client(path, FAMILY)
        if clock() > end:
            return None
        sleep(RETRY)
