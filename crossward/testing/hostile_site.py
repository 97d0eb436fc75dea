"""A run across three hospitals, in one process, of which one is hostile: it answers what it likes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.app import Message

from crossward.config.reading import config_from
from crossward.config.schema import Config
from crossward.core.tree import Tree, decode, encode
from crossward.hospitals.federation_terms import EVENT_LOG, FederationTerms, create_run_directory
from crossward.hospitals.flower.coordinator import coordinate_run
from crossward.hospitals.flower.loopback_grid import LoopbackGrid
from crossward.hospitals.flower.records import from_records, to_records
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.service import Hospital, Service
from crossward.runs.checkpoint_writer import CHECKPOINT
from crossward.runs.run_directory import RunDir
from crossward.testing.loopback_federation import ALLOW_ALL, create_grid

SITES = ("hospital-1", "hospital-2", "hospital-3")
HOSTILE = "hospital-2"
SETTINGS: dict[str, Any] = {
    "data": {"source": "phantom", "sites": 3, "train": 8, "val": 4, "test": 4, "global_test": 0, "size": 24},
    "run": {"rounds": 2},
    "net": {"name": "cnn"},
    "train": {"lr": 0.05, "batch_size": 4},
    "engine": {"device": "cpu"},
}
Change = Callable[[SiteMessage], SiteMessage]


def change_tree(change: Callable[[Tree], Tree]) -> Change:
    """The reply with another tree."""
    return lambda reply: replace(reply, payload=encode(change(decode(reply.payload))))


def change_header(**changes: Any) -> Change:
    """The reply with another header."""
    return lambda reply: replace(reply, header=reply.header | changes)


@dataclass
class HostileFederation:
    """Three hospitals below a folder. `hostile` changes the replies of one of them, by step; "open" is the answer to
    the opening of the run."""

    folder: Path
    sections: Mapping[str, Any] = field(default_factory=dict)
    hostile: Mapping[str, Change] = field(default_factory=dict)
    terms: Mapping[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        return self.folder / "coordinator"

    @property
    def config(self) -> Config:
        return config_from({**SETTINGS, **{name: SETTINGS.get(name, {}) | own for name, own in self.sections.items()}})

    def grid(self) -> LoopbackGrid:
        settings = self.config.canonical()
        shared = {"data": settings["data"], "partition": settings["partition"], "device": "cpu"}
        hospitals = [Hospital(name, self.folder / name, shared | {"take": name}, ALLOW_ALL) for name in SITES]
        return replace(create_grid([Service(hospital) for hospital in hospitals]), tamper=self._tamper)

    def coordinate(self, **options: Any) -> None:
        """The coordinator's part, to the end of the run."""
        terms = {"deadline": 60, "patience": 0, "wait": 0, "least": 3} | dict(self.terms)
        create_run_directory(self.run, self.config, FederationTerms("a1b2", "north", SITES, **terms))
        coordinate_run(self.run, self.grid(), **options)

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in RunDir(self.run).lines(EVENT_LOG) if event["event"] in names]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        return RunDir(self.run).lines("metrics.jsonl")

    @property
    def state(self) -> Tree:
        """What the server has at the end."""
        state: Tree = RunDir(self.run).tree(CHECKPOINT)["state"]
        return state

    def _tamper(self, request: Message, reply: Message) -> Message:
        asked = from_records(request.content).header
        step = asked.get("step", asked["do"])
        if SITES[request.metadata.dst_node_id] != HOSTILE or step not in self.hostile:
            return reply
        return Message(to_records(self.hostile[step](from_records(reply.content))), reply_to=request)
