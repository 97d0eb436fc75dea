"""Sites' keys at the SuperLink: each is registered once, one that was replaced is unregistered, and nodes are known by
their keys."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from crossward.errors import RunError
from crossward.hospitals.certificates import create_site_key
from crossward.hospitals.flower import processes
from crossward.hospitals.flower.app_processes import run_captured
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
        register_keys(read_coordinator(kit_folder / "coordinator"), workspace, workspace.run_flwr, lines.append)
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
    remove_unknown_nodes(workspace, workspace.run_flwr, lines.append)
    assert lines == ["removed the node 7, which is of no site of this federation"]
    assert workspace.commands[-1] == ("supernode", "unregister", "7", SUPERLINK_NAME)


# many commands in one process -----------------------------------------------------------------------------------------
def test_commands_run_one_after_another_in_one_process():
    """Each is answered for itself; Flower's own program says what its version is, and refuses what it does not know."""
    with (
        tempfile.TemporaryDirectory() as folder,  # of a short path, for a socket
        FlowerWorkspace(Path(folder)).flwr_commands() as flwr,
    ):
        assert "1.41.0" in flwr("--version")
        with pytest.raises(RunError, match=r"`flwr nonsense` failed \(2\)") as failure:
            flwr("nonsense")
        assert "No such command" in str(failure.value)
        assert "1.41.0" in flwr("--version")


def test_no_process_is_started_for_no_command(kit_folder, monkeypatch):
    monkeypatch.setattr(processes.subprocess, "Popen", None)
    with FlowerWorkspace(kit_folder / "coordinator").flwr_commands():
        pass


def test_what_a_command_prints_is_captured(capsys):
    def app(arguments):
        print("said")
        print("said past a redirection", file=sys.__stdout__)
        print("an error", file=sys.__stderr__)
        raise SystemExit({"none": None, "two": 2, "words": "words"}[arguments[0]])

    before = sys.stdout, sys.__stdout__
    assert run_captured(app, ["none"]) == {
        "code": 0, "output": "said\nsaid past a redirection\n", "errors": "an error\n",
    }  # fmt: skip
    assert run_captured(app, ["two"])["code"] == 2
    assert run_captured(app, ["words"])["code"] == 1
    assert run_captured(app, ["a key"]) | {"output": ""} == {
        "code": 1,
        "output": "",
        "errors": "an error\nKeyError('a key')",
    }
    assert (sys.stdout, sys.__stdout__) == before
    assert capsys.readouterr().out == ""
