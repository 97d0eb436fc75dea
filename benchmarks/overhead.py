"""Overhead: what crossward's engines cost over a bare loop, and next to Flower and pfl on the same work.

    python benchmarks/overhead.py [--only bare pool payload flower pfl] [--repeats 11] [--json FILE] [--smoke]

`--smoke` does next to no work: it shows that the program runs, its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from peers.process import PYTHON, Peer
from peers.work import (
    CLASSES,
    CNN,
    LR,
    MEAN,
    SEED,
    SMOKE_CNN,
    SMOKE_WIDE,
    STD,
    TINY,
    WIDE,
    Work,
    dataset,
    fit,
    normalised,
)
from ratios import Comparison, Lap, Laps, compare, table, take_turns
from torch import Tensor

from crossward.core.engine import Engine
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.data.collection import Collection
from crossward.data.federation import Federation, Split
from crossward.engines.local import LocalEngine
from crossward.engines.pool import PoolEngine, WorkerPool
from crossward.methods.fedavg import FedAvg
from crossward.runs.sites import RunSites
from crossward.tasks import task

SAME = 1e-4  # how far weights may differ after the same work: the order of sums
INSTALL_PEERS = "python3 -m venv .venv-bench && .venv-bench/bin/pip install -r benchmarks/requirements-peers.txt"

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    repeats: int = 11
    smoke: bool = False

    @property
    def cnn(self) -> Work:
        return SMOKE_CNN if self.smoke else CNN

    @property
    def processes(self) -> int:
        """Of the pool, and bare loops side by side: in a smoke test, to start one takes longer than all its work."""
        return 1 if self.smoke else 2


def run_sites(work: Work, tested: bool = False) -> RunSites:
    """The work as a federation; with `tested`, a client's images are its test set, too."""
    images, labels = dataset(work)
    nobody = torch.empty(0, dtype=torch.int64)
    rows = torch.arange(len(labels)).split(work.images)
    ids = tuple(map(str, range(len(labels))))
    collection = Collection("random", "classification", tuple("abcdefgh"[:CLASSES]), images, labels, ids, ids)
    sites = tuple(Split(f"client-{k}", own, nobody, own if tested else nobody) for k, own in enumerate(rows))
    server = Split("server", nobody, nobody, nobody)
    federation = RunSites(
        Federation(collection, sites, server, nobody, {}),
        FedAvg(),
        task("classification", collection.classes),
        work.make,
        Training(batch_size=work.batch, lr=LR),
        seed=SEED,
        mean=(MEAN,) * work.channels,
        std=(STD,) * work.channels,
    )
    federation.share_images()
    return federation


def train(sites: RunSites, engine: Engine, rounds: int, tested: bool = False) -> State:
    """Run some rounds on an engine; the weights after them."""
    weights: State = run(sites, engine, Plan(rounds, SEED, evaluate_every=int(tested))).state["model"]
    return weights


def train_bare(work: Work, rounds: int) -> State:
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


def timed(training: Callable[[], object], rounds: int) -> Lap:
    def lap() -> float:
        began = time.perf_counter()
        training()
        return (time.perf_counter() - began) / rounds

    return lap


def check_same(name: str, theirs: State, ours: State) -> None:
    apart = max(float((theirs[n] - t).abs().max()) for n, t in ours.items())
    if not apart < SAME:
        raise SystemExit(f"{name} did other work: its weights are {apart:.2g} from crossward's")


def compare_with_bare_loop(effort: Effort) -> list[Comparison]:
    rounds = 2
    work = effort.cnn
    sites = run_sites(work)
    normalised(work)
    check_same("the bare loop", train_bare(work, rounds), train(sites, LocalEngine(sites), rounds))  # also warms up
    contestants = {
        "local": timed(lambda: train(sites, LocalEngine(sites), rounds), rounds),
        "bare loop": timed(lambda: train_bare(work, rounds), rounds),
    }
    laps = take_turns(contestants, effort.repeats)
    return [compare("local engine / bare loop, cnn", laps, "local", "bare loop", 1.05)]


def compare_pool_with_local(effort: Effort) -> list[Comparison]:
    rounds = 2
    sites = run_sites(effort.cnn)
    pool = PoolEngine(sites, workers=effort.processes)
    check_same("the pool", train(sites, pool, 1), train(sites, LocalEngine(sites), 1))  # starts the workers
    with ProcessPoolExecutor(effort.processes, mp_context=get_context("spawn")) as loops:
        train_two_bare(loops, effort.cnn, 1)
        contestants = {
            "pool of 2": timed(lambda: train(sites, pool, rounds), rounds),
            "local, 1 thread": timed(lambda: train(sites, LocalEngine(sites), rounds), rounds),
            "local, 2 threads": timed(lambda: train(sites, LocalEngine(sites, threads=2), rounds), rounds),
            "two bare loops": timed(lambda: train_two_bare(loops, effort.cnn, rounds), 2 * rounds),
        }
        laps = take_turns(contestants, effort.repeats)
    pool.close()
    return [
        compare("speed-up of the pool over 1 thread, cnn", laps, "local, 1 thread", "pool of 2", 1.85, at_least=True),
        compare("speed-up of the pool over 2 threads, cnn", laps, "local, 2 threads", "pool of 2", 1.1, at_least=True),
        # 2 / 1.85: the same bar where cores disturb each other, so that no program is twice as fast on two of them
        compare("pool / two bare loops side by side, cnn", laps, "pool of 2", "two bare loops", 1.08),
    ]


