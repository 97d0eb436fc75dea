"""Overhead: what crossward's engines cost over a bare loop, and next to Flower and pfl on the same work.

    python benchmarks/overhead.py [--only bare pool flower pfl] [--repeats 11] [--json FILE]

Contestants take turns within a run and only their ratios count: a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from peers.process import PYTHON, Peer
from peers.work import CLASSES, CNN, LR, MEAN, SEED, STD, TINY, Work, dataset, fit, normalised
from torch import Tensor

from crossward.core.engine import Engine
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.data.collection import Collection
from crossward.data.federation import Federation, Split
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine
from crossward.methods.fedavg import FedAvg
from crossward.runs.sites import RunSites
from crossward.tasks import task

SAME = 1e-4  # how far weights may differ after the same work: the order of sums

Lap = Callable[[], float]  # does some rounds, tells the seconds per round
Laps = Mapping[str, list[float]]
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Row:
    what: str
    ratio: float
    least: float  # of all repeats
    most: float
    bar: float
    at_least: bool  # whether the bar is a lower bound
    seconds: dict[str, float]  # per round, medians

    @property
    def met(self) -> bool:
        return self.ratio >= self.bar if self.at_least else self.ratio <= self.bar

    def cells(self) -> tuple[str, ...]:
        times = ", ".join(f"{name} {1000 * s:.1f} ms" for name, s in self.seconds.items())
        measured = f"{self.ratio:.2f} ({self.least:.2f} to {self.most:.2f})"
        bar = f"{'>=' if self.at_least else '<='} {self.bar}"
        return self.what, measured, bar, "met" if self.met else "NOT MET", times


def take_turns(contestants: Mapping[str, Lap], repeats: int) -> Laps:
    """Seconds per round of each contestant in each repeat; who goes first changes from repeat to repeat."""
    names, laps = list(contestants), {name: list[float]() for name in contestants}
    for repeat in range(repeats):
        for k in range(len(names)):
            name = names[(repeat + k) % len(names)]
            laps[name].append(contestants[name]())
    return laps


def compare(what: str, laps: Laps, over: str, under: str, bar: float, at_least: bool = False) -> Row:
    """The ratio of two contestants, repeat by repeat."""
    ratios = [a / b for a, b in zip(laps[over], laps[under], strict=True)]
    seconds = {name: median(laps[name]) for name in (over, under)}
    return Row(what, median(ratios), min(ratios), max(ratios), bar, at_least, seconds)


def run_sites(work: Work, tested: bool = False) -> RunSites:
    """The work as a federation; with `tested`, a client's images are its test set, too."""
    images, labels = dataset(work)
    nobody, rows = torch.empty(0, dtype=torch.int64), torch.arange(len(labels)).split(work.images)
    ids = tuple(map(str, range(len(labels))))
    collection = Collection("random", "classification", tuple("abcdefgh"[:CLASSES]), images, labels, ids, ids)
    sites = tuple(Split(f"client-{k}", own, nobody, own if tested else nobody) for k, own in enumerate(rows))
    server = Split("server", nobody, nobody, nobody)
    made = RunSites(
        Federation(collection, sites, server, nobody, {}),
        FedAvg(),
        task("classification", collection.classes),
        work.make,
        Training(batch_size=work.batch, lr=LR),
        seed=SEED,
        mean=(MEAN,) * work.channels,
        std=(STD,) * work.channels,
    )
    made.share_images()
    return made


def trained(sites: RunSites, engine: Engine, rounds: int, tested: bool = False) -> State:
    weights: State = run(sites, engine, Plan(rounds, SEED, evaluate_every=int(tested))).state["model"]
    return weights


def bare(work: Work, rounds: int) -> State:
    """FedAvg as one would write it by hand."""
    torch.set_num_threads(1)
    net = work.net()
    model = {name: t.clone() for name, t in net.state_dict().items()}
    for round in range(rounds):
        total = {name: torch.zeros_like(t) for name, t in model.items()}
        for client in range(work.clients):
            net.load_state_dict(model)
            fit(work, net, round, client)
            for name, t in net.state_dict().items():
                total[name].add_(t, alpha=1 / work.clients)
        model = total
    return model


