"""Laps: how a peer takes its turn. It waits for a line on its standard input before each lap, and tells its time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor


class Laps:
    """After the warm-up saves the weights and prints {"ready": true}; after each lap prints {"seconds": of a round}."""

    def __init__(self, warm_up: int, rounds: int, laps: int, weights: str) -> None:
        self.warm_up, self.rounds, self.total, self.weights = warm_up, rounds, warm_up + rounds * laps, weights
        self.done, self.began = 0, 0.0

    def round_ended(self, model: Callable[[], Mapping[str, Tensor]]) -> None:
        now = time.perf_counter()
        self.done += 1
        since = self.done - self.warm_up
        if since < 0 or since % self.rounds:
            return
        if since == 0:
            torch.save(dict(model()), self.weights)
        told = {"seconds": (now - self.began) / self.rounds} if since else {"ready": True}
        print(json.dumps(told), flush=True)
        sys.stdin.readline()  # at the end of its input it goes on at once
        self.began = time.perf_counter()


def from_arguments() -> Laps:
    """Every peer is called with WARM_UP ROUNDS LAPS WEIGHTS: the last a file, the others numbers."""
    warm_up, rounds, laps = map(int, sys.argv[1:4])
    return Laps(warm_up, rounds, laps, sys.argv[4])
