"""The pace of a SuperNode: how long it sleeps between two questions to the coordinator, and while its app works; and
how its executor learns that there is something to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from threading import Event
from typing import Any

FLOWERS_IDLE_SLEEP = 3.0  # seconds that Flower sleeps when there was no message; it sleeps less for other reasons
REPLY_SLEEP = 0.05  # seconds between two looks at whether the app has replied: a look costs next to nothing
QUICK_ANSWER = 1.0  # seconds within which an answer comes for which nobody waited
MIN_IDLE_SLEEP = 0.1  # seconds after a quick answer, doubled with each further one
TASK_WAIT = 2.0  # seconds that the executor's question for a task waits


@dataclass
class SuperNodePace:
    """A coordinator lets the question for messages wait until there is one. After such a wait the next question follows
    at once, and so it does after a message: only an answer without one lets the next question wait. If further such
    answers come quickly, questions become rarer, up to Flower's own pace."""

    clock: Callable[[], float] = time.monotonic
    really_sleep: Callable[[float], None] = time.sleep
    _awake_since: float = 0.0
    _idle_sleep: float = MIN_IDLE_SLEEP

    def sleep(self, seconds: float) -> None:
        """Replaces time.sleep in Flower's loop."""
        if seconds < FLOWERS_IDLE_SLEEP:  # an app works on a message
            self._idle_sleep = 0.0
            self.really_sleep(min(seconds, REPLY_SLEEP))
            return
        if self.clock() - self._awake_since < QUICK_ANSWER:
            self.really_sleep(self._idle_sleep)
            self._idle_sleep = min(max(2 * self._idle_sleep, MIN_IDLE_SLEEP), FLOWERS_IDLE_SLEEP)
        else:
            self._idle_sleep = MIN_IDLE_SLEEP
        self._awake_since = self.clock()


@dataclass
class TaskWait:
    """The executor of a SuperNode asks for a task twenty times a second, each time by a request. Here its question
    waits until a message has come."""

    seconds: float = TASK_WAIT
    _message_came: Event = field(default_factory=Event)

    def noticing(self, pull: Callable[..., int | None]) -> Callable[..., int | None]:
        """Flower's function that pulls a message with its contents."""

        @wraps(pull)
        def pull_and_notice(*args: Any, **options: Any) -> int | None:
            run = pull(*args, **options)
            if run is not None:
                self._message_came.set()
            return run

        return pull_and_notice

    def waiting(self, acquire: Callable[..., Any]) -> Callable[..., Any]:
        """Flower's handler that gives the executor a task."""

        def acquire_or_wait(request: Any, state: Any) -> Any:
            self._message_came.clear()
            response = acquire(request, state)
            if response.HasField("task") or not self._message_came.wait(self.seconds):
                return response
            return acquire(request, state)

        return acquire_or_wait