def lap(train: Callable[[], object], rounds: int) -> Lap:
    def timed() -> float:
        began = time.perf_counter()
        train()
        return (time.perf_counter() - began) / rounds

    return timed


def check_same(name: str, theirs: State, ours: State) -> None:
    apart = max(float((theirs[n] - t).abs().max()) for n, t in ours.items())
    if not apart < SAME:
        raise SystemExit(f"{name} did other work: its weights are {apart:.2g} from crossward's")


def over_bare(repeats: int) -> list[Row]:
    rounds, sites = 2, run_sites(CNN)
    normalised(CNN)
    check_same("the bare loop", bare(CNN, rounds), trained(sites, LocalEngine(sites), rounds))  # also warms up
    local = lap(lambda: trained(sites, LocalEngine(sites), rounds), rounds)
    laps = take_turns({"local": local, "bare loop": lap(lambda: bare(CNN, rounds), rounds)}, repeats)
    return [compare("local engine / bare loop, cnn", laps, "local", "bare loop", 1.05)]


def of_pool(repeats: int) -> list[Row]:
    rounds, sites = 2, run_sites(CNN)
    pool = PoolEngine(sites, workers=2)
    check_same("the pool", trained(sites, pool, 1), trained(sites, LocalEngine(sites), 1))  # starts the workers
    contestants = {
        "pool of 2": lap(lambda: trained(sites, pool, rounds), rounds),
        "local, 1 thread": lap(lambda: trained(sites, LocalEngine(sites), rounds), rounds),
        "local, 2 threads": lap(lambda: trained(sites, LocalEngine(sites, threads=2), rounds), rounds),
    }
    laps = take_turns(contestants, repeats)
    pool.close()
    return [
        compare("speed-up of the pool over 1 thread, cnn", laps, "local, 1 thread", "pool of 2", 1.7, at_least=True),
        compare("speed-up of the pool over 2 threads, cnn", laps, "local, 2 threads", "pool of 2", 1.1, at_least=True),
    ]


def beside(name: str, script: str, work: Work, warm_up: int, rounds: int, repeats: int, tested: bool = False) -> Laps:
    """The local engine and a peer in turns, after a check that both learn the same."""
    sites = run_sites(work, tested)
    peer = Peer(script, warm_up, rounds, repeats, *(["evaluate"] if tested else []))
    check_same(name, peer.learnt(), trained(sites, LocalEngine(sites), warm_up))
    local = lap(lambda: trained(sites, LocalEngine(sites), rounds, tested), rounds)
    laps = take_turns({name: peer.lap, "local": local}, repeats)
    peer.finish()
    return laps


def against_flower(repeats: int) -> list[Row]:
    # Ray starts its processes during the first rounds
    rows = []
    for tested, what in ((False, "train"), (True, "train and evaluate")):
        laps = beside("Flower on Ray", "flower_ray.py", TINY, 5, 10, repeats, tested)
        row = f"Flower on Ray / local engine, tiny, {what}"
        rows.append(compare(row, laps, "Flower on Ray", "local", 15, at_least=True))
    return rows


def against_pfl(repeats: int) -> list[Row]:
    laps = beside("pfl", "pfl_fedavg.py", CNN, warm_up=2, rounds=2, repeats=repeats)
    return [compare("local engine / pfl, cnn", laps, "local", "pfl", 1.0)]


def table(rows: Iterable[Row]) -> str:
    lines = [("what", "measured", "bar", "", "a round takes"), *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)


SECTIONS: Mapping[str, Callable[[int], list[Row]]] = {
    "bare": over_bare, "pool": of_pool, "flower": against_flower, "pfl": against_pfl,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    absent = [name for name in asked.only if name in ("flower", "pfl") and not PYTHON.exists()]
    rows = [row for name in asked.only if name not in absent for row in SECTIONS[name](asked.repeats)]
    if rows:
        print(table(rows))
    if absent:
        print(f"Left out: {', '.join(absent)}. They need the environment .venv-bench, see benchmarks/README.md.")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) | {"met": row.met} for row in rows], indent=1))


if __name__ == "__main__":
    main()
