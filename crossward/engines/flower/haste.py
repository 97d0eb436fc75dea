"""Shorter waits in Flower's processes. Flower sleeps for seconds in places that every step of a run passes: when there
is no message, and when a message is announced whose contents are still on their way. Between hospitals that is little;
on fast lines and with small models it is nearly all of a round.

Must be called before the rest of flwr is imported: its functions take these waits as their defaults.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

IDLE = 0.25  # seconds, of a SuperNode that has no message; Flower: 3
AGAIN = 0.05  # seconds until contents that are on their way are asked for again, then twice as many; Flower: 1
LATE = "flwr.supercore.inflatable.inflatable_utils"  # what must not have been imported


def hasten() -> None:
    from flwr.supercore import constant

    assert LATE not in sys.modules, "too late: flwr has its waits already"
    constant.PULL_INITIAL_BACKOFF = AGAIN  # type: ignore[assignment]


def hasten_supernode() -> None:
    hasten()
    from flwr.supernode import start_client_internal

    shorter = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, IDLE)))
    start_client_internal.time = shorter  # type: ignore[assignment, attr-defined]  # which uses nothing else of it
