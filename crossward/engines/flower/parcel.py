"""Parcel: what passes between the coordinator and a site: words about it, and a tree in its encoded form.

Flower starts a process for every message. That process only hands the parcel on to the site's worker, which is there
all the time with torch and the images; so nothing here imports torch.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from typing import Any

PROTOCOL = 1  # of what `about` says; sites and coordinators of different protocols do not talk
FAMILY = "AF_UNIX"
RETRY = 0.2  # seconds


@dataclass(frozen=True)
class Parcel:
    about: dict[str, Any]  # JSON
    tree: bytes = b""

    @property
    def failure(self) -> str:
        """Why a site did not do what it was asked; empty if it did."""
        return str(self.about.get("failure", ""))


def hand_over(connection: Connection, parcel: Parcel) -> None:
    connection.send_bytes(json.dumps(parcel.about).encode())
    connection.send_bytes(parcel.tree or b"\0")


def take_in(connection: Connection) -> Parcel:
    about, tree = json.loads(connection.recv_bytes()), connection.recv_bytes()
    return Parcel(about, b"" if tree == b"\0" else tree)


def passed_on(parcel: Parcel, socket: str, patience: float) -> Parcel:
    """The worker's answer; one that is being started again is waited for."""
    end = time.monotonic() + patience
    while True:
        with suppress(OSError, EOFError), Client(socket, FAMILY) as connection:
            hand_over(connection, parcel)
            return take_in(connection)
        if time.monotonic() > end:
            return Parcel({**parcel.about, "failure": "its worker does not answer: `crossward site up` starts it"})
        time.sleep(RETRY)
