"""A server that gives memory back to the system after requests that have been answered.

Flower copies contents in pieces of some MiB. The C library keeps what is freed between pieces that are still in use.
Telling it to map every large piece anew costs half a million page faults in a round of ResNet-18, and a third of the
time of the round; returning what is free every few seconds costs neither.

A closed TLS connection and its buffer of 256 KiB refer to each other, so that only the garbage collector frees them.
It looks at all objects when their number has grown by a quarter, which thousands of connections do not bring about
beside the 200,000 objects of Flower's modules. Those are set aside: what remains is looked at in a millisecond.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable

INTERVAL = 3.0  # seconds


def return_free_memory(stopping: threading.Event | None = None) -> None:
    """Begin to return free memory to the system, until `stopping` or the end of the process. Call it when all modules
    are imported."""
    stop = stopping or threading.Event()
    trim = _malloc_trim()
    gc.collect()
    gc.freeze()

    def trim_now_and_then() -> None:
        while not stop.wait(INTERVAL):
            gc.collect()
            trim(0)

    threading.Thread(target=trim_now_and_then, name="returned-memory", daemon=True).start()


def _malloc_trim() -> Callable[[int], int]:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not glibc, which alone keeps so much

        def trim(_: int) -> int:
            return 0

    return trim
