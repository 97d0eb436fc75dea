"""The ledger of a site: it counts before steps happen, over runs and restarts, stops when the budget is spent, and
refuses what is not its own."""

from __future__ import annotations

import json
import shutil

import pytest

dp = pytest.importorskip("dp_accounting")

from crossward.privacy.accounting import Release, epsilon_of  # noqa: E402
from crossward.privacy.ledger import Budget, BudgetSpent, LedgerAltered, site_ledger  # noqa: E402

DELTA = 1e-5
STEP = Release(4.0, 0.1, 10)


def spend(ledger, round=1, run="r1", part="train/0", release=STEP, unit="image", **more):
    ledger.spend(release, unit=unit, run=run, round=round, part=part, **more)


@pytest.fixture
def ledger(tmp_path):
    ledger = site_ledger(tmp_path / "north", "north")
    for round in (1, 2, 3):
        spend(ledger, round)
    return ledger


def test_runs_add_up_and_survive_a_restart(ledger):
    spend(ledger, 1, run="r2", release=Release(2.0, 0.2, 5))
    again = site_ledger(ledger.file.parent, "north")
    assert again.releases("r1") == [STEP] * 3
    assert again.spent(DELTA) == epsilon_of([Release(4.0, 0.1, 30), Release(2.0, 0.2, 5)], DELTA)
    assert again.spent(DELTA, "r2") < again.spent(DELTA)


def test_a_site_counts_a_step_that_is_asked_again_and_a_simulation_does_not(ledger):
    spend(ledger, 3, repeats=True)
    assert len(ledger.releases()) == 3
    spend(ledger, 3)
    assert len(ledger.releases()) == 4


def test_the_budget_stops_the_site_before_it_is_exceeded(tmp_path):
    two = epsilon_of([STEP] * 2, DELTA)
    ledger = site_ledger(tmp_path, "north", Budget(epsilon=two + 1e-3, delta=DELTA))
    spend(ledger, 1)
    spend(ledger, 2)
    with pytest.raises(BudgetSpent, match=r"budget of north is spent: epsilon = "):
        spend(ledger, 3)
    assert ledger.spent(DELTA) == two
    with pytest.raises(BudgetSpent, match="first step"):
        site_ledger(tmp_path, "north", Budget(epsilon=0.1, delta=DELTA)).check_plan(STEP, "image")


def test_units_do_not_mix(ledger):
    with pytest.raises(BudgetSpent, match="protects each patient, and the ledger of north each image"):
        spend(ledger, 4, unit="patient")
    with pytest.raises(BudgetSpent, match="do not add up"):
        site_ledger(ledger.file.parent, "north", Budget(unit="patient", epsilon=9)).check_plan(STEP, "image")


def rewritten(ledger, change):
    lines = ledger.file.read_text().splitlines()
    ledger.file.write_text("".join(f"{line}\n" for line in change(lines)))


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [line.replace('"steps": 10', '"steps": 1') for line in lines],
        lambda lines: lines[:-1],
        lambda lines: lines[1:],
        lambda lines: [lines[1], lines[0], lines[2]],
        lambda lines: [*lines[:2], lines[0]],
        lambda lines: [],
    ],
    ids=["changed", "cut", "beheaded", "swapped", "repeated", "emptied"],
)
def test_tampering_is_noticed(ledger, change):
    rewritten(ledger, change)
    with pytest.raises(LedgerAltered, match="not as this site wrote it"):
        ledger.spent(DELTA)
    with pytest.raises(LedgerAltered):
        spend(ledger, 4)


@pytest.mark.parametrize("name", ["privacy.key", "privacy.head"])
def test_a_ledger_without_its_key_or_head_is_refused(ledger, name):
    (ledger.file.parent / name).unlink()
    with pytest.raises(LedgerAltered):
        spend(ledger, 4)


def test_the_ledger_of_another_site_is_refused(ledger, tmp_path):
    """With its key and its head, so that every tag is right; and without them."""
    shutil.copytree(ledger.file.parent, tmp_path / "south")
    with pytest.raises(LedgerAltered, match="ledger of north"):
        spend(site_ledger(tmp_path / "south", "south"))
    south = site_ledger(tmp_path / "own", "south")
    spend(south)
    shutil.copy(ledger.file, south.file)
    with pytest.raises(LedgerAltered, match="another key"):
        spend(south, 2)


def test_a_crash_within_a_line_is_survived(ledger):
    with ledger.file.open("ab") as file:
        file.write(b'{"time": "2026-11-18", "number": 4, "si')
    assert len(ledger.releases()) == 3
    spend(ledger, 4)
    assert len(ledger.releases()) == 4


def test_a_crash_between_line_and_head_is_survived(ledger):
    head = ledger.head_file.read_bytes()
    spend(ledger, 4)
    ledger.head_file.write_bytes(head)
    assert len(site_ledger(ledger.file.parent, "north").releases()) == 4


def test_a_line_says_what_was_released(ledger):
    line = json.loads(ledger.file.read_text().splitlines()[0])
    assert {key: line[key] for key in ("site", "run", "round", "unit", "noise", "rate", "steps")} == {
        "site": "north", "run": "r1", "round": 1, "unit": "image", "noise": 4.0, "rate": 0.1, "steps": 10,
    }  # fmt: skip