def train_two_bare(loops: ProcessPoolExecutor, work: Work, rounds: int) -> None:
    """The bare loop in two processes at once, which share nothing: all that two cores can do."""
    for finished in [loops.submit(train_bare_alone, work, rounds) for _ in range(2)]:
        finished.result()


def train_bare_alone(work: Work, rounds: int) -> None:
    """In a process of its own, whose weights nobody asks for."""
    train_bare(work, rounds)


def processor_time(training: Callable[[], object], rounds: int, workers: WorkerPool | None = None) -> Lap:
    """Seconds of the processors a round, those of worker processes included."""

    def now() -> float:
        others = workers.workers if workers else []
        return time.process_time() + sum(_worker_seconds(worker.process.pid) for worker in others)

    def lap() -> float:
        began = now()
        training()
        return (now() - began) / rounds

    return lap


def _worker_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare_moving_weights(effort: Effort) -> list[Comparison]:
    """What it costs to move 44 MB to each of 8 clients and back: seconds of the processors, of all processes."""
    rounds = 2
    sites = run_sites(SMOKE_WIDE if effort.smoke else WIDE)
    pool = PoolEngine(sites, workers=effort.processes)
    check_same("the pool", train(sites, pool, 1), train(sites, LocalEngine(sites), 1))
    contestants = {
        "pool of 2": processor_time(lambda: train(sites, pool, rounds), rounds, pool.worker_pool),
        "local": processor_time(lambda: train(sites, LocalEngine(sites), rounds), rounds),
    }
    laps = take_turns(contestants, effort.repeats)
    pool.close()
    return [compare("processor time of the pool / local, 44 MB to 8 clients", laps, "pool of 2", "local", 2.0)]


def take_turns_with_peer(
    name: str, script: str, work: Work, effort: Effort, *, warm_up: int, rounds: int, tested: bool = False
) -> Laps:
    """The local engine and a peer in turns, after a check that both learn the same."""
    sites = run_sites(work, tested)
    words = [word for word, wanted in (("evaluate", tested), ("smoke", effort.smoke)) if wanted]
    peer = Peer(script, warm_up, rounds, effort.repeats, *words)
    check_same(name, peer.weights_after_warm_up(), train(sites, LocalEngine(sites), warm_up))
    local = timed(lambda: train(sites, LocalEngine(sites), rounds, tested), rounds)
    laps = take_turns({name: peer.lap, "local": local}, effort.repeats)
    peer.finish()
    return laps


def compare_with_flower(effort: Effort) -> list[Comparison]:
    comparisons = []
    for tested, what in ((False, "train"), (True, "train and evaluate")):
        laps = take_turns_with_peer(
            "Flower on Ray", "flower_ray.py", TINY, effort,
            warm_up=5, rounds=10, tested=tested,  # Ray starts its processes during the first rounds
        )  # fmt: skip
        title = f"Flower on Ray / local engine, tiny, {what}"
        comparisons.append(compare(title, laps, "Flower on Ray", "local", 15, at_least=True))
    return comparisons


def compare_with_pfl(effort: Effort) -> list[Comparison]:
    laps = take_turns_with_peer("pfl", "pfl_fedavg.py", effort.cnn, effort, warm_up=2, rounds=2)
    return [compare("local engine / pfl, cnn", laps, "local", "pfl", 1.0)]


SECTIONS: Mapping[str, Callable[[Effort], list[Comparison]]] = {
    "bare": compare_with_bare_loop,
    "pool": compare_pool_with_local,
    "payload": compare_moving_weights,
    "flower": compare_with_flower,
    "pfl": compare_with_pfl,
}
NEED_PEERS = ("flower", "pfl")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=Effort.repeats)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="next to no work: does it run?")
    options = parser.parse_args(arguments)
    effort = Effort(repeats=1, smoke=True) if options.smoke else Effort(options.repeats)
    absent = [name for name in options.only if name in NEED_PEERS and not PYTHON.exists()]
    comparisons = []
    for name in options.only:
        if name not in absent:
            comparisons += SECTIONS[name](effort)
    if comparisons:
        print(table(comparisons))
    if absent:
        print(f"Left out: {', '.join(absent)}. They need an environment of their own: {INSTALL_PEERS}")
    if options.json:
        options.json.write_text(json.dumps([comparison.document() for comparison in comparisons], indent=1))


if __name__ == "__main__":
    main()
