"""Memory: the peak resident set of a thousand clients on the local engine, one process per method.

    python benchmarks/memory.py [--json FILE]

The parent imports neither torch nor crossward: a child's peak begins at what its parent held when it was started.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

METHODS = ("fedavg", "scaffold")
CLIENTS, IMAGES, ROUNDS = 1000, 32, 3
BAR = 1.5  # GiB


def peak() -> float:
    """GiB that this process held at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def train(name: str) -> dict[str, float]:
    """All clients in every round, on the blood phantom."""
    from crossward.core.run import Plan, run
    from crossward.core.training import Training
    from crossward.data.federation import federate
    from crossward.data.sources.phantom.source import blood
    from crossward.engines.local import LocalEngine
    from crossward.methods import method_class
    from crossward.runs.architectures import NetPlan
    from crossward.runs.sites import RunSites
    from crossward.tasks import task

    federation = federate(blood(sites=CLIENTS, train=IMAGES, val=0, test=0, global_test=0))
    net = NetPlan("cnn", channels=3, classes=federation.num_classes, size=28)
    training = Training(batch_size=IMAGES)
    sites = RunSites(federation, method_class(name)(), task("classification", federation.classes), net, training)
    before, began, engine = peak(), time.perf_counter(), LocalEngine(sites)
    done = run(sites, engine, Plan(ROUNDS, evaluate_every=0)).done
    seconds = (time.perf_counter() - began) / done
    engine.close()
    return {"data": before, "peak": peak(), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--method", choices=METHODS, help="measure this one, in this process")
    asked = parser.parse_args()
    if asked.method:
        print(json.dumps(train(asked.method)))
        return
    measured = {}
    print(f"{CLIENTS} clients of about {IMAGES} images, cnn, {ROUNDS} rounds, all clients in each; bar: <= {BAR} GiB")
    for name in METHODS:
        told = subprocess.run([sys.executable, __file__, "--method", name], stdout=subprocess.PIPE, check=True).stdout
        measured[name] = json.loads(told) | {"bar": BAR}
        measured[name]["met"] = measured[name]["peak"] <= BAR
        print("{0:9} peak {peak:.2f} GiB, of which {data:.2f} before round 1; {seconds:.1f} s a round; {1}".format(
            name, "met" if measured[name]["met"] else "NOT MET", **measured[name]))  # fmt: skip
    if asked.json:
        asked.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
