"""Methods: what a round of one method costs next to a round of a simpler one, on the same net, data and steps.

    python benchmarks/methods.py [--repeats 3] [--only fednpr] [--json FILE]

A lap is a whole cycle of rounds, so that what a method does only now and then is counted with the rest. The methods
take turns within a run and only their ratios count: a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

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


# FedBM costs its share of images more, and 15 % of that for making them and for the generator's training.
FEDBM = tuple(
    Pair(
        f"FedBM / FedCB, {real} real + {made} generated images a step",
        FedBM(tau=12.5, synthetic=made, generator_width=0.25),
        FedCB(tau=12.5),
        1 + 1.15 * made / real,
        real,
        rounds=5,
    )
    for real, made in ((16, 16), (8, 16))
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


@dataclass(frozen=True)
class Row:
    what: str
    ratio: float
    least: float
    most: float
    bar: float
    seconds: tuple[float, float]  # per round, medians, of the method and of the reference


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--repeats", type=int, default=3)
    asked.add_argument("--json", type=Path)
    asked.add_argument("--only", choices=GROUPS)
    options = asked.parse_args()
    rows = []
    for pair in GROUPS[options.only] if options.only else sum(GROUPS.values(), ()):
        rows.append(row := measured(pair, options.repeats))
        verdict = "met" if row.ratio <= row.bar else "NOT MET"
        times = " and ".join(f"{s:.2f} s" for s in row.seconds)
        told = f"{row.ratio:.2f} ({row.least:.2f} to {row.most:.2f}), bar {row.bar:.2f}, {verdict}; {times}"
        print(f"{row.what}: {told}", flush=True)
    if options.only in (None, "fednpr"):
        print(f"Sinkhorn of 10,000 x 4, 3 iterations: {1000 * sinkhorn_seconds():.1f} ms, bar 50 ms")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def sinkhorn_seconds() -> float:
    scores, times = torch.randn(10_000, 4) / 0.05, []
    for _ in range(11):
        began = time.perf_counter()
        sinkhorn(scores, 3)
        times.append(time.perf_counter() - began)
    return median(times)


def measured(pair: Pair, repeats: int) -> Row:
    laps = [lap(pair, method) for method in (pair.method, pair.reference)]
    for one in laps:
        one()  # the first cycle has no generator yet, imports, and fills caches
    times = [[one() for one in (laps if k % 2 else laps[::-1])][:: 1 if k % 2 else -1] for k in range(repeats)]
    ratios = [mine / other for mine, other in times]
    return Row(
        pair.what,
        median(ratios),
        min(ratios),
        max(ratios),
        pair.bar,
        (median(mine for mine, _ in times), median(other for _, other in times)),
    )


def lap(pair: Pair, method: Method) -> Callable[[], float]:
    """Goes on with one run by a cycle at each call; tells the seconds of a round."""
    run_sites = made(pair, method)
    engine = LocalEngine(run_sites)
    progress: list[Progress | None] = [None]

    def go_on() -> float:
        done = progress[0].done if progress[0] else 0
        began = time.perf_counter()
        progress[0] = run(run_sites, engine, Plan(done + pair.rounds, evaluate_every=0), progress=progress[0])
        return (time.perf_counter() - began) / pair.rounds

    return go_on


def made(pair: Pair, method: Method) -> RunSites:
    rng = torch.Generator().manual_seed(0)
    n, mine = pair.clients * pair.images, pair.images
    images = torch.randint(256, (n, pair.size, pair.size, 3), generator=rng).to(torch.uint8)
    ids, what = tuple(map(str, range(n))), NETS[pair.net[0]].task
    targets = torch.arange(n) % CLASSES if what == "classification" else (images[..., 0] // 32)
    collection = Collection("random", what, NAMES, images, targets, ids, ids)
    none = torch.zeros(0, dtype=torch.int64)
    sites = [Split(f"site-{k}", torch.arange(k * mine, (k + 1) * mine), none, none) for k in range(pair.clients)]
    federation = Federation(collection, tuple(sites), Split("server", none, none, none), none, {})
    embeddings = torch.nn.functional.normalize(torch.randn(CLASSES, PROMPTS, DIM, generator=rng), dim=2)
    name, options = pair.net
    return RunSites(
        federation, method, task(what, NAMES), NetPlan(name, 3, CLASSES, pair.size, options),
        Training(epochs=pair.epochs, batch_size=pair.batch_size, momentum=0.9),
        mean=(0.5,) * 3, std=(0.25,) * 3, text=Concepts.of(embeddings),
    )  # fmt: skip


if __name__ == "__main__":
    main()
