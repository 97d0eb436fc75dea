"""Laps: how a peer takes its turn. It waits for a line on its standard input before each lap, and prints its time."""

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
        self.warm_up = warm_up
        self.rounds = rounds
        self.total = warm_up + rounds * laps
        self.weights = weights
        self.done = 0
        self.began = 0.0

    def round_ended(self, model: Callable[[], Mapping[str, Tensor]]) -> None:
        now = time.perf_counter()
        self.done += 1
        since = self.done - self.warm_up
        if since < 0 or since % self.rounds:
            return
        if since == 0:
            torch.save(dict(model()), self.weights)
        message = {"seconds": (now - self.began) / self.rounds} if since else {"ready": True}
        print(json.dumps(message), flush=True)
        sys.stdin.readline()  # at the end of its input it goes on at once
        self.began = time.perf_counter()


def from_arguments() -> Laps:
    """Every peer is called with WARM_UP ROUNDS LAPS WEIGHTS [WORD ...]: three numbers, a file and words of its own."""
    warm_up, rounds, laps = map(int, sys.argv[1:4])
    return Laps(warm_up, rounds, laps, sys.argv[4])
