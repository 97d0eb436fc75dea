"""Sites' keys at the SuperLink: each is registered once, one that was replaced is unregistered, and nodes are known by
their keys."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field

import pytest

from crossward.hospitals.certificates import create_site_key
from crossward.hospitals.flower.coordinator_up import register_keys, remove_unknown_nodes
from crossward.hospitals.flower.node_registry import INSECURE_FILE, REGISTRY_FILE, registered_nodes
from crossward.hospitals.flower.processes import SUPERLINK_NAME, FlowerWorkspace
from crossward.hospitals.kit import read_coordinator


@dataclass(frozen=True)
class FakeWorkspace(FlowerWorkspace):
    """A workspace that only records `flwr` commands; nodes are numbered as they are registered."""

    commands: list = field(default_factory=list)

    def run_flwr(self, *arguments):
        self.commands.append(arguments)
        if arguments[1] == "list":
            return json.dumps({"nodes": [{"node-id": node, "status": "online"} for node in ("101", "102", "7")]})
        return json.dumps({"success": True, "node-id": str(100 + len(self.commands))})


@pytest.fixture
def workspace(kit_folder):
    workspace = FakeWorkspace(kit_folder / "coordinator")
    workspace.home.mkdir()
    return workspace


@pytest.fixture
def register(kit_folder, workspace):
    """register() registers the keys as a start of the coordinator does; the lines that it prints."""

    def start():
        lines = []
        workspace.commands.clear()
        register_keys(read_coordinator(kit_folder / "coordinator"), workspace, lines.append)
        return lines

    return start


def test_each_key_is_registered_once(register, workspace, kit_folder):
    assert sorted(register()) == ["registered north.1", "registered south"]
    assert [command[:2] for command in workspace.commands] == [("supernode", "register")] * 2
    assert {command[2] for command in workspace.commands} == {
        str(kit_folder / "coordinator" / "sites" / f"{site}.pub") for site in ("south", "north.1")
    }
    assert register() == []
    assert workspace.commands == []


def test_a_key_that_was_replaced_is_unregistered(register, workspace, kit_folder, tmp_path):
    register()
    before = json.loads((workspace.home / REGISTRY_FILE).read_text())["south"]["node"]
    create_site_key(tmp_path, "south")
    shutil.copy(tmp_path / "south.pub", kit_folder / "coordinator" / "sites" / "south.pub")
    assert register() == ["the former key of south is no longer accepted", "registered south"]
    assert workspace.commands[0] == ("supernode", "unregister", before, SUPERLINK_NAME)


def test_nodes_are_known_unless_the_coordinator_does_without_keys(register, workspace):
    assert registered_nodes(workspace.home) == {}
    register()
    (workspace.home / INSECURE_FILE).touch()
    assert registered_nodes(workspace.home) is None
    (workspace.home / INSECURE_FILE).unlink()
    assert sorted(registered_nodes(workspace.home)) == ["north.1", "south"]
    assert sorted(registered_nodes(workspace.home).values()) == [101, 102]


def test_a_node_that_nobody_registered_here_is_removed(register, workspace):
    register()
    lines = []
    remove_unknown_nodes(workspace, lines.append)
    assert lines == ["removed the node 7, which is of no site of this federation"]
    assert workspace.commands[-1] == ("supernode", "unregister", "7", SUPERLINK_NAME)
