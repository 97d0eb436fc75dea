"""The dashboard in a browser: curves grow while a run goes on; mouse, keyboard, screen readers, narrow screens."""

from __future__ import annotations

import pytest
from drawn_runs import Drawn, draw_runs
from open_dashboard import draw_running, served, until, visits
from opened_page import serious_violations

HOSTILE = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def scene(tmp_path_factory, cache):
    """A dashboard over HTTP, with a run that is under way and two that have finished."""
    root = tmp_path_factory.mktemp("scene") / "runs"
    draw_runs(root / "blood", Drawn(methods=("local", "fedrep"), seeds=(0,), rounds=3))
    (root / "blood" / "study.json").write_text('{"format": 1, "cells": {}}')
    running = draw_running(root / HOSTILE.replace("/", "_"), rounds=60, done=3, sites=("north", HOSTILE))
    with served(root) as address:
        yield address, running


@pytest.fixture
def visit(browser, scene):
    """Open the dashboard; what it complained of and what it asked for is checked when the test ends."""
    with visits(browser, scene[0]) as go:
        yield go


def open_run(view):
    view.locator(".tile").first.click()
    view.wait_for_selector("html[data-rounds]", state="attached")
    view.wait_for_selector("#scores .plot svg path")


def test_a_running_runs_curve_grows_on_the_page(visit, scene):
    _, running = scene
    view = visit()
    assert "token" not in view.url
    open_run(view)
    points = lambda: view.locator("#scores .plot svg .mark-symbol path").count()
    label = lambda: view.locator("#lead").inner_text()
    before = points()
    assert before >= 3
    assert f"Round {running.done} of 60" in label()
    running.go_on(4)
    until(view, lambda: f"Round {running.done} of 60" in label())
    until(view, lambda: points() > before)
    assert view.locator("#meter").get_attribute("aria-valuenow") == str(running.done)
    assert HOSTILE in view.locator("#sites").inner_text()


def test_the_list_follows_a_run_and_is_filtered_sorted_and_picked_by_keyboard(visit, scene):
    _, running = scene
    view = visit()
    assert HOSTILE in view.locator(".tile strong").first.inner_text()
    running.go_on()
    until(view, lambda: f"round {running.done} of 60" in view.locator(".tile").first.inner_text())
    view.locator("#filter").focus()
    view.keyboard.type("blood rep")
    until(view, lambda: view.locator("#runs tbody tr").count() == 1)
    view.locator("#filter").fill("")
    header = view.locator("#runs thead [data-key=name] button")
    header.focus()
    view.keyboard.press("Enter")
    assert view.locator("#runs thead [data-key=name]").get_attribute("aria-sort") == "ascending"
    names = [cell.inner_text() for cell in view.locator("#runs tbody th a").all()]
    assert names == sorted(names)
    for name in ("blood/local-s0", "blood/fedrep-s0"):
        view.get_by_label(f"Pick {name}").focus()
        view.keyboard.press("Space")
    assert view.locator("#picked").inner_text() == "2 picked"
    view.locator("#differences").focus()
    view.keyboard.press("Enter")
    view.wait_for_url("**/differences?*")
    assert "method.name" in view.locator("table").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(visit, scheme):
    view = visit(scheme=scheme, bypass=True)
    assert serious_violations(view) == []
    open_run(view)
    assert serious_violations(view) == []


@pytest.mark.parametrize("width", [360, 1600])
def test_pages_can_be_read_at_any_width(visit, width):
    view = visit(width=width)
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    open_run(view)
    assert view.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_says_that_the_dashboard_was_started_again(browser, tmp_path, cache):
    draw_runs(tmp_path, Drawn(methods=("fedavg",), seeds=(0,), rounds=1))
    context = browser.new_context()
    view = context.new_page()
    words = lambda: view.locator("#connection").inner_text()
    with served(tmp_path) as address:
        view.goto(address)
        until(view, lambda: words() == "live")
    until(view, lambda: "lost" in words())
    with served(tmp_path, port=int(address.split(":")[2].partition("/")[0])):
        until(view, lambda: "open the address that crossward dashboard prints" in words())
    context.close()


def test_the_report_opens_from_the_run(visit):
    view = visit()
    view.locator("#runs a", has_text="blood/fedrep-s0").click()
    until(view, lambda: view.locator("#scores .plot svg .mark-symbol path").count() >= 6)  # two views of three rounds
    view.locator("#actions a").click()
    view.wait_for_selector("#verdict", timeout=120_000)
    view.wait_for_selector("html[data-charts=drawn]", state="attached", timeout=60_000)
    assert view.locator("figure[data-chart] svg").count() >= 1
