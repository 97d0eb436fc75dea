"""Methods: what a round of one method costs next to a round of a simpler one, on the same net, data and steps.

    python benchmarks/methods.py [--repeats 3] [--only fednpr] [--json FILE] [--smoke]

A lap is a whole cycle of rounds, so that what a method does only now and then is counted with the rest. `--smoke` does
next to no work: it shows that the program runs, its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from ratios import Comparison, Lap, compare, take_turns

from crossward.core.concepts import Concepts
from crossward.core.method import Method
from crossward.core.run import Plan, Progress, run
from crossward.core.training import Training
from crossward.data.collection import Collection
from crossward.data.federation import Federation, Split
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedbm.method import FedBM
from crossward.methods.fedcb import FedCB
from crossward.methods.fedcd import FedCD
from crossward.methods.feddyn import FedDyn
from crossward.methods.fednpr import FedNPR
from crossward.methods.local import Local
from crossward.methods.mh_pflgb.method import MHpFLGB
from crossward.methods.moon import Moon
from crossward.methods.scaffold import Scaffold
from crossward.nets import NETS
from crossward.runs.architectures import NetPlan
from crossward.runs.sites import RunSites
from crossward.statistics import sinkhorn
from crossward.tasks import task

CLASSES, PROMPTS, DIM = 8, 24, 384
NAMES = tuple(f"class {k}" for k in range(CLASSES))
NARROW: tuple[str, dict[str, Any]] = ("resnet18", {"width": 0.25, "stem": "imagenet"})


@dataclass(frozen=True)
class Pair:
    what: str
    method: Method
    reference: Method
    bar: float
    batch_size: int = 32
    epochs: int = 1
    rounds: int = 2  # of a lap: a whole cycle
    net: tuple[str, dict[str, Any]] = NARROW
    clients: int = 6
    images: int = 333  # of a client, as in studies/pbc_small.toml
    size: int = 28  # pixels

    def smallest(self) -> Pair:
        """One client, one round a lap, two steps a round; the generator is trained in every round, and hardly."""
        method = replace(self.method, cycle=1, iterations=2) if isinstance(self.method, FedBM) else self.method
        return replace(self, method=method, clients=1, images=8, batch_size=4, epochs=1, rounds=1)


# FedBM costs its share of images more, and 15 % of that for making them and for the generator's training.
FEDBM = tuple(
    Pair(
        f"FedBM / FedCB, {real} real + {generated} generated images a step",
        FedBM(tau=12.5, synthetic=generated, generator_width=0.25),
        FedCB(tau=12.5),
        1 + 1.15 * generated / real,
        real,
        rounds=5,
    )
    for real, generated in ((16, 16), (8, 16))
)
# FedNPR without its regulariser is FedAvg with the balanced softmax.
FEDNPR = (
    Pair("npr on cnn", FedNPR(), FedNPR(weight=0.0), 1.25, net=("cnn", {})),
    Pair("npr on a narrow resnet18", FedNPR(), FedNPR(weight=0.0), 1.25),
    Pair(
        "npr on efficientnet-b0 at 64 pixels", FedNPR(), FedNPR(weight=0.0), 1.15,
        batch_size=64, rounds=1, net=("efficientnet-b0", {}), clients=1, images=256, size=64,
    ),
)  # fmt: skip
# The projection is the net's, so that all have the same.
PROJECTED: tuple[str, dict[str, Any]] = ("cnn", {"projection": 256})
DRIFT = (
    Pair("FedCD / FedAvg on cnn, ten epochs as in the paper", FedCD(projection=0), FedAvg(), 1.6, 64, 10, 1, PROJECTED),
    Pair("FedCD / FedAvg on cnn, one epoch", FedCD(projection=0), FedAvg(), 1.6, 64, net=PROJECTED),
    Pair("FedCD / FedAvg on a narrow resnet18, one epoch", FedCD(projection=0), FedAvg(), 1.6, 64),
    Pair("SCAFFOLD / FedAvg on cnn", Scaffold(), FedAvg(), 1.15, 64, net=PROJECTED),
    Pair("FedDyn / FedAvg on cnn", FedDyn(), FedAvg(), 1.15, 64, net=PROJECTED),
    Pair("MOON / FedAvg on cnn", Moon(projection=0), FedAvg(), 2.2, 64, net=PROJECTED),
)
# Five epochs as in the paper, of which MH-pFLGB gives one to the bypass.
BYPASS = (
    Pair("MH-pFLGB / local on a narrow resnet18", MHpFLGB(), Local(), 1.35, 8, 5, 1, clients=2),
    Pair("MH-pFLGB / local on mobilenet", MHpFLGB(), Local(), 1.35, 8, 5, 1, ("mobilenet", {"width": 0.5}), 1, 128),
    Pair(
        "MH-pFLGB / local on unet at 64 pixels", MHpFLGB(), Local(), 1.35, 8, 5, 1,
        net=("unet", {}), clients=1, images=64, size=64,
    ),
)  # fmt: skip
GROUPS = {"fedbm": FEDBM, "fednpr": FEDNPR, "fedcd": DRIFT, "mh-pflgb": BYPASS}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=GROUPS)
    parser.add_argument("--smoke", action="store_true", help="next to no work: does it run?")
    options = parser.parse_args(arguments)
    repeats = 1 if options.smoke else options.repeats
    comparisons = []
    for pair in GROUPS[options.only] if options.only else sum(GROUPS.values(), ()):
        comparison = measure(pair.smallest() if options.smoke else pair, repeats)
        comparisons.append(comparison)
        print(line(comparison), flush=True)
    if options.only in (None, "fednpr"):
        print(f"Sinkhorn of 10,000 x 4, 3 iterations: {1000 * sinkhorn_seconds():.1f} ms, bar 50 ms")
    if options.json:
        options.json.write_text(json.dumps([comparison.document() for comparison in comparisons], indent=1) + "\n")


def line(comparison: Comparison) -> str:
    measured = f"{comparison.ratio:.2f} ({comparison.least:.2f} to {comparison.most:.2f})"
    times = " and ".join(f"{seconds:.2f} s" for seconds in comparison.seconds.values())
    return f"{comparison.what}: {measured}, bar {comparison.bar:.2f}, {comparison.verdict}; {times}"


def sinkhorn_seconds() -> float:
    scores = torch.randn(10_000, 4) / 0.05
    times = []
    for _ in range(11):
        began = time.perf_counter()
        sinkhorn(scores, 3)
        times.append(time.perf_counter() - began)
    return median(times)


def measure(pair: Pair, repeats: int) -> Comparison:
    contestants = {"method": cycle(pair, pair.method), "reference": cycle(pair, pair.reference)}
    for run_cycle in contestants.values():
        run_cycle()  # the first cycle has no generator yet, imports, and fills caches
    return compare(pair.what, take_turns(contestants, repeats), "method", "reference", pair.bar)


def cycle(pair: Pair, method: Method) -> Lap:
    """Goes on with one run by a cycle of rounds at each call."""
    run_sites = sites_of(pair, method)
    engine = LocalEngine(run_sites)
    progress: Progress | None = None

    def run_cycle() -> float:
        nonlocal progress
        done = progress.done if progress else 0
        began = time.perf_counter()
        progress = run(run_sites, engine, Plan(done + pair.rounds, evaluate_every=0), progress=progress)
        return (time.perf_counter() - began) / pair.rounds

    return run_cycle


def sites_of(pair: Pair, method: Method) -> RunSites:
    """Clients of random images."""
    rng = torch.Generator().manual_seed(0)
    n = pair.clients * pair.images
    images = torch.randint(256, (n, pair.size, pair.size, 3), generator=rng).to(torch.uint8)
    name, options = pair.net
    task_name = NETS[name].task
    targets = torch.arange(n) % CLASSES if task_name == "classification" else images[..., 0] // 32
    ids = tuple(map(str, range(n)))
    collection = Collection("random", task_name, NAMES, images, targets, ids, ids)
    nobody = torch.zeros(0, dtype=torch.int64)
    rows = torch.arange(n).split(pair.images)
    sites = tuple(Split(f"site-{k}", own, nobody, nobody) for k, own in enumerate(rows))
    embeddings = torch.nn.functional.normalize(torch.randn(CLASSES, PROMPTS, DIM, generator=rng), dim=2)
    return RunSites(
        Federation(collection, sites, Split("server", nobody, nobody, nobody), nobody, {}),
        method,
        task(task_name, NAMES),
        NetPlan(name, 3, CLASSES, pair.size, options),
        Training(epochs=pair.epochs, batch_size=pair.batch_size, momentum=0.9),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        text=Concepts.of(embeddings),
    )


if __name__ == "__main__":
    main()
