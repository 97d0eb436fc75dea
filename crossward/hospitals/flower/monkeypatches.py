"""Changes to Flower's processes: shorter waits, larger buffers, messages in memory.

Flower sleeps for seconds in places that every step of a run passes: when there is no message, and when a message is
announced whose contents are still on their way. Between hospitals that is little; on fast lines and with small models
it is nearly all of a round.

These functions must be called before the rest of flwr is imported: its functions take the waits as their defaults.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace

MAX_IDLE_SLEEP = 0.25  # seconds, of a SuperNode that has no message; Flower: 3
PULL_BACKOFF = 0.05  # seconds until contents that are on their way are asked for again, then doubled; Flower: 1
MAX_PULL_BACKOFF = 0.4  # seconds; Flower: 10
REQUEST_BUFFER = 2**23  # bytes of a request that a server reads ahead of its handlers; uvicorn: 2^16
PULL_MODULE = "flwr.supercore.inflatable.inflatable_utils"  # must not have been imported yet


def shorten_pull_waits() -> None:
    """Ask sooner for contents that are still on their way, and for as long as Flower does."""
    from flwr.supercore import constant

    assert PULL_MODULE not in sys.modules, "too late: flwr has its waits already"
    constant.PULL_INITIAL_BACKOFF = PULL_BACKOFF  # type: ignore[assignment]
    constant.PULL_BACKOFF_CAP = MAX_PULL_BACKOFF  # type: ignore[assignment]
    constant.PULL_MAX_TRIES_PER_OBJECT = int(constant.PULL_MAX_TIME / MAX_PULL_BACKOFF)


def enlarge_request_buffer() -> None:
    """Read requests in few large pieces: each piece passes a dozen layers of middleware, each with its own tasks."""
    for parser in ("h11_impl", "httptools_impl"):
        with suppress(ImportError):  # httptools is optional
            vars(import_module(f"uvicorn.protocols.http.{parser}"))["HIGH_WATER_LIMIT"] = REQUEST_BUFFER


def patch_supernode() -> None:
    """Patch this process before it becomes a SuperNode."""
    shorten_pull_waits()
    enlarge_request_buffer()
    from flwr.supernode import start_client_internal

    # the module uses nothing else of `time`
    short_sleep = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, MAX_IDLE_SLEEP)))
    start_client_internal.time = short_sleep  # type: ignore[assignment, attr-defined]


def patch_superlink() -> None:
    """Patch this process before it becomes a SuperLink.

    Nodes and runs stay on disk. The contents of messages do not go through SQLite, which is half of the work for a
    message of 44 MB; contents that are lost in a crash are asked for again.
    """
    shorten_pull_waits()
    enlarge_request_buffer()
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink import config_loader

    def create_in_memory_store(database: str) -> ObjectStoreFactory:
        return ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)

    config_loader.ObjectStoreFactory = create_in_memory_store  # type: ignore[assignment, attr-defined]
