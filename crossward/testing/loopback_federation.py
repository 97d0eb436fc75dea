"""Loopback: a federation of sites with services, policies and memories of their own, on a grid without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from crossward.core.disclosure import DisclosureKind
from crossward.core.tree import Tree
from crossward.data.federation import NOBODY, Split
from crossward.hospitals.flower.client_app import client_app
from crossward.hospitals.flower.engine import RECEIPT, FlowerEngine
from crossward.hospitals.flower.loopback_grid import LoopbackGrid
from crossward.hospitals.flower.messenger import Post
from crossward.hospitals.flower.roster import Roster
from crossward.hospitals.memory import Memory
from crossward.hospitals.policy import Policy
from crossward.hospitals.service import Hospital, Service
from crossward.runs.sites import RunSites

RUN = "rehearsal"
OPEN_HANDED = Policy(allow=tuple(kind for kind in DisclosureKind if kind != DisclosureKind.IMAGES))
Answer = Callable[[int], Service]


@dataclass
class Clock:
    """Time that passes only when somebody sleeps. Whoever looks at it over and over would wait for ever."""

    now: float = 0.0
    looks: int = 0

    def __call__(self) -> float:
        self.looks += 1
        assert self.looks < 10_000, "nobody sleeps"
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now, self.looks = self.now + seconds, 0


def alone(run_sites: RunSites, site: int) -> RunSites:
    """As the site itself has it: nobody else's rows."""
    kept = run_sites.federation.sites[site]
    sites = [kept if i == site else Split(s.name, NOBODY, NOBODY, NOBODY)
             for i, s in enumerate(run_sites.federation.sites)]  # fmt: skip
    return replace(run_sites, federation=replace(run_sites.federation, sites=tuple(sites)))


def hollow(run_sites: RunSites) -> RunSites:
    """As the coordinator has them: nobody's rows."""
    sites = tuple(Split(s.name, NOBODY, NOBODY, NOBODY) for s in run_sites.federation.sites)
    return replace(run_sites, federation=replace(run_sites.federation, sites=sites), away=True)


def service(run_sites: RunSites, site: int, folder: Path, policy: Policy = OPEN_HANDED) -> Service:
    def opened(hospital: Hospital, asked: Mapping[str, Any]) -> RunSites:
        return alone(run_sites, site)

    return Service(Hospital(run_sites.name(site), folder / run_sites.name(site), {}, policy), opened)


def grid(services: Sequence[Service]) -> LoopbackGrid:
    """Node k is the k-th site."""
    app = client_app(lambda asked, context: services[context.node_id].answer(asked))
    return LoopbackGrid(app, {node: {} for node in range(len(services))})


def roster(run_sites: RunSites, at: LoopbackGrid, **post: Any) -> Roster:
    """`post`: deadlines other than the usual."""
    clock = Clock()
    names = tuple(run_sites.name(i) for i in run_sites.ids)
    opening = {"run": RUN, "sites": list(names), "method": type(run_sites.method).__name__.lower()}
    return Roster(names, Post(at, clock=clock, sleep=clock.sleep, **post), opening)


@contextmanager
def federated(run_sites: RunSites, **post: Any) -> Iterator[tuple[RunSites, FlowerEngine, list[Service]]]:
    """The coordinator's half of these hospitals, an engine that reaches their own halves, and those."""
    torch.set_num_threads(1)  # as many as the local engine has: sums of several would differ in their last bits
    with TemporaryDirectory(prefix="crossward-") as folder:
        services = [service(run_sites, site, Path(folder)) for site in run_sites.ids]
        center = hollow(run_sites)
        yield center, FlowerEngine(center, roster(center, grid(services), **post), RUN), services


def memories(engine: FlowerEngine, services: Sequence[Service]) -> dict[str, Tree]:
    """What the sites hold of the versions that count, by site."""
    told = {}
    for site, receipt in engine.memory.items():
        memory = Memory(services[site].hospital.folder / "memory" / RUN, services[site].hospital.key)
        told[str(site)] = memory.load(str(receipt[RECEIPT]))
    return told
