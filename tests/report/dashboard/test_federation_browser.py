"""The page of a federation in a browser: it follows the coordinator's state, counts on by itself, and shows hostile
names as text."""

from __future__ import annotations

import json
import time

import pytest
from open_dashboard import draw_running, served, until, visits, write_state
from opened_page import serious_violations

from crossward.hospitals.federation_state import Phase

HOSTILE = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def scene(tmp_path_factory, cache):
    """A dashboard over HTTP, with a run across hospitals."""
    root = tmp_path_factory.mktemp("federation") / "runs"
    running = draw_running(root, rounds=20, done=5, sites=("north", HOSTILE))
    terms = {"federation": "alps", "sites": ["north", HOSTILE], "least": 2, "deadline": 3600.0, "patience": 30.0}
    (running.folder / "federation.json").write_text(json.dumps(terms))
    event = {"time": "2026-01-02T03:04:05Z", "event": "lost", "site": HOSTILE, "round": 6, "why": "not connected"}
    (running.folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    write_state(running.folder, lost=HOSTILE)
    with served(root) as address:
        yield address, running.folder


@pytest.fixture
def page(browser, scene):
    """Open the page by the link of the run's page; complaints of the browser are checked when the test ends."""
    with visits(browser, scene[0]) as visit:

        def go(**options):
            view = visit(**options)
            view.locator(".tile").first.click()
            link = view.get_by_role("link", name="Who does what now")
            link.focus()
            view.keyboard.press("Enter")
            view.wait_for_selector("html[data-federation=drawn]", state="attached")
            return view

        yield go


def card(view, place: int) -> str:
    return view.locator(".tile.site").nth(place).inner_text()


def test_who_is_connected_who_is_waited_for_and_why(page, scene):
    write_state(scene[1], lost=HOSTILE)
    view = page()
    until(view, lambda: "Round 6 of 20" in view.locator("#lead").inner_text())
    assert f"Waiting for {HOSTILE}." in view.locator("#lead").inner_text()
    north, away = card(view, 0), card(view, 1)
    assert "done in 12 s (training, round 6)" in north
    assert "1.5 MB" in north
    assert "connected" in north
    assert "not connected" in away
    assert "waited for" in away
    assert "2 times" in away
    assert HOSTILE in away
    assert "1 of 2" in view.locator("#facts").inner_text()
    assert HOSTILE in view.locator("#messages").inner_text()


def test_the_page_counts_on_and_follows_the_state(page, scene):
    write_state(scene[1], lost=HOSTILE)
    view = page()
    before = card(view, 1)
    until(view, lambda: card(view, 1) != before)  # seconds pass without a message
    write_state(scene[1], lost=HOSTILE, phase=Phase.FAILED, why="1 of 2 sites take part")
    until(view, lambda: "The run failed: 1 of 2 sites take part" in view.locator("#lead").inner_text())


def test_a_coordinator_that_is_silent(page, scene):
    write_state(scene[1], lost=HOSTILE, written=time.time() - 300)
    view = page()
    until(view, lambda: "it may be down" in view.locator("#lead").inner_text())
    assert "Last news 5 min ago" in view.locator("#clock").inner_text()


def test_before_round_1_the_page_says_when_the_run_gives_up(page, scene):
    write_state(scene[1], lost=HOSTILE, phase=Phase.GATHERING, round=0, least=2, until=time.time() + 600)
    view = page()
    until(view, lambda: "Before round 1" in view.locator("#lead").inner_text())


def test_a_run_that_was_stopped_in_a_round(page, scene):
    write_state(scene[1], lost=HOSTILE)
    view = page()
    file = scene[1] / "run.json"
    before = file.read_text()
    file.write_text(json.dumps(json.loads(before) | {"status": "stopped"}))
    try:
        until(view, lambda: "The run has ended: it is stopped." in view.locator("#lead").inner_text())
        assert "not connected when the run ended" in card(view, 1)
    finally:
        file.write_text(before)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(page, scene, scheme):
    write_state(scene[1], lost=HOSTILE)
    assert serious_violations(page(scheme=scheme, bypass=True)) == []


@pytest.mark.parametrize("width", [360, 1600])
def test_the_page_can_be_read_at_any_width(page, scene, width):
    write_state(scene[1], lost=HOSTILE)
    view = page(width=width)
    assert view.evaluate("document.documentElement.scrollWidth") <= width
