"""Memory: the peak resident set of a thousand clients on the local engine, one process per method.

    python benchmarks/memory.py [--json FILE] [--smoke]

The parent imports neither torch nor crossward: a child's peak begins at what its parent held when it was started.
`--smoke` trains ten clients with FedAvg for one round: it shows that the program runs, its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

METHODS = ("fedavg", "scaffold")
CLIENTS, ROUNDS = 1000, 3
SMOKE_CLIENTS, SMOKE_ROUNDS = 10, 1
IMAGES = 32  # of a client
BAR = 1.5  # GiB


def peak() -> float:
    """GiB that this process held at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(name: str, clients: int, rounds: int) -> dict[str, float]:
    """Train all clients in every round, on the blood phantom, in this process."""
    from crossward.core.run import Plan, run
    from crossward.core.training import Training
    from crossward.data.federate import federate
    from crossward.data.sources.phantom.source import blood
    from crossward.engines.local import LocalEngine
    from crossward.methods import method_class
    from crossward.runs.architectures import NetPlan
    from crossward.runs.sites import RunSites
    from crossward.tasks import task

    federation = federate(blood(sites=clients, train=IMAGES, val=0, test=0, global_test=0))
    net = NetPlan("cnn", channels=3, classes=federation.num_classes, size=28)
    training = Training(batch_size=IMAGES)
    sites = RunSites(federation, method_class(name)(), task("classification", federation.classes), net, training)
    before = peak()
    began = time.perf_counter()
    engine = LocalEngine(sites)
    done = run(sites, engine, Plan(rounds, evaluate_every=0)).done
    seconds = (time.perf_counter() - began) / done
    engine.close()
    return {"data": before, "peak": peak(), "seconds": seconds}


def measure_in_child(name: str, smoke: bool) -> dict[str, float | bool]:
    command = [sys.executable, __file__, "--method", name, *(["--smoke"] if smoke else [])]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    measured: dict[str, float | bool] = json.loads(output)
    return measured | {"bar": BAR, "met": measured["peak"] <= BAR}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--method", choices=METHODS, help="measure this one, in this process")
    parser.add_argument("--smoke", action="store_true", help="next to no work: does it run?")
    options = parser.parse_args(arguments)
    clients, rounds = (SMOKE_CLIENTS, SMOKE_ROUNDS) if options.smoke else (CLIENTS, ROUNDS)
    if options.method:
        print(json.dumps(measure(options.method, clients, rounds)))
        return
    print(f"{clients} clients of about {IMAGES} images, cnn, rounds: {rounds}, all clients in each; bar: <= {BAR} GiB")
    measured = {}
    for name in METHODS[:1] if options.smoke else METHODS:
        measured[name] = measure_in_child(name, options.smoke)
        line = "{name:9} peak {peak:.2f} GiB, of which {data:.2f} before round 1; {seconds:.1f} s a round; {verdict}"
        print(line.format(name=name, verdict="met" if measured[name]["met"] else "NOT MET", **measured[name]))
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
