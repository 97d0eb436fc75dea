"""The status of a federation: whether the coordinator is up, who is connected, why runs failed, what they do now."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from crossward.hospitals.federation_state import Activity, FederationState, Phase, SiteState
from crossward.hospitals.federation_terms import EVENT_LOG, event
from crossward.hospitals.flower import federation_status as module
from crossward.hospitals.flower.coordinator_up import DOOR_FILE, is_up, open_workspace
from crossward.hospitals.flower.federation_status import federation_status, follow_federation, status_lines
from crossward.hospitals.flower.node_registry import INSECURE_FILE, RegisteredNode, write_registry
from crossward.hospitals.flower.unix_sockets import bind_private_socket
from crossward.hospitals.kit import read_coordinator
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import FEDERATION_STATE, TERMS


@pytest.fixture
def coordinator(kit_folder):
    return kit_folder / "coordinator"


@pytest.fixture
def up(coordinator, monkeypatch):
    """The coordinator is up; up.online are the nodes that are connected."""
    workspace = open_workspace(read_coordinator(coordinator))
    write_registry(workspace.home, {"south": RegisteredNode("", "101"), "north.1": RegisteredNode("", "102")})
    federation = SimpleNamespace(online=["101"], home=workspace.home)
    nodes = lambda workspace: [
        {"node-id": node, "status": "online" if node in federation.online else "offline"} for node in ("101", "102")
    ]
    monkeypatch.setattr(module, "list_supernodes", nodes)
    monkeypatch.setattr(module, "is_up", lambda workspace: True)
    return federation


@pytest.fixture
def run(coordinator):
    folder = coordinator / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / TERMS).write_text("{}")
    return folder


def lines_of(coordinator):
    return [*status_lines(federation_status(coordinator), coordinator)]


def write_state(run, **changes):
    now = time.time()
    south = SiteState(Activity.LOST, False, now - 12, now + 18, "train", 6, why="not connected")
    north = SiteState(Activity.DONE, True, now, seconds=12.0)
    state = FederationState("blood", Phase.ROUNDS, now, round=6, rounds=9, sites={"north.1": north, "south": south})
    (run / FEDERATION_STATE).write_text(json.dumps(state.document() | {"written": now} | changes))


def test_a_coordinator_that_is_not_up(coordinator, run):
    write_state(run, written=time.time() - 100)
    first, _, now = lines_of(coordinator)
    assert first.endswith(f"the coordinator is not up: `crossward coordinator up {coordinator}` starts it")
    assert now.startswith("    the coordinator is not up; 100 s ago: round 6: north.1 done in 12 s")


def test_who_is_connected_and_who_is_waited_for(coordinator, up, run):
    write_state(run)
    first, _, now = lines_of(coordinator)
    assert first.endswith("the coordinator is up; connected: south; not connected: north.1")
    assert now == "    round 6: north.1 done in 12 s, waiting for south, not connected for 12 of 30 s"


def test_all_and_none_connected(coordinator, up):
    up.online = ["101", "102"]
    assert lines_of(coordinator)[0].endswith("the coordinator is up; connected: south, north.1")
    up.online = []
    assert lines_of(coordinator)[0].endswith("the coordinator is up; not connected: south, north.1")
    (up.home / INSECURE_FILE).touch()
    assert lines_of(coordinator)[0].endswith("the coordinator is up, 0 connected")


def test_the_reason_of_a_run_that_failed(coordinator, up, run):
    RunDir(run).fail("1 of 2 sites take part, 2 are needed\n  south: it has not come")
    RunDir(run).append(EVENT_LOG, [event("refused", site="south", why="another version")])
    assert lines_of(coordinator)[1:] == [
        "  mine: failed, 0 rounds, 1 faults",
        "    1 of 2 sites take part, 2 are needed | south: it has not come",
        "    refused south: another version",
    ]


def test_bytes_that_came(coordinator, up, run):
    write_state(run, sites={"south": {"activity": "done", "bytes": 2_500_000}})
    assert lines_of(coordinator)[1] == "  mine: waiting, 0 rounds, 0 faults, 2.5 MB received"


def test_a_state_that_is_damaged_is_named(coordinator, up, run):
    (run / FEDERATION_STATE).write_text("{")
    assert lines_of(coordinator)[2].startswith(f"    cannot read {run / FEDERATION_STATE}")


def test_following_goes_on_from_now(coordinator, up, run, monkeypatch):
    RunDir(run).append(EVENT_LOG, [event("came", site="south")])
    said = []

    def sleep(seconds):
        """What happens while the command waits."""
        step = len([line for line in said if "slept" in line])
        said.append("slept")
        if step == 0:
            RunDir(run).append(EVENT_LOG, [event("came", site="north.1")])
            write_state(run)
        elif step == 1:
            monkeypatch.setattr(module, "is_up", lambda workspace: False)
        elif step == 2:
            monkeypatch.setattr(module, "is_up", lambda workspace: True)
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow_federation(coordinator, said.append, sleep)
    assert [line for line in said if line != "slept"] == [
        "mine: came north.1",
        "mine: round 6: north.1 done in 12 s, waiting for south, not connected for 12 of 30 s",
        "the coordinator is not up: its runs go on when it is started again",
        "the coordinator is up again",
    ]


def test_a_coordinator_is_up_when_its_door_is_open_and_it_answers(shared_kit):
    with tempfile.TemporaryDirectory(prefix="cw-", dir="/tmp") as folder:  # the path of a socket must be short
        coordinator = shutil.copytree(shared_kit, Path(folder) / "blood") / "coordinator"
        check_is_up(open_workspace(read_coordinator(coordinator)))


def check_is_up(workspace):
    (workspace.home / DOOR_FILE).touch()
    assert not is_up(workspace)  # a file that a crash left
    with bind_private_socket(workspace.socket):
        assert is_up(workspace)
        (workspace.home / DOOR_FILE).unlink()
        assert not is_up(workspace)  # keys are being registered
