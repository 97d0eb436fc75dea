"""What the coordinator knows of its sites is in the run directory while a run goes on: before round 1, in a round from
which a site goes away, and in the end."""

from __future__ import annotations

import json

import pytest
from flwr.app import Message

from crossward.core.run import Observer
from crossward.errors import RunError
from crossward.hospitals.federation_monitor import FederationMonitor
from crossward.hospitals.federation_state import Activity, Phase, state_words
from crossward.hospitals.federation_terms import EVENT_LOG, FederationTerms, create_run_directory
from crossward.hospitals.flower import messenger
from crossward.hospitals.flower.coordinator import coordinate_run
from crossward.hospitals.flower.records import from_records, to_records
from crossward.hospitals.messages import SiteMessage
from crossward.hospitals.run_following import read_state
from crossward.hospitals.service import Hospital, Service
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import FEDERATION_STATE
from crossward.testing.loopback_federation import ALLOW_ALL, create_grid

SITES = ("hospital-1", "hospital-2", "hospital-3")


@pytest.fixture
def start(tiny, settings_of, tmp_path):
    """start(patience=5) is a run directory and the grid of three hospitals."""
    config = tiny(run={"rounds": 2})

    def create(**terms):
        run = tmp_path / "run"
        terms = {"deadline": 60, "patience": 0, "wait": 0, "least": 3} | terms
        create_run_directory(run, config, FederationTerms("a1", "north", SITES, **terms))
        hospitals = [Hospital(name, tmp_path / name, settings_of(config, name), ALLOW_ALL) for name in SITES]
        return run, create_grid([Service(hospital) for hospital in hospitals])

    return create


@pytest.fixture
def states(monkeypatch):
    """Every state that a monitor writes, without a limit of their number."""
    written = []
    write = FederationMonitor._write

    def write_and_keep(monitor):
        write(monitor)
        written.append(read_state(monitor.rundir.folder))

    monkeypatch.setattr(FederationMonitor, "_write", write_and_keep)
    monkeypatch.setattr("crossward.hospitals.federation_monitor.MIN_INTERVAL", 0.0)
    return written


def activities(states, site):
    """What a site did, in order, each once: activity, step and round."""
    seen = [(state.sites[site].activity, state.sites[site].step, state.sites[site].round) for state in states]
    return [now for before, now in zip([None, *seen], seen, strict=False) if now != before]


def names_of_events(run):
    return [event["event"] for event in RunDir(run).lines(EVENT_LOG)]


def test_a_run_from_its_beginning_to_its_end(start, states):
    run, grid = start()
    coordinate_run(run, grid)
    last = read_state(run)
    assert (last.phase, last.round, last.rounds) == (Phase.FINISHED, 2, 2)
    assert all(site.connected and site.left_out == 0 and site.bytes > 1000 for site in last.sites.values())
    phases = [state.phase for state in states]
    assert phases == sorted(phases, key=[Phase.GATHERING, Phase.ROUNDS, Phase.FINISHED].index)
    seen = activities(states, "hospital-1")
    assert seen[0][0] == Activity.ABSENT
    for step in ((Activity.WORKING, "train", 1), (Activity.DONE, "judge", 2), (Activity.DONE, "deploy", 2)):
        assert step in seen
    assert names_of_events(run)[-1] == "finished"


def test_bytes_are_those_of_the_ledger_and_metrics(start):
    run, grid = start()
    coordinate_run(run, grid)
    sent = sum(line["bytes"]["up"] for line in RunDir(run).lines("metrics.jsonl"))
    assert sent < read_state(run).bytes < 1.5 * sent + 50_000  # metrics and headers of trees as well


def test_a_site_that_goes_away_in_a_round_and_comes_back(start, states, monkeypatch):
    monkeypatch.setattr(messenger, "RECONNECT_INTERVAL", 0.3)
    run, grid = start(patience=30)
    nodes, looks = grid.get_node_ids, []

    class Away(Observer):
        def on_round(self, record):
            if record.round == 1:
                grid.down.add(1)

    def look():
        if any(state.sites["hospital-2"].activity == Activity.LOST for state in states):
            looks.append(1)
            if len(looks) > 1:
                grid.down.clear()
        return nodes()

    grid.get_node_ids = look
    coordinate_run(run, grid, [Away()])
    lost = next(state for state in states if state.sites["hospital-2"].activity == Activity.LOST)
    site = lost.sites["hospital-2"]
    assert not site.connected
    assert site.until - site.since == pytest.approx(30, abs=0.1)
    assert "waiting for hospital-2, not connected for 3 of 30 s" in state_words(lost, site.since + 3)
    assert lost.round == 2
    assert [name for name in names_of_events(run) if name in ("lost", "back", "fault")] == ["lost", "back"]
    assert read_state(run).phase == Phase.FINISHED


def test_a_site_that_does_not_come_back_is_left_out_and_the_state_says_why(start, states):
    run, grid = start(patience=0)

    class Away(Observer):
        def on_round(self, record):
            if record.round == 1:
                grid.down.add(1)

    coordinate_run(run, grid, [Away()])
    left_out = next(state for state in states if state.sites["hospital-2"].activity == Activity.LEFT_OUT)
    assert left_out.sites["hospital-2"].why.startswith("not connected for")
    assert read_state(run).sites["hospital-2"].left_out >= 2  # training and evaluation
    assert not read_state(run).sites["hospital-2"].connected


def test_a_run_that_gives_up_says_who_was_missing(start, states):
    run, grid = start(wait=0)
    grid.down.add(1)
    with pytest.raises(RunError, match="2 of 3 sites take part"):
        coordinate_run(run, grid)
    last = read_state(run)
    assert last.phase == Phase.FAILED
    assert "hospital-2: it has not come" in last.why
    before = next(state for state in reversed(states) if state.phase == Phase.GATHERING)
    assert state_words(before, before.since).startswith(
        "before round 1: hospital-1 and hospital-3 are here; waiting for hospital-2, not connected, gives up in"
    )


def test_a_reply_that_is_rejected_is_a_site_that_was_left_out(start, states):
    run, grid = start()
    done = []

    def alter_first(request, reply):
        answer = from_records(reply.content)
        if done or answer.header.get("step") != "train":
            return reply
        done.append(answer.header["site"])
        return Message(to_records(SiteMessage(answer.header | {"nonce": "old"}, answer.payload)), reply_to=request)

    grid.tamper = alter_first
    coordinate_run(run, grid)
    rejected = [state.sites[done[0]] for state in states if state.sites[done[0]].activity == Activity.LEFT_OUT]
    assert rejected[0].why.startswith("rejected: its reply answers another question")


def test_the_file_holds_nothing_of_patients(start):
    run, grid = start()
    coordinate_run(run, grid)
    document = json.loads((run / FEDERATION_STATE).read_text())
    assert {*document} == {
        "federation", "phase", "since", "until", "least", "round", "rounds", "why", "written", "sites",
    }  # fmt: skip
    assert {*document["sites"]["hospital-1"]} == {
        "activity", "connected", "since", "until", "step", "round", "seconds", "why", "left_out", "bytes",
    }  # fmt: skip
