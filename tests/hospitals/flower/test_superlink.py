"""What the SuperLink keeps of connections that have ended."""

from __future__ import annotations

import gc
import threading
import time
import weakref

from crossward.hospitals.flower import returned_memory


class Connection:
    """Refers to itself, as a connection and its protocol do to each other."""

    def __init__(self) -> None:
        self.protocol = self


def test_connections_that_refer_to_themselves_are_freed_without_a_thousand_more(monkeypatch):
    monkeypatch.setattr(returned_memory, "INTERVAL", 0.01)
    gc.collect()
    gc.disable()
    try:
        returned_memory.return_free_memory(stopping := threading.Event())
        connection = weakref.ref(Connection())
        deadline = time.monotonic() + 20
        while connection() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert connection() is None
    finally:
        stopping.set()
        gc.enable()
        gc.unfreeze()
