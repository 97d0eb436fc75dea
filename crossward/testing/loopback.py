"""Loopback: a federation of sites with services, policies and memories of their own, on a grid without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from crossward.core.disclosure import Kind
from crossward.core.tree import Tree
from crossward.data.federation import NOBODY, Split
from crossward.deployment.memory import Memory
from crossward.deployment.policy import Policy
from crossward.deployment.service import Hospital, Service
from crossward.engines.flower.client import client_app
from crossward.engines.flower.engine import RECEIPT, FlowerEngine
from crossward.engines.flower.loopback import LoopbackGrid
from crossward.engines.flower.post import Post
from crossward.engines.flower.roster import Roster
from crossward.experiment.hospitals import Hospitals

RUN = "rehearsal"
OPEN_HANDED = Policy(allow=tuple(kind for kind in Kind if kind != Kind.IMAGES))
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


def alone(hospitals: Hospitals, site: int) -> Hospitals:
    """As the site itself has it: nobody else's rows."""
    kept = hospitals.federation.sites[site]
    sites = [kept if i == site else Split(s.name, NOBODY, NOBODY, NOBODY)
             for i, s in enumerate(hospitals.federation.sites)]  # fmt: skip
    return replace(hospitals, federation=replace(hospitals.federation, sites=tuple(sites)))


def hollow(hospitals: Hospitals) -> Hospitals:
    """As the coordinator has them: nobody's rows."""
    sites = tuple(Split(s.name, NOBODY, NOBODY, NOBODY) for s in hospitals.federation.sites)
    return replace(hospitals, federation=replace(hospitals.federation, sites=sites), away=True)


def service(hospitals: Hospitals, site: int, folder: Path, policy: Policy = OPEN_HANDED) -> Service:
    def opened(hospital: Hospital, asked: Mapping[str, Any]) -> Hospitals:
        return alone(hospitals, site)

    return Service(Hospital(hospitals.name(site), folder / hospitals.name(site), {}, policy), opened)


def grid(services: Sequence[Service]) -> LoopbackGrid:
    """Node k is the k-th site."""
    app = client_app(lambda asked, context: services[context.node_id].answer(asked))
    return LoopbackGrid(app, {node: {} for node in range(len(services))})


def roster(hospitals: Hospitals, at: LoopbackGrid, **post: Any) -> Roster:
    """`post`: deadlines other than the usual."""
    clock = Clock()
    names = tuple(hospitals.name(i) for i in hospitals.ids)
    opening = {"run": RUN, "sites": list(names), "method": type(hospitals.method).__name__.lower()}
    return Roster(names, Post(at, clock=clock, sleep=clock.sleep, **post), opening)


@contextmanager
def federated(hospitals: Hospitals, **post: Any) -> Iterator[tuple[Hospitals, FlowerEngine, list[Service]]]:
    """The coordinator's half of these hospitals, an engine that reaches their own halves, and those."""
    torch.set_num_threads(1)  # as many as the local engine has: sums of several would differ in their last bits
    with TemporaryDirectory(prefix="crossward-") as folder:
        services = [service(hospitals, site, Path(folder)) for site in hospitals.ids]
        center = hollow(hospitals)
        yield center, FlowerEngine(center, roster(center, grid(services), **post), RUN), services


def memories(engine: FlowerEngine, services: Sequence[Service]) -> dict[str, Tree]:
    """What the sites hold of the versions that count, by site."""
    told = {}
    for site, receipt in engine.memory.items():
        memory = Memory(services[site].hospital.folder / "memory" / RUN, services[site].hospital.key)
        told[str(site)] = memory.load(str(receipt[RECEIPT]))
    return told
