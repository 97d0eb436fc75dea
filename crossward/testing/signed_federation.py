"""A federation in one process whose sites have the keys of a real kit: runs across it end with signed receipts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from crossward.config.schema import Config
from crossward.hospitals.certificates import CA_FILE
from crossward.hospitals.federation_terms import EVENT_LOG, FederationTerms, create_run_directory, new_run_id
from crossward.hospitals.flower.coordinator import coordinate_run
from crossward.hospitals.flower.loopback_grid import LoopbackGrid
from crossward.hospitals.kit import create_federation, read_site
from crossward.hospitals.peers import read_identity
from crossward.hospitals.policy import Policy
from crossward.hospitals.receipts import SigningKey
from crossward.hospitals.service import Hospital, Service
from crossward.privacy.ledger import Budget
from crossward.runs.run_directory import RunDir
from crossward.testing.loopback_federation import ALLOW_ALL, create_grid

SITES = ("hospital-1", "hospital-2", "hospital-3")  # as the phantom names them


class SignedFederation:
    """The folders of a federation, and runs across it. Sites that are started anew find what they kept."""

    def __init__(self, folder: Path, name: str = "blood") -> None:
        self.kit = create_federation(folder, name=name, sites=SITES, host="fl.example.org")
        self.policies: dict[str, Policy] = {}
        self.budgets: dict[str, Budget] = {}
        self.without_key: set[str] = set()

    def service(self, config: Config, name: str) -> Service:
        kit = read_site(self.kit.site(name))
        settings = config.canonical()
        own = {"data": settings["data"], "partition": settings["partition"], "take": name, "device": "cpu"}
        key = None if name in self.without_key else SigningKey.of_kit(kit)
        policy = self.policies.get(name, ALLOW_ALL)
        hospital = Hospital(name, kit.folder, own, policy, budget=self.budgets.get(name), signing_key=key)
        return Service(replace(hospital, identity=read_identity(kit)))

    def grid(self, config: Config) -> LoopbackGrid:
        return create_grid([self.service(config, name) for name in SITES])

    def create(self, config: Config, name: str, **terms: Any) -> Path:
        """A run that is yet to be run."""
        authority = (self.kit.coordinator / CA_FILE).read_text()
        usual: dict[str, Any] = {"deadline": 60, "patience": 0, "wait": 0, "least": len(SITES), "authority": authority}
        folder = self.kit.coordinator / "runs" / name
        federation = self.kit.federation.name
        create_run_directory(folder, config, FederationTerms(new_run_id(), federation, SITES, **usual | terms))
        return folder

    def run(self, config: Config, name: str, grid: LoopbackGrid | None = None, **terms: Any) -> Path:
        folder = self.create(config, name, **terms)
        coordinate_run(folder, grid or self.grid(config), kit=self.kit.coordinator)
        return folder


def receipt_events(run: Path) -> dict[str, tuple[str, str]]:
    """What the coordinator noted of each site's receipt, and why."""
    lines = [line for line in RunDir(run).lines(EVENT_LOG) if "receipt" in line["event"]]
    return {line["site"]: (line["event"], line["why"]) for line in lines}
