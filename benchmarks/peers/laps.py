"""Laps: how a peer takes its turn. It waits for a line on its standard input before each lap, and tells its time."""

from __future__ import annotations

import json
import sys
import time


class Laps:
    """After the warm-up prints {"ready": true}; after each lap of some rounds {"seconds": ...}, those of one round."""

    def __init__(self, warm_up: int, rounds: int, laps: int) -> None:
        self.warm_up, self.rounds, self.total = warm_up, rounds, warm_up + rounds * laps
        self.done, self.began = 0, 0.0

    def round_ended(self) -> None:
        now = time.perf_counter()
        self.done += 1
        run = self.done - self.warm_up
        if run < 0 or run % self.rounds:
            return
        told = {"seconds": (now - self.began) / self.rounds} if run else {"ready": True}
        print(json.dumps(told), flush=True)
        sys.stdin.readline()  # at the end of its input it goes on at once
        self.began = time.perf_counter()


def from_arguments() -> tuple[Laps, str]:
    """Every peer is called with WARM_UP ROUNDS LAPS and the file to save its final weights to."""
    warm_up, rounds, laps = map(int, sys.argv[1:4])
    return Laps(warm_up, rounds, laps), sys.argv[4]
