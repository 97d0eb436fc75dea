"""Mailboxes: who waits at the SuperLink for a message, and is woken when one has come.

Flower's sites and runs ask for messages again and again, and each question costs the SuperLink a hundredth of a second
of its processor, whether there is a message or not. Here a question to which the answer is "nothing" waits until there
is something, or for some seconds. A site is answered at once when its message is whole, and asks three times a minute
while nothing happens.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from threading import Condition, Semaphore

SITE_WAIT = 20.0  # seconds that a site's question waits; a SuperNode gives up after 30
RUN_WAIT = 1.0  # seconds that a run's question waits: it has other things to look after
REPLIES_AT_ONCE = 4  # that a run is given
MAX_WAITING_RUNS = 8  # at a time: each takes one of the SuperLink's 40 threads
MAX_INCOMPLETE = 10_000  # messages whose contents are on their way
MAX_REPLIES = 10_000  # that no run has asked for yet


@dataclass
class Mailboxes:
    """What has come for each node, and for the runs. Flower's handlers call it from several threads."""

    _came: Counter[int] = field(default_factory=Counter)  # node -> messages for it that were whole
    _read: dict[int, int] = field(default_factory=dict)  # node -> how many of these it has had; absent: not known
    _lacking: OrderedDict[str, tuple[int, set[str]]] = field(default_factory=OrderedDict)  # message -> node, objects
    _sleepers: dict[int, set[Callable[[], None]]] = field(default_factory=dict)  # node -> what wakes its questions
    _replies: OrderedDict[str, None] = field(default_factory=OrderedDict)  # questions that were answered
    _changed: Condition = field(default_factory=Condition)  # holds the lock of all of it
    _turns: Semaphore = field(default_factory=lambda: Semaphore(MAX_WAITING_RUNS))
    _closed: bool = False

    # messages to sites ------------------------------------------------------------------------------------------------
    def announce(self, message: str, node: int, lacking: Collection[str]) -> None:
        """A run has announced a message to a node, whose contents but for these are there."""
        with self._changed:
            if not lacking:
                self._deliver(node)
                return
            self._lacking[message] = (node, {*lacking})
            while len(self._lacking) > MAX_INCOMPLETE:
                self._lacking.popitem(last=False)

    def add_contents(self, object_id: str) -> None:
        """An object of messages to nodes has come."""
        with self._changed:
            for message, (node, lacking) in list(self._lacking.items()):
                lacking.discard(object_id)
                if not lacking:
                    del self._lacking[message]
                    self._deliver(node)

    def came(self, node: int) -> int:
        """How many messages there were for a node so far; see `read`."""
        with self._changed:
            return self._came[node]

    def read(self, node: int, came: int, count: int) -> None:
        """A node has been given so many messages. None: of those that `came` before it asked, there are none left.
        Otherwise it is not known whether there are more: messages from before the SuperLink was started are among
        them, which nobody announced here."""
        with self._changed:
            if count:
                self._read.pop(node, None)
            else:
                self._read[node] = came

    async def wait_for_message(self, node: int, seconds: float = SITE_WAIT) -> None:
        """Return when there may be a message for a node, or the time is up."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        with self._changed:
            if self._closed or self._read.get(node) != self._came[node]:
                return
            self._sleepers.setdefault(node, set()).add(wake)
        try:
            async with asyncio.timeout(seconds):
                await woken.wait()
        except TimeoutError:
            pass
        finally:
            with self._changed:
                self._sleepers.get(node, set()).discard(wake)

    def close(self) -> None:
        """Answer everybody who waits: the SuperLink is about to end."""
        with self._changed:
            self._closed = True
            for node in list(self._sleepers):
                self._wake(node)
            self._changed.notify_all()

    # replies to runs --------------------------------------------------------------------------------------------------
    def add_reply(self, question: str) -> None:
        """The reply to a message is whole."""
        with self._changed:
            self._replies[question] = None
            while len(self._replies) > MAX_REPLIES:
                self._replies.popitem(last=False)
            self._changed.notify_all()

    def wait_for_replies(self, questions: Iterable[str], seconds: float = RUN_WAIT) -> list[str]:
        """Those of these messages that have a reply which nobody has asked for yet, as soon as there is one: a few at a
        time, because the run unpacks all that it gets in its memory. None if the time is up, or too many runs wait."""
        asked = {*questions}
        if not asked or not self._turns.acquire(blocking=False):
            return []
        end = time.monotonic() + seconds
        try:
            with self._changed:
                while not self._closed and not (asked & self._replies.keys()):
                    if not self._changed.wait(max(0.0, end - time.monotonic())):
                        break
                answered = [question for question in self._replies if question in asked][:REPLIES_AT_ONCE]
                for question in answered:
                    del self._replies[question]
                return answered
        finally:
            self._turns.release()

    def _deliver(self, node: int) -> None:
        self._came[node] += 1
        self._wake(node)

    def _wake(self, node: int) -> None:
        for wake in self._sleepers.pop(node, set()):
            wake()
