"""What a process does with memory that it has freed: it keeps it while it works, and gives it back when it rests.

The C library maps a large piece of memory anew each time, and gives the end of its heap back as soon as it is free. The
system then clears every page again. For the activations of EfficientNet-B0 at 224 pixels that is a fifth of a step on a
processor, and for payloads of 44 MB a third of the work of a SuperNode. Here the C library keeps what is freed.

Processes that wait for most of their time, those of a federation, return what they keep as soon as they have done next
to nothing for some seconds, or every half minute if they never rest, so that memory follows what is in use.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

INTERVAL = 3.0  # seconds between two looks at a process
RESTING = 0.05  # of a processor: a process that takes less does nothing but wait
BUSY_LOOKS = 10  # looks at a process that does not rest, after which memory is returned all the same
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of malloc.h
LARGEST_PIECE = 2**30  # bytes; what is larger is mapped by itself
MAX_INT = 2**31 - 1


def keep_freed_memory() -> None:
    """Have the C library keep the memory that this process frees, for what it allocates next. Processes that have done
    their work call `return_freed_memory`."""
    c_library = _c_library()
    if c_library is not None:
        c_library.mallopt(M_MMAP_THRESHOLD, LARGEST_PIECE)
        c_library.mallopt(M_TRIM_THRESHOLD, MAX_INT)


def return_freed_memory() -> None:
    """Give all memory back to the system that is free."""
    c_library = _c_library()
    if c_library is not None:
        c_library.malloc_trim(0)


def return_memory_in_rests(stopping: threading.Event | None = None) -> None:
    """Begin to keep freed memory, and to return it whenever the process rests, until `stopping` or the end of the
    process. Call it when all modules are imported.

    A closed TLS connection and its buffer of 256 KiB refer to each other, so that only the garbage collector frees
    them. It looks at all objects when their number has grown by a quarter, which thousands of connections do not bring
    about beside the 200,000 objects of Flower's modules. Those are set aside: what remains is looked at in a
    millisecond.
    """
    stop = stopping or threading.Event()
    keep_freed_memory()
    c_library = _c_library()
    if c_library is not None:
        c_library.mallopt(M_ARENA_MAX, 1)  # what one thread has freed another uses; Python's threads take turns anyway
    gc.collect()
    gc.freeze()
    rests = Rests()

    def look_now_and_then() -> None:
        while not stop.wait(INTERVAL):
            gc.collect()
            if rests.may_return_memory():
                return_freed_memory()

    threading.Thread(target=look_now_and_then, name="freed-memory", daemon=True).start()


@dataclass
class Rests:
    """When a process rests, told from the seconds of the processor that it has taken between two looks."""

    clock: Callable[[], float] = time.monotonic
    processor: Callable[[], float] = time.process_time
    _looked: float = field(init=False)
    _taken: float = field(init=False)
    _busy_looks: int = 0  # since memory was last returned

    def __post_init__(self) -> None:
        self._looked, self._taken = self.clock(), self.processor()

    def may_return_memory(self) -> bool:
        """Whether the process has worked since memory was last returned, and rests now, or has worked for long."""
        looked, taken = self.clock(), self.processor()
        is_busy = taken - self._taken > RESTING * (looked - self._looked)
        self._looked, self._taken = looked, taken
        self._busy_looks += is_busy
        due = self._busy_looks >= BUSY_LOOKS or (self._busy_looks > 0 and not is_busy)
        if due:
            self._busy_looks = 0
        return due


def _c_library() -> ctypes.CDLL | None:
    """The C library if it is glibc, which alone can be told."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt, library.malloc_trim  # noqa: B018  # looked up here: they are not in every one
    except (OSError, AttributeError, TypeError):  # TypeError: on Windows there is no library without a name
        return None
    return library
