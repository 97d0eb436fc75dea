"""The monitor keeps federation-state.json: whole at any moment, soon after each change, and not more often than twice a
second."""

from __future__ import annotations

import time

import pytest

from crossward.hospitals.federation_monitor import MIN_INTERVAL, FederationMonitor
from crossward.hospitals.federation_state import Activity, Phase
from crossward.hospitals.federation_terms import EVENT_LOG, FederationTerms
from crossward.hospitals.run_following import read_state
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import FEDERATION_STATE


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def monitor(tmp_path, clock):
    terms = FederationTerms("a1", "alps", ("north", "south"), wait=600.0, least=2)
    watched = FederationMonitor(RunDir(tmp_path), terms, clock)
    yield watched
    if watched.state.phase not in (Phase.FINISHED, Phase.FAILED):
        watched.end()


def events(folder):
    return [(event["event"], event["site"], event.get("why", "")) for event in RunDir(folder).lines(EVENT_LOG)]


def test_the_file_is_there_from_the_beginning(monitor, tmp_path):
    state = read_state(tmp_path)
    assert (state.federation, state.phase, state.until, state.least) == ("alps", Phase.GATHERING, 1600.0, 2)
    assert [site.activity for site in state.sites.values()] == [Activity.ABSENT] * 2


def test_a_round_with_a_site_that_goes_away_and_comes_back(monitor, clock, tmp_path):
    north, south = monitor.state.sites.values()
    monitor.connected({"north", "south"})
    monitor.opening(["north", "south"])
    assert north.activity == Activity.OPENING
    monitor.opened(["north", "south"], {})
    monitor.begin_rounds(20, 5)
    for site in ("north", "south"):
        monitor.asked(site, "train", 6, 60.0)
    clock.now += 12
    monitor.answered("north", 1500, "")
    monitor.lost("south", "not connected", 30.0)
    assert (monitor.state.round, north.activity, north.seconds, north.bytes) == (6, Activity.DONE, 12.0, 1500)
    assert (south.activity, south.connected, south.since, south.until) == (Activity.LOST, False, 1012.0, 1042.0)
    clock.now += 5
    monitor.asked_again("south", 43.0)
    assert (south.activity, south.connected, south.until) == (Activity.WORKING, True, 1060.0)
    monitor.lost("south", "not connected", 30.0)
    monitor.answered("south", 0, "not connected for 31 s")
    assert (south.activity, south.why, south.left_out) == (Activity.LEFT_OUT, "not connected for 31 s", 1)
    assert events(tmp_path) == [
        ("lost", "south", "not connected; it has 30 s to come back"),
        ("back", "south", ""),
        ("lost", "south", "not connected; it has 30 s to come back"),
    ]
    monitor.asked("north", "train", 7, 60.0)
    assert (south.activity, south.why) == (Activity.READY, "")  # a new round


def test_a_site_that_is_refused_may_come_later(monitor):
    site = monitor.state.sites["north"]
    monitor.opening(["north", "stranger"])
    monitor.opened([], {"north": "another\nversion"})
    assert (site.activity, site.why) == (Activity.REFUSED, "another | version")
    monitor.opened(["north"], {})
    assert (site.activity, site.why) == (Activity.READY, "")


def test_an_opening_that_nobody_answered(monitor):
    monitor.opening(["north"])
    monitor.opened([], {})
    assert monitor.state.sites["north"].activity == Activity.ABSENT


def test_changes_are_written_soon_but_not_often(monitor, tmp_path):
    file = tmp_path / FEDERATION_STATE
    seen = {file.stat().st_ino}
    begin = time.monotonic()
    while time.monotonic() < begin + 2.2 * MIN_INTERVAL:
        monitor.answered("north", 1, "")
        seen.add(file.stat().st_mtime_ns)
        read_state(tmp_path)  # it is whole at any moment
        time.sleep(0.005)
    assert len(seen) <= 5
    received = monitor.state.sites["north"].bytes
    time.sleep(2 * MIN_INTERVAL)
    assert read_state(tmp_path).sites["north"].bytes == received > 20


def test_the_end_is_written_at_once_and_is_the_end(monitor, tmp_path):
    monitor.begin_rounds(20, 0)
    monitor.connected({"north"})
    monitor.asked("north", "train", 1, 60.0)
    monitor.end("the disk is full")
    state = read_state(tmp_path)
    assert (state.phase, state.why) == (Phase.FAILED, "the disk is full")
    assert state.sites["north"].activity == Activity.READY
    time.sleep(1.2 * MIN_INTERVAL)
    assert read_state(tmp_path) == state


def test_a_disk_that_takes_nothing_does_not_end_the_run_here(tmp_path, monitor):
    (tmp_path / FEDERATION_STATE).unlink()
    (tmp_path / FEDERATION_STATE).mkdir()
    monitor.connected({"north"})
    assert monitor.state.sites["north"].connected
