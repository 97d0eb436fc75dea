"""The pace of a SuperNode: how long it sleeps between two questions to the coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

FLOWERS_IDLE_SLEEP = 3.0  # seconds that Flower sleeps when there was no message; it sleeps less for other reasons
QUICK_ANSWER = 1.0  # seconds within which an answer comes for which nobody waited
MIN_IDLE_SLEEP = 0.1  # seconds after a quick answer, doubled with each further one


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
        if seconds < FLOWERS_IDLE_SLEEP:
            self.really_sleep(seconds)
            return
        if self.clock() - self._awake_since < QUICK_ANSWER:
            self.really_sleep(self._idle_sleep)
            self._idle_sleep = min(max(2 * self._idle_sleep, MIN_IDLE_SLEEP), FLOWERS_IDLE_SLEEP)
        else:
            self._idle_sleep = MIN_IDLE_SLEEP
        self._awake_since = self.clock()

    def worked(self) -> None:
        """A message was answered: whether there is another one is asked at once."""
        self._idle_sleep = 0.0
