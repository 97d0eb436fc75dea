"""A federation in one process whose sites sum securely: keys and certificates of an authority made for it, a service, a
journal and a memory for each site, on a grid without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from crossward.core.method import Method
from crossward.hospitals import certificates, pem
from crossward.hospitals.certificates import CA_FILE
from crossward.hospitals.flower.client_app import create_client_app
from crossward.hospitals.flower.engine import FlowerEngine
from crossward.hospitals.flower.loopback_grid import LoopbackGrid
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.peers import HospitalIdentity
from crossward.hospitals.rehearsal import ReplyInspector, rehearse
from crossward.hospitals.secure_demand import SecureDemand
from crossward.hospitals.service import Hospital, Service
from crossward.hospitals.sum_directory import with_hospital_keys
from crossward.privacy.secure_steps import SecureSettings, plain_method, secured
from crossward.runs.sites import RunSites
from crossward.testing.loopback_federation import (
    ALLOW_ALL,
    RUN,
    create_roster,
    with_one_site,
    without_images,
)

DAYS = 30
Meddle = Callable[[int, SiteMessage], SiteMessage]  # node, request -> the request that reaches the site
Alter = Callable[
    [int, SiteMessage, SiteMessage], SiteMessage
]  # node, request, reply -> what the site sends in its place


@dataclass(frozen=True)
class Authority:
    """An authority that makes identities of sites."""

    folder: Path
    certificate: x509.Certificate
    text: str

    def identity(self, name: str, pinned: Mapping[str, str] | None = None) -> HospitalIdentity:
        place = self.folder / name
        if not place.exists():
            place.mkdir()
            certificates.create_site_key(place, name)
            public_key = place / f"{name}.pub"
            certificates.create_site_certificate(public_key, self.folder, name, DAYS, place / f"{name}.crt")
        key: EllipticCurvePrivateKey = pem.load_site_private_key((place / name).read_bytes())
        return HospitalIdentity(name, key, (place / f"{name}.crt").read_text(), self.certificate, pinned)


def new_authority(folder: Path, name: str = "toys") -> Authority:
    folder.mkdir(parents=True, exist_ok=True)
    certificates.create_authority(folder, name, 2 * DAYS)
    text = (folder / CA_FILE).read_text()
    return Authority(folder, pem.load_certificate(text.encode()), text)


@cache
def shared_authority() -> Authority:
    """One authority for all tests of this process: keys take their time."""
    return new_authority(Path(_shared_folder().name))


@cache
def _shared_folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="crossward-authority-")


@dataclass
class SecureFederation:
    """The coordinator's part of a run, an engine that reaches the sites, and the sites. `received` is every message
    that has come to the coordinator; `meddle` changes what reaches a site, `alter` what it sends."""

    run_sites: RunSites  # of the sites, with their images
    folder: Path
    authority: Authority
    hospitals: dict[int, Hospital]
    services: dict[int, Service] = field(default_factory=dict)
    received: list[tuple[int, SiteMessage]] = field(default_factory=list)
    meddle: Meddle = lambda node, request: request
    alter: Alter = lambda node, request, reply: reply

    def __post_init__(self) -> None:
        self.grid = LoopbackGrid(
            create_client_app(lambda request, context: self.answer(context.node_id, request)),
            {site: {} for site in self.hospitals},
        )
        for site in self.hospitals:
            self.restart(site)

    def restart(self, site: int) -> None:
        """Start a site anew: it knows what its folder holds, and nothing else."""
        run_sites = self.run_sites
        self.services[site] = Service(self.hospitals[site], lambda hospital, opening: with_one_site(run_sites, site))

    def change(self, site: int, **changes: Any) -> None:
        self.hospitals[site] = replace(self.hospitals[site], **changes)
        self.restart(site)

    def answer(self, node: int, request: SiteMessage) -> SiteMessage:
        reply = self.services[node].answer(self.meddle(node, request))
        reply = self.alter(node, request, reply)
        self.received.append((node, reply))
        return reply

    def coordinator(self, **messenger_options: Any) -> tuple[RunSites, FlowerEngine]:
        """A coordinator that was just started; sites have been opened."""
        run_sites = without_images(self.run_sites)
        roster = create_roster(run_sites, self.grid, **messenger_options)
        roster.wait_for_sites(1.0)
        names = [run_sites.name(site) for site in run_sites.ids]
        method = with_hospital_keys(run_sites.method, RUN, names, roster.facts, self.authority.text)
        run_sites = replace(run_sites, method=method)
        inspector = ReplyInspector(run_sites, rehearse(run_sites), facts=roster.facts)
        engine = FlowerEngine(run_sites, roster, RUN, inspect=inspector, most_bytes=inspector.most_bytes)
        return run_sites, engine


def across_hospitals(run_sites: RunSites, settings: SecureSettings | None = None) -> RunSites:
    """The same run as hospitals have it: with keys of their own."""
    wanted = settings or getattr(run_sites.method, "settings", None) or SecureSettings(None)
    method: Method = secured(plain_method(run_sites.method), replace(wanted, seed=None))
    return replace(run_sites, method=method)


@contextmanager
def secure_federation(run_sites: RunSites, demand: SecureDemand | None = None) -> Iterator[SecureFederation]:
    """The sites of a run, each with a key; their method sums securely."""
    torch.set_num_threads(1)  # as many as the local engine has: sums of several would differ in their last bits
    authority = shared_authority()
    with TemporaryDirectory(prefix="crossward-") as folder:
        hospitals = {
            site: Hospital(
                run_sites.name(site),
                Path(folder) / run_sites.name(site),
                {},
                ALLOW_ALL,
                identity=authority.identity(run_sites.name(site)),
                secure=demand or SecureDemand(),
            )
            for site in run_sites.ids
        }
        yield SecureFederation(across_hospitals(run_sites), Path(folder), authority, hospitals)
