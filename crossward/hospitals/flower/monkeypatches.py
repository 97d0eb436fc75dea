"""Shorter waits and less work in Flower's processes. Flower sleeps for seconds in places that every step of a run
passes: when there is no message, and when a message is announced whose contents are still on their way. Between
hospitals that is little; on fast lines and with small models it is nearly all of a round.

Must be called before the rest of flwr is imported: its functions take these waits as their defaults.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace

IDLE = 0.25  # seconds, of a SuperNode that has no message; Flower: 3
AGAIN = 0.05  # seconds until contents that are on their way are asked for again, then twice as many; Flower: 1
AT_MOST = 0.4  # seconds; Flower: 10
BUFFER = 2**23  # bytes of a request that a server takes in before its handlers have; uvicorn: 2^16
LATE = "flwr.supercore.inflatable.inflatable_utils"  # what must not have been imported


def hasten() -> None:
    from flwr.supercore import constant

    assert LATE not in sys.modules, "too late: flwr has its waits already"
    constant.PULL_INITIAL_BACKOFF, constant.PULL_BACKOFF_CAP = AGAIN, AT_MOST  # type: ignore[assignment]
    constant.PULL_MAX_TRIES_PER_OBJECT = int(constant.PULL_MAX_TIME / AT_MOST)  # as long as before


def _swallow() -> None:
    """Every piece of a request passes a dozen layers of middleware, each with tasks of its own; let there be few."""
    for parser in ("h11_impl", "httptools_impl"):
        with suppress(ImportError):  # the second is an option of uvicorn's
            vars(import_module(f"uvicorn.protocols.http.{parser}"))["HIGH_WATER_LIMIT"] = BUFFER


def hasten_supernode() -> None:
    hasten()
    _swallow()
    from flwr.supernode import start_client_internal

    shorter = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, IDLE)))
    start_client_internal.time = shorter  # type: ignore[assignment, attr-defined]  # which uses nothing else of it


def hasten_superlink() -> None:
    """Who its nodes are and which runs there are stays on disk; the contents of messages, which are asked for again if
    they are lost, do not go through SQLite, which with 44 MB is half of the work."""
    hasten()
    _swallow()
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink import config_loader

    def in_memory(database: str) -> ObjectStoreFactory:
        return ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)

    config_loader.ObjectStoreFactory = in_memory  # type: ignore[assignment, attr-defined]
