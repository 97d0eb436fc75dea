"""A run in Flower's simulation: every site with a service, a policy and a memory of its own, in Ray's workers."""

from __future__ import annotations

import os
from functools import cache, partial
from pathlib import Path

from crossward.core.disclosure import Kind
from crossward.deployment.coordinator import Terms, conduct, founded, new_id
from crossward.deployment.policy import Policy
from crossward.deployment.processes import QUIET
from crossward.deployment.service import Hospital, Service
from crossward.engines.flower.parcel import Parcel
from crossward.experiment.api import folder_for
from crossward.experiment.build import prepare
from crossward.experiment.config import Config
from crossward.experiment.load import read
from crossward.experiment.result import Result, load
from crossward.experiment.rundir import TERMS, RunDir

EVERYTHING = Policy(allow=tuple(kind for kind in Kind if kind != Kind.IMAGES))  # one machine, one owner


def simulate(config: Config) -> Result:
    """Run a configuration to its end by Flower on Ray; the result is that of the other engines, to the bit."""
    os.environ.update(QUIET)  # before flwr is imported, and for Ray's workers
    from crossward.engines.flower.simulation import simulate as on_ray

    sites = tuple(site.name for site in prepare(config).federation.sites)
    folder = folder_for(config)
    founded(folder, config, Terms(new_id(), "simulation", sites, own_data=True))
    on_ray(partial(conduct, folder), partial(answered, folder), len(sites), config.engine.workers)
    return load(folder)


def answered(folder: Path, site: int, asked: Parcel) -> Parcel:
    """What a site says, in whichever process it is asked."""
    return service(folder, site).answer(asked)


@cache
def service(folder: Path, site: int) -> Service:
    settings, name = read(folder / "config.toml").canonical(), RunDir(folder).read(TERMS)["sites"][site]
    own = {"data": settings["data"], "partition": settings["partition"], "take": name, "device": "cpu"}
    return Service(Hospital(name, folder / "sites" / name, own, EVERYTHING))
