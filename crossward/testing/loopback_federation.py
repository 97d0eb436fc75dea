"""A federation in one process: sites with a service, a policy and a memory each, on a grid without a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from crossward.core.disclosure import DisclosureKind
from crossward.core.tree import Tree
from crossward.data.federation import NO_ROWS, Split
from crossward.hospitals.flower.client_app import create_client_app
from crossward.hospitals.flower.engine import VERSION_KEY, FlowerEngine
from crossward.hospitals.flower.loopback_grid import LoopbackGrid
from crossward.hospitals.flower.messenger import Messenger
from crossward.hospitals.flower.roster import Roster
from crossward.hospitals.memory import SiteMemory
from crossward.hospitals.policy import Policy
from crossward.hospitals.service import Hospital, Service
from crossward.runs.sites import RunSites

RUN = "rehearsal"
ALLOW_ALL = Policy(
    allow=tuple(kind for kind in DisclosureKind if kind != DisclosureKind.IMAGES),
    min_class_count=0,
    min_public_images=0,
)


@dataclass
class FakeClock:
    """A clock that moves only when somebody sleeps. Code that polls it without sleeping fails."""

    now: float = 0.0
    looks: int = 0

    def __call__(self) -> float:
        self.looks += 1
        assert self.looks < 10_000, "nobody sleeps"
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.looks = 0


def with_one_site(run_sites: RunSites, site: int) -> RunSites:
    """What the site itself has: the rows of no other site."""
    sites = [
        split if number == site else Split(split.name, NO_ROWS, NO_ROWS, NO_ROWS)
        for number, split in enumerate(run_sites.federation.sites)
    ]
    return replace(run_sites, federation=replace(run_sites.federation, sites=tuple(sites)))


def without_images(run_sites: RunSites) -> RunSites:
    """What the coordinator has: the rows of no site."""
    sites = tuple(Split(split.name, NO_ROWS, NO_ROWS, NO_ROWS) for split in run_sites.federation.sites)
    return replace(run_sites, federation=replace(run_sites.federation, sites=sites), remote=True)


def create_service(run_sites: RunSites, site: int, folder: Path, policy: Policy = ALLOW_ALL) -> Service:
    """The service of one site; `folder` holds a folder for each."""

    def build(hospital: Hospital, opening: Mapping[str, Any]) -> RunSites:
        return with_one_site(run_sites, site)

    return Service(Hospital(run_sites.name(site), folder / run_sites.name(site), {}, policy), build)


def create_grid(services: Sequence[Service]) -> LoopbackGrid:
    """A grid whose node k is the k-th site."""
    app = create_client_app(lambda request, context: services[context.node_id].answer(request))
    return LoopbackGrid(app, {node: {} for node in range(len(services))})


def create_roster(run_sites: RunSites, grid: LoopbackGrid, **messenger_options: Any) -> Roster:
    """A roster of all sites. `messenger_options` are deadlines other than the usual."""
    clock = FakeClock()
    messenger = Messenger(grid, clock=clock, sleep=clock.sleep, **messenger_options)
    names = tuple(run_sites.name(site) for site in run_sites.ids)
    opening = {"run": RUN, "sites": list(names), "method": type(run_sites.method).__name__.lower()}
    return Roster(names, messenger, opening)


@contextmanager
def loopback_federation(
    run_sites: RunSites, **messenger_options: Any
) -> Iterator[tuple[RunSites, FlowerEngine, list[Service]]]:
    """The coordinator's part of a run, an engine that reaches the sites, and the services of the sites."""
    torch.set_num_threads(1)  # as many as the local engine has: sums of several would differ in their last bits
    with TemporaryDirectory(prefix="crossward-") as folder:
        services = [create_service(run_sites, site, Path(folder)) for site in run_sites.ids]
        coordinator = without_images(run_sites)
        roster = create_roster(coordinator, create_grid(services), **messenger_options)
        yield coordinator, FlowerEngine(coordinator, roster, RUN), services


def site_memories(engine: FlowerEngine, services: Sequence[Service]) -> dict[str, Tree]:
    """What the sites remember, by site: the versions that count."""
    memories = {}
    for site, receipt in engine.memory.items():
        hospital = services[site].hospital
        memory = SiteMemory(hospital.folder / "memory" / RUN, hospital.key)
        memories[str(site)] = memory.load(str(receipt[VERSION_KEY]))
    return memories
