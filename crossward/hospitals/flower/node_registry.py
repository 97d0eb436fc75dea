"""The registry of nodes: which of Flower's nodes has the key of which site, as the coordinator has registered them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from crossward.disk import write_atomically

REGISTRY_FILE = "registered.json"  # site -> its key, and the node that has it
INSECURE_FILE = "insecure"  # is there while the SuperLink does without keys, for trying on one machine


@dataclass(frozen=True)
class RegisteredNode:
    """A public key that the SuperLink knows, and the number of the node that has it."""

    key: str
    node: str


def read_registry(home: Path) -> dict[str, RegisteredNode]:
    """The registered node of each site; empty if none was registered yet. `home` is the coordinator's FLWR_HOME."""
    file = home / REGISTRY_FILE
    if not file.exists():
        return {}
    return {site: RegisteredNode(**entry) for site, entry in json.loads(file.read_text()).items()}


def write_registry(home: Path, registry: dict[str, RegisteredNode]) -> None:
    entries = {site: asdict(entry) for site, entry in registry.items()}
    write_atomically(home / REGISTRY_FILE, json.dumps(entries).encode())


def registered_nodes(home: Path) -> dict[str, int] | None:
    """The node of each site; None if the coordinator was started to do without keys."""
    if (home / INSECURE_FILE).exists():
        return None
    return {site: int(entry.node) for site, entry in read_registry(home).items()}
