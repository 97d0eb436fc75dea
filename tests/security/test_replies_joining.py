"""Who joins a run, and with what: a site that lies about its classes, one whose class names take over a terminal, and a
stranger who is sent nothing."""

from __future__ import annotations

import pytest

import crossward
from crossward.errors import RunError
from crossward.hospitals.flower.records import from_records
from crossward.testing.hostile_site import HOSTILE, SITES, HostileFederation, change_header


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path / "cache"))


def refusals(federation):
    with pytest.raises(RunError) as caught:
        federation.coordinate()
    assert str(caught.value).replace("\n", "").isprintable()
    return dict(line.split(": ", 1) for line in caught.value.details)


@pytest.mark.parametrize("first", [True, False], ids=["comes first", "comes second"])
def test_a_lie_about_classes_blames_the_liar(tmp_path, first, monkeypatch):
    """The honest sites that came after the liar were refused in its stead."""
    federation = HostileFederation(tmp_path, hostile={"open": change_header(classes=["poodle", "cat"], counts=[4, 4])})
    if first:
        monkeypatch.setattr("crossward.testing.hostile_site.HOSTILE", SITES[0])
    liar = SITES[0] if first else HOSTILE
    refused = refusals(federation)
    assert list(refused) == [liar]
    others = [name for name in SITES if name != liar]
    assert f"it has the classes poodle, cat, where {others[0]} and {others[1]} have " in refused[liar]


def test_a_class_name_that_takes_over_a_terminal(tmp_path):
    federation = HostileFederation(tmp_path, hostile={"open": change_header(classes=["a\x1b[31m", "b\nforged"])})
    refused = refusals(federation)
    assert list(refused) == [HOSTILE]
    assert "\\x1b" in refused[HOSTILE]


@pytest.mark.parametrize(
    "facts",
    [
        {"classes": 10**400},
        {"classes": ["a"] * 10**5},
        {"size": [10**9, 10**9]},
        {"channels": -1},
        {"images": {"train": -5, "val": 0, "test": 0}},
        {"images": {"train": 10**400, "val": 0, "test": 0}},
        {"counts": [1.5]},
        {"task": ["classification"]},
        {"site": "\x1b[2Jhospital-1"},
        {"crossward": "\x1b[2J"},
        {"protocol": [[[[1]]]]},
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_facts_that_cannot_be_so(tmp_path, facts):
    refused = refusals(HostileFederation(tmp_path, hostile={"open": change_header(**facts)}))
    assert len(refused) <= 2
    assert set(refused) & {HOSTILE, "\\x1b[2Jhospital-1"}


def test_a_stranger_is_sent_nothing(tmp_path):
    """The configuration and the public images were sent to whoever had connected."""
    federation = HostileFederation(tmp_path)
    grid = federation.grid()
    asked = []
    federation.grid = lambda: grid
    grid.tamper = lambda request, reply: (
        asked.append((request.metadata.dst_node_id, from_records(request.content))) or reply
    )
    grid.nodes[66] = {}
    with pytest.raises(RunError) as caught:
        federation.coordinate(nodes={"hospital-1": 0, "hospital-2": 1})  # the third node has no key, nor has 66
    assert {node for node, _ in asked} == {0, 1}
    assert any("hospital-3: it has not come" in line for line in caught.value.details)
    assert {event["site"] for event in federation.events("refused")} >= {"node 2", "node 66"}


def test_strangers_do_not_disturb_a_run(tmp_path):
    federation = HostileFederation(tmp_path)
    grid = federation.grid()
    federation.grid = lambda: grid
    grid.nodes[66] = {}
    federation.coordinate(nodes={name: node for node, name in enumerate(SITES)})
    assert crossward.load(federation.run).about["status"] == "finished"
