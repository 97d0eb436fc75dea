"""The commands of a federation: what they say when the coordinator is down, and how runs and sites are shown."""

from __future__ import annotations

import json
import time

import pytest

from crossward.hospitals.federation_state import Activity, FederationState, Phase, SiteState
from crossward.hospitals.flower import federation_status
from crossward.hospitals.kit import create_federation
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import FEDERATION_STATE, TERMS


@pytest.fixture
def coordinator(tmp_path):
    return create_federation(tmp_path / "kit", name="blood", sites=["north", "south"], host="127.0.0.1").coordinator


@pytest.fixture
def run(coordinator):
    folder = coordinator / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / TERMS).write_text("{}")
    return folder


def test_a_run_while_the_coordinator_is_down_is_refused_and_does_not_come_back(cli, coordinator, tmp_path):
    file = tmp_path / "blood.toml"
    file.write_text('[data]\nsize = 28\n\n[net]\nname = "cnn"\n')
    output = cli("federation", "run", file, "--coordinator", coordinator)
    assert output.code == 4
    assert "the coordinator is not up, and nothing was started" in output.err
    assert f"crossward coordinator up {coordinator}" in output.err
    assert not (coordinator / "runs").exists()


def test_the_status_of_a_coordinator_that_is_down(cli, coordinator, run):
    RunDir(run).fail("1 of 2 sites take part, 2 are needed\n  south: it has not come")
    output = cli("federation", "status", "--coordinator", coordinator)
    assert output.code == 0
    assert "the coordinator is not up" in output.out
    assert "mine: failed" in output.out
    assert "1 of 2 sites take part, 2 are needed | south: it has not come" in output.out


def test_the_status_as_json(cli, coordinator, run):
    overview = json.loads(cli("federation", "status", "--coordinator", coordinator, "--json").out)
    assert (overview["up"], overview["connected"]) == (False, None)
    assert overview["runs"][0]["run"] == "mine"


def test_following_ends_with_ctrl_c(cli, coordinator, run, monkeypatch):
    now = time.time()
    sites = {
        "north": SiteState(Activity.DONE, True, now, seconds=12.0),
        "south": SiteState(Activity.LOST, False, now - 12, now + 18),
    }
    state = FederationState("blood", Phase.ROUNDS, now, round=6, rounds=9, written=now, sites=sites)
    (run / FEDERATION_STATE).write_text(json.dumps(state.document()))
    monkeypatch.setattr(federation_status, "is_up", lambda workspace: True)
    monkeypatch.setattr(federation_status, "list_supernodes", lambda workspace: [])

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("crossward.cli.hospitals.time.sleep", interrupt)
    output = cli("federation", "status", "--coordinator", coordinator, "--follow")
    assert output.code == 0
    sentence = "round 6: north done in 12 s, waiting for south, not connected for 12 of 30 s"
    assert output.out.count(sentence) == 2  # of the status, and the first line that follows
    assert "not connected: north, south" in output.out


def test_a_folder_that_is_no_coordinators(cli, tmp_path):
    output = cli("federation", "status", "--coordinator", tmp_path)
    assert output.code == 2
    assert "Traceback" not in output.err


def test_a_trial_needs_a_new_folder(cli, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    output = cli("federation", "try", tmp_path / "full", "--no-open")
    assert output.code == 2
    assert "is there already and not empty" in output.err
