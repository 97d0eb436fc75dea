"""What a run across hospitals has beside its configuration: its terms, and the log of its events."""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from crossward.config.reading import to_toml
from crossward.config.schema import Config
from crossward.disk import write_atomically
from crossward.foreign import plain
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import TERMS

EVENT_LOG = "events.jsonl"  # who came, who was refused, what was rejected


@dataclass(frozen=True)
class FederationTerms:
    """What a run across hospitals has beside its configuration."""

    id: str  # by which the sites know the run
    federation: str
    sites: tuple[str, ...]
    deadline: float = 3600.0  # seconds for a step at a site
    patience: float = 120.0  # seconds for a site that has gone to come back
    wait: float = 600.0  # seconds for all sites to come before round 1
    least: int = 1  # sites without which it does not begin
    own_data: bool = False  # [data] of the configuration are here: the federation's own test set, the public set
    public: str = ""  # a folder of images that everybody may see: the public set, sent to the sites
    authority: str = ""  # its certificate, in PEM, by which sites are known in secure sums
    trusted: bool = False  # all sites are one owner's, as in a simulation: nothing guards against hostile ones

    @classmethod
    def read(cls, rundir: RunDir) -> FederationTerms:
        document = rundir.read(TERMS)
        known = {key.name for key in fields(cls)}
        return cls(
            **{key: value for key, value in document.items() if key in known} | {"sites": tuple(document["sites"])}
        )


def create_run_directory(folder: Path, config: Config, terms: FederationTerms) -> RunDir:
    """A run directory that is yet to be run."""
    rundir = RunDir.create(folder)
    rundir.write(TERMS, asdict(terms))
    write_atomically(folder / "config.toml", to_toml(config).encode())
    return rundir


def new_run_id() -> str:
    return uuid.uuid4().hex[:16]


def event(name: str, **details: Any) -> dict[str, Any]:
    """A line of the event log; what sites say of themselves in it cannot pass for another line."""
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": name, **plain(details)}
