"""A run in Flower's simulation: every site with a service, a policy and a memory of its own, in Ray's workers."""

from __future__ import annotations

import os
from functools import cache, partial
from pathlib import Path

from crossward.config.reading import read_config
from crossward.config.schema import Config
from crossward.core.disclosure import DisclosureKind
from crossward.hospitals.federation_terms import FederationTerms, create_run_directory, new_run_id
from crossward.hospitals.flower.processes import FLOWER_ENVIRONMENT
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.policy import Policy
from crossward.hospitals.service import Hospital, Service
from crossward.hospitals.site_limits import NO_LIMITS
from crossward.runs.build import prepare
from crossward.runs.devices import worker_count
from crossward.runs.lifecycle import folder_for
from crossward.runs.result import Result, load
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import TERMS

# one machine, one owner: everything but images may leave a simulated site
ALLOW_ALL = Policy(
    allow=tuple(kind for kind in DisclosureKind if kind != DisclosureKind.IMAGES),
    min_class_count=0,
    min_public_images=0,
)


def simulate(config: Config) -> Result:
    """Run a configuration to its end by Flower on Ray; the result is that of the other engines, to the bit."""
    os.environ.update(FLOWER_ENVIRONMENT)  # before flwr is imported, and for Ray's workers
    from crossward.hospitals.flower.coordinator import coordinate_run
    from crossward.hospitals.flower.ray_simulation import simulate as on_ray

    sites = tuple(site.name for site in prepare(config).federation.sites)
    folder = folder_for(config)
    create_run_directory(
        folder, config, FederationTerms(new_run_id(), "simulation", sites, own_data=True, trusted=True)
    )
    workers = worker_count(config.engine, ("cpu",), len(sites))
    on_ray(partial(coordinate_run, folder), partial(answer_for_site, folder), len(sites), workers)
    return load(folder)


def answer_for_site(folder: Path, site: int, request: SiteMessage) -> SiteMessage:
    """The reply of a site; this may run in any of Ray's workers."""
    return site_service(folder, site).answer(request)


@cache
def site_service(folder: Path, site: int) -> Service:
    """The service of a site of this run; each worker builds it once."""
    run_settings = read_config(folder / "config.toml").canonical()
    name = RunDir(folder).read(TERMS)["sites"][site]
    settings = {
        "data": run_settings["data"],
        "partition": run_settings["partition"],
        "take": name,
        "device": "cpu",
    }
    return Service(Hospital(name, folder / "sites" / name, settings, ALLOW_ALL, limits=NO_LIMITS))
