"""The state of a federation: it is read back as it was written, in words that say whom a run waits for, and a file that
no coordinator wrote is refused."""

from __future__ import annotations

import json

import pytest

from crossward.foreign import ForeignError
from crossward.hospitals.federation_state import (
    Activity,
    FederationState,
    Phase,
    SiteState,
    activity_words,
    state_from,
    state_words,
    waited_for,
)

NOW = 1_000_000.0


def in_round_6(**sites: SiteState) -> FederationState:
    return FederationState("alps", Phase.ROUNDS, NOW - 20, round=6, rounds=20, written=NOW, sites=sites)


def test_the_sentence_of_a_round():
    state = in_round_6(
        north=SiteState(Activity.DONE, True, NOW, seconds=12.2),
        south=SiteState(Activity.LOST, False, NOW - 12, NOW + 18, step="train", round=6, why="not connected"),
    )
    assert state_words(state, NOW) == ("round 6: north done in 12 s, waiting for south, not connected for 12 of 30 s")
    assert waited_for(state) == ["south"]


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (SiteState(Activity.WORKING, True, NOW - 8, step="train"), "west training for 8 s"),
        (SiteState(Activity.WORKING, True, NOW - 8, step="judge"), "west evaluating for 8 s"),
        (SiteState(Activity.WORKING, True, NOW - 8, step="digest"), "west in step digest for 8 s"),
        (SiteState(Activity.LEFT_OUT, True, NOW, why="no answer within 60 s"), "west left out: no answer within 60 s"),
        (SiteState(Activity.REFUSED, True, NOW, why="other classes"), "west refused: other classes"),
        (SiteState(Activity.DONE, False, NOW, seconds=3), "west done in 3 s, not connected now"),
        (SiteState(Activity.READY, True, NOW), "no site is asked for anything at the moment"),
        (SiteState(Activity.ABSENT, False, NOW), "west not connected"),
    ],
)
def test_what_a_site_does_in_words(site, words):
    assert state_words(in_round_6(west=site), NOW) == f"round 6: {words}"


def test_before_round_1_the_sentence_says_who_is_missing_and_when_the_run_gives_up():
    state = FederationState(
        "alps",
        until=NOW + 588,
        least=2,
        sites={
            "north": SiteState(Activity.READY, True),
            "south": SiteState(),
            "west": SiteState(Activity.REFUSED, True, why="another version"),
        },
    )
    assert state_words(state, NOW) == (
        "before round 1: north is here; west was refused: another version; "
        "waiting for south, not connected, gives up in 588 s"
    )
    assert waited_for(state) == ["south"]


def test_ends_in_words():
    assert state_words(FederationState(phase=Phase.FINISHED, round=20), NOW) == "finished after round 20"
    assert state_words(FederationState(phase=Phase.FAILED, why="no sites"), NOW) == "failed: no sites"
    assert waited_for(FederationState(phase=Phase.FAILED, sites={"north": SiteState(Activity.LOST)})) == []


def test_every_activity_has_words():
    assert all(activity_words(SiteState(activity, step="train")) for activity in Activity)


def test_a_state_is_read_back_as_it_was_written():
    state = in_round_6(
        north=SiteState(Activity.LEFT_OUT, True, NOW, 0.0, "train", 6, 1.5, "NaN in its weights", 3, 44_000_000)
    )
    assert state_from(json.loads(json.dumps(state.document()))) == state
    assert state.bytes == 44_000_000


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "dancing"},
        {"phase": None},
        {"round": -1},
        {"round": "6"},
        {"written": float("nan")},
        {"sites": []},
        {"sites": {"north": 1}},
        {"sites": {"north": {"activity": "asleep"}}},
        {"sites": {"north": {"activity": "done", "bytes": 1e9}}},
        {"sites": {str(number): {"activity": "done"} for number in range(10_001)}},
    ],
)
def test_a_file_that_no_coordinator_wrote_is_refused(change):
    with pytest.raises(ForeignError):
        state_from(in_round_6(north=SiteState()).document() | change)


def test_text_in_the_file_cannot_take_over_a_terminal():
    document = in_round_6(north=SiteState(Activity.LEFT_OUT, why="\x1b[2J\nround 7: all done")).document()
    document["sites"]["\x1b]0;x"] = document["sites"].pop("north")
    words = state_words(state_from(document), NOW)
    assert "\x1b" not in words
    assert "\n" not in words
