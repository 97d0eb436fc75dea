"""Many clients: a federation as FEMNIST's, of up to 100,000 writers, of whom 20 are asked in a round.

    python benchmarks/many_clients.py [--clients 1000 10000 100000] [--rounds 10] [--json FILE] [--smoke]

The bars, for the largest federation: from the configuration to round 1 at most 20 s of the processor, at most 2 GiB of
memory, and a round that takes no longer than with the smallest one, but for a quarter. They hold for FedAvg the first
time, when the images are hashed against near-duplicates; and for FedAvg and SCAFFOLD, whose sites remember something,
once the hashes are stored.

The images are random, drawn before the clock starts; what is measured begins with the partition. Each run has a
process of its own, whose peak counts the images. Rounds are measured in seconds of the processor, as medians.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossward.data.collection import Collection

ASKED = 20
IMAGES = 8  # of each writer
TESTED = 1000  # images at the server
CLASSES = 62
SIDE = 28
START = 20.0  # seconds
MEMORY = 2 << 30  # bytes
SLOWER = 1.25
METHODS = ("fedavg", "scaffold")


@dataclass(frozen=True)
class Cost:
    """What a federation took."""

    clients: int
    method: str
    hashed: bool  # whether the hashes of the images were stored before
    prepare: float  # seconds of the processor: partition, audit, networks, checks
    describe: float  # and the run directory, until round 1 begins
    round: float  # median
    evaluated_round: float
    end: float
    peak: int  # bytes
    images: int  # bytes of them

    @property
    def start(self) -> float:
        return self.prepare + self.describe


def writers(clients: int) -> Collection:
    """Random images of so many writers, and the server's test set."""
    import torch

    from crossward.data.collection import Collection

    rng = torch.Generator().manual_seed(0)
    count = clients * IMAGES + TESTED
    images = torch.randint(0, 256, (count, SIDE, SIDE, 1), generator=rng, dtype=torch.uint8)
    names = [f"f{number:06d}" for number in range(clients) for _ in range(IMAGES)]
    trained = len(names)
    return Collection(
        name="writers",
        task="classification",
        classes=tuple(f"class-{number:02d}" for number in range(CLASSES)),
        images=images,
        targets=torch.randint(0, CLASSES, (count,), generator=rng),
        ids=tuple(f"{number}" for number in range(count)),
        hashes=tuple(f"{number:016x}" for number in range(count)),
        sites=(*names, *("" for _ in range(TESTED))),
        splits=(*("train" for _ in range(trained)), *("test" for _ in range(TESTED))),
    )


def measure(clients: int, rounds: int, method: str = METHODS[0], *, hashed: bool = False) -> Cost:
    """Run a federation in this process."""
    import time

    from crossward.config.reading import config_from
    from crossward.core.run import Observer, RoundRecord
    from crossward.data.sources.phantom.source import PhantomSettings
    from crossward.runs import lifecycle
    from crossward.runs.build import prepare
    from crossward.runs.run_directory import RunDir

    collection = writers(clients)

    class Writers(PhantomSettings):
        def load(self) -> tuple[Collection, list[str]]:
            return collection, []

    class Clock(Observer):
        """The processor's seconds at the start, and after each round."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def on_start(self, *_: Any) -> None:
            self.times.append(time.process_time())

        def on_round(self, record: RoundRecord) -> None:
            self.times.append(time.process_time())

    config = config_from(
        {
            "method": {"name": method},
            "run": {"rounds": rounds, "participation": min(1.0, ASKED / clients)},
            "train": {"lr": 0.05, "batch_size": 8},
            "engine": {"device": "cpu"},
            "evaluate": {"every": 5},
        }
    ).model_copy(update={"data": Writers()})
    with TemporaryDirectory() as place:
        began = time.process_time()
        prepared = prepare(config)
        ready = time.process_time()
        clock = Clock()
        lifecycle.start(RunDir.create(Path(place) / "run"), prepared, [clock])
        ended = time.process_time()
    taken = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
    plain = sorted(taken[1:4])  # the first pays for what happens once, the fifth is evaluated
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Cost(
        clients,
        method,
        hashed,
        ready - began,
        clock.times[0] - ready,
        plain[len(plain) // 2],
        taken[4] if len(taken) > 4 else taken[-1],
        ended - clock.times[-1],
        peak,
        collection.images.nbytes,
    )


def measure_alone(clients: int, rounds: int, method: str, cache: str, *, hashed: bool) -> Cost:
    """Run a federation in a process of its own, with that folder as the cache."""
    command = [sys.executable, __file__, "--one", str(clients), "--rounds", str(rounds), "--method", method]
    command += ["--hashed"] if hashed else []
    environment = os.environ | {"CROSSWARD_CACHE": cache}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return Cost(**json.loads(output.splitlines()[-1]))


def measure_apart(clients: int, rounds: int) -> list[Cost]:
    """Runs in processes of their own: the first one with an empty cache, then one for each method."""
    runs = ((METHODS[0], False), *((method, True) for method in METHODS))
    with TemporaryDirectory() as cache:
        return [measure_alone(clients, rounds, method, cache, hashed=hashed) for method, hashed in runs]


def verdicts(costs: Sequence[Cost]) -> dict[str, bool]:
    """Of costs that rise by the number of clients."""
    largest = [cost for cost in costs if cost.clients == costs[-1].clients]
    smallest = {(cost.method, cost.hashed): cost for cost in costs if cost.clients == costs[0].clients}
    return {
        "start": all(cost.start <= START for cost in largest),
        "memory": all(cost.peak <= MEMORY for cost in largest),
        "round": all(cost.round <= SLOWER * smallest[cost.method, cost.hashed].round for cost in largest),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--method", default=METHODS[0], help=argparse.SUPPRESS)
    parser.add_argument("--hashed", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="next to no work: does it run?")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(asdict(measure(options.one, options.rounds, options.method, hashed=options.hashed))))
        return
    clients, rounds = ([25, 50], 5) if options.smoke else (sorted(options.clients), options.rounds)
    costs = []
    for count in clients:
        for cost in measure_apart(count, rounds):
            costs.append(cost)
            print(
                f"{cost.clients:,} clients, {cost.method}, {'hashes stored' if cost.hashed else 'first time'}: "
                f"start {cost.start:.1f} s ({cost.prepare:.1f} s before its folder), "
                f"a round {1000 * cost.round:.0f} ms, an evaluated one {1000 * cost.evaluated_round:.0f} ms, "
                f"end {cost.end:.1f} s, "
                f"peak {cost.peak / 2**20:.0f} MiB of which images {cost.images / 2**20:.0f} MiB",
                flush=True,
            )
    met = verdicts(costs)
    print("; ".join(f"{what}: {'met' if good else 'NOT MET'}" for what, good in met.items()))
    if options.json:
        options.json.write_text(json.dumps({"costs": [asdict(cost) for cost in costs], "met": met}, indent=1))


if __name__ == "__main__":
    main()
