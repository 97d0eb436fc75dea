"""What the scheduler of studies costs: the time of a study beside the sum of its cells' own times over its workers.

    python benchmarks/studies.py [--cells 40] [--workers 2] [--rounds 50]

The bar: 40 tiny cells on two workers take at most 1.15 times the sum of their own times over two. A cell's own time is
what its worker spends on it, from the configuration to the last file. Imports are paid once for each worker: they are a
part of the study's time, and also shown apart. They take 2.5 s here, so that the ratio depends on how long cells are:
50 rounds make cells of 1.3 s, 20 rounds cells of half a second, of which imports are a fifth.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from crossward.studies.scheduler import Job, Listener
from crossward.studies.study import Study

FILE = """
[study]
seeds = {seeds}
method = ["fedavg"]
[data]
sites = 2
train = 32
val = 4
test = 4
global_test = 8
[run]
rounds = {rounds}
"""
BAR = 1.15


@dataclass(frozen=True)
class Cost:
    cells: int
    workers: int
    own: float  # seconds, the sum over the cells
    study: float  # from the start of the first worker to the end of the last
    first_round: float  # until the first round of the first cell began: processes, imports

    @property
    def ratio(self) -> float:
        return self.study / (self.own / self.workers)

    @property
    def ratio_without_imports(self) -> float:
        return (self.study - self.first_round) / (self.own / self.workers)


class Stopwatch(Listener):
    def __init__(self) -> None:
        self.own = 0.0
        self.began = time.perf_counter()
        self.first_round: float | None = None

    def on_round(self, job: Job, event: object) -> None:
        if self.first_round is None:
            self.first_round = time.perf_counter() - self.began

    def on_note(self, text: str) -> None:
        print(f"note: {text}")

    def on_done(self, job: Job, seconds: float, peak_bytes: int) -> None:
        self.own += seconds


def measure(cells: int, workers: int, rounds: int) -> Cost:
    with TemporaryDirectory() as place:
        file = Path(place) / "tiny.toml"
        file.write_text(FILE.format(seeds=list(range(cells)), rounds=rounds))
        study = Study(file, Path(place) / "out")
        assert len(study.cells) == cells
        watch = Stopwatch()
        began = time.perf_counter()
        outcome = study.run(workers=workers, view=watch)
        seconds = time.perf_counter() - began
        assert outcome.complete
        return Cost(cells, workers, watch.own, seconds, watch.first_round or 0.0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    cost = measure(options.cells, options.workers, options.rounds)
    if options.json:
        print(json.dumps({"ratio": cost.ratio, "ratio_without_imports": cost.ratio_without_imports, **cost.__dict__}))
        return
    print(f"{cost.cells} cells on {cost.workers} worker(s): {cost.study:.1f} s; their own times: {cost.own:.1f} s")
    print(
        f"ratio to own times / workers: {cost.ratio:.3f} (bar {BAR}); without imports {cost.ratio_without_imports:.3f}"
    )


if __name__ == "__main__":
    main()
