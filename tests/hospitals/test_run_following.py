"""Following runs: a line for each event and each round, whom a run waits for, and nothing twice."""

from __future__ import annotations

import json

import pytest

from crossward.errors import StorageError
from crossward.hospitals.federation_state import Activity, FederationState, Phase, SiteState
from crossward.hospitals.federation_terms import EVENT_LOG, event
from crossward.hospitals.run_following import (
    REMINDER,
    RunFollower,
    RunsFollower,
    failure_reason,
    read_state,
    run_status,
)
from crossward.hospitals.text_tail import TextTail
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import FEDERATION_STATE, TERMS


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def write_round(run, round, failures=()):
    line = {
        "round": round,
        "clients": ["north", "south"],
        "failures": dict.fromkeys(failures, "late"),
        "metrics": {"val": {"local": {"mean": {"f1": 0.5}}}},
        "seconds": 2.25,
    }
    RunDir(run).append("metrics.jsonl", [line])


def write_state(run, state):
    (run / FEDERATION_STATE).write_text(json.dumps(state.document()))


def test_events_and_rounds_are_reported_once(tmp_path):
    follower = RunFollower(tmp_path)
    assert follower.news() == []
    RunDir(tmp_path).append(EVENT_LOG, [event("came", site="north"), event("log", site="north", round=1)])
    write_round(tmp_path, 1, failures=["south"])
    assert follower.news() == ["came north", "round 1: 1 of 2 sites, f1 0.500, 2.2 s"]
    assert follower.news() == []


def test_rounds_that_run_again_after_a_crash_are_not_reported_again(tmp_path):
    follower = RunFollower(tmp_path)
    for round in (1, 2):
        write_round(tmp_path, round)
    assert len(follower.news()) == 2
    (tmp_path / "metrics.jsonl").write_text("")  # back to the checkpoint
    write_round(tmp_path, 1)
    assert follower.news() == []
    write_round(tmp_path, 2)
    write_round(tmp_path, 3)
    assert [line[:8] for line in follower.news()] == ["round 3:"]


def test_rounds_that_were_skipped_and_run_again_are_not_reported(tmp_path):
    for round in (1, 2):
        write_round(tmp_path, round)
    follower = RunFollower(tmp_path)
    follower.skip()
    (tmp_path / "metrics.jsonl").write_text("")
    write_round(tmp_path, 1)
    assert follower.news() == []


def test_whom_a_run_waits_for_is_said_when_it_changes_and_now_and_then(tmp_path):
    clock = Clock()
    follower = RunFollower(tmp_path, clock=clock)
    state = FederationState("alps", until=1600.0, sites={"north": SiteState(), "south": SiteState()})
    write_state(tmp_path, state)
    assert follower.news() == ["before round 1: waiting for north and south, not connected, gives up in 600 s"]
    clock.now += REMINDER / 2
    assert follower.news() == []
    state.sites["north"].activity = Activity.READY
    write_state(tmp_path, state)
    assert follower.news() == ["before round 1: north is here; waiting for south, not connected, gives up in 585 s"]
    clock.now += REMINDER
    assert follower.news() == ["before round 1: north is here; waiting for south, not connected, gives up in 555 s"]
    state.phase = Phase.FAILED
    write_state(tmp_path, state)
    assert follower.news() == []


def test_every_change_of_a_site_for_those_who_want_it(tmp_path):
    clock = Clock()
    followers = [RunFollower(tmp_path, every_change=wanted, clock=clock) for wanted in (True, False)]
    for follower in followers:
        follower._told_at = clock.now
    north = SiteState(Activity.WORKING, True, 995.0, step="train", round=1)
    write_state(tmp_path, FederationState(phase=Phase.ROUNDS, round=1, rounds=2, sites={"north": north}))
    assert [follower.news() for follower in followers] == [["round 1: north training for 5 s"], []]


def test_hostile_lines_and_damaged_ones(tmp_path):
    lines = [json.dumps({"event": "fault", "site": "\x1b[2J", "why": "x\ny"}), "{", "7", json.dumps({"site": "south"})]
    (tmp_path / EVENT_LOG).write_text("\n".join(lines) + "\n" + '{"event": "cut')
    news = RunFollower(tmp_path).news()
    assert news == ["fault \\x1b[2J: x | y", "event south"]


@pytest.mark.parametrize("content", ["{", "7", '{"phase": "dancing"}'])
def test_a_state_that_is_damaged(tmp_path, content):
    (tmp_path / FEDERATION_STATE).write_text(content)
    with pytest.raises(StorageError, match=FEDERATION_STATE):
        read_state(tmp_path)


def test_all_runs_of_a_coordinator(tmp_path):
    old, waiting, later = (tmp_path / "runs" / name for name in ("old", "waiting", "later"))
    for run in (old, waiting):
        run.mkdir(parents=True)
        (run / TERMS).write_text("{}")
        RunDir(run).append(EVENT_LOG, [event("came", site="north")])
    RunDir(old).fail("no sites\nsouth: it has not come")
    follower = RunsFollower(tmp_path)
    assert [*follower.news()] == []
    later.mkdir()
    (later / TERMS).write_text("{}")
    RunDir(later).append(EVENT_LOG, [event("came", site="west")])
    RunDir(waiting).append(EVENT_LOG, [event("failed", why="no disk")])
    RunDir(waiting).fail("no disk")
    assert sorted(follower.news()) == ["later: came west", "waiting: failed: no disk"]
    RunDir(waiting).append(EVENT_LOG, [event("came", site="south")])
    assert [*follower.news()] == []
    assert failure_reason(old) == "no sites | south: it has not come"
    assert failure_reason(later) == ""


@pytest.mark.parametrize("file", ["run.json", FEDERATION_STATE])
def test_a_damaged_run_hides_no_other(tmp_path, file):
    for name in ("broken", "sound"):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / TERMS).write_text("{}")
    follower = RunsFollower(tmp_path)
    (tmp_path / "runs" / "broken" / file).write_text("{")
    RunDir(tmp_path / "runs" / "sound").append(EVENT_LOG, [event("came", site="north")])
    assert [*follower.news()][-1] == "sound: came north"
    assert [*follower.news()] == []
    assert (run_status(tmp_path / "runs" / "broken") == "broken") == (file == "run.json")
    assert ("cannot read" in failure_reason(tmp_path / "runs" / "broken")) == (file == "run.json")


def test_a_tail_gives_whole_lines(tmp_path):
    file = tmp_path / "log"
    tail = TextTail(file)
    tail.skip()
    assert tail.new_lines() == []
    file.write_bytes(b"one\ntw")
    assert tail.new_lines() == ["one"]
    file.write_bytes(b"one\ntwo\n")
    assert tail.new_lines() == ["two"]
    file.write_bytes(b"\xff\n")  # it was shortened
    assert tail.new_lines() == ["�"]
    tail.file.write_text("a\nb\n")
    tail.skip()
    assert tail.new_lines() == []
