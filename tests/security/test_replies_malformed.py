"""A site whose reply is no reply: numbers that no float can hold, text that takes over a terminal, objects of another
kind. It is rejected by name, and the run goes on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import crossward
from crossward.core.tree import encode
from crossward.testing.hostile_site import HOSTILE, HostileFederation, change_header

FORGED = "all is well\x1b[2J\x1b]0;root\x07\n2026-01-01 came hospital-9\r\u202eevil\u2028\x00\ud800"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path / "cache"))


def faults_of(federation):
    federation.coordinate()
    assert crossward.load(federation.run).about["status"] == "finished"
    faults = federation.events("fault")
    assert {fault["site"] for fault in faults} == {HOSTILE}
    assert len(federation.rounds) == 2
    return [fault["why"] for fault in faults]


@pytest.mark.parametrize(
    "losses",
    [[10**400], [-(10**400)], [1e300], [float("nan")], [True], ["0.5"], {"a": 1}, [[0.5]], [0.5] * 10**4],
    ids=["10**400", "-10**400", "1e300", "nan", "true", "text", "object", "deep", "ten thousand"],
)
def test_losses_that_no_float_holds(tmp_path, losses):
    """[10**400] raised OverflowError in the coordinator, and everybody's run was over."""
    whys = faults_of(HostileFederation(tmp_path, hostile={"train": change_header(losses=losses)}))
    assert all(why.startswith("rejected: its losses") for why in whys)


def test_a_million_losses_are_refused_unread(tmp_path):
    whys = faults_of(HostileFederation(tmp_path, hostile={"train": change_header(losses=[0.5] * 10**6)}))
    assert all("header" in why and len(why) < 500 for why in whys), whys


@pytest.mark.parametrize(
    "version",
    ["../../etc/passwd", "00000.999", 7, ["00000.000"], "x" * 10**5],
    ids=["path", "other", "int", "list", "long"],
)
def test_a_version_of_memory_that_was_not_asked_for(tmp_path, version):
    whys = faults_of(HostileFederation(tmp_path, hostile={"train": change_header(version=version)}))
    assert all("version" in why and len(why) < 500 for why in whys)


@pytest.mark.parametrize(
    "hostile",
    [
        change_header(failure=FORGED),
        change_header(step=FORGED),
        change_header(failure=[FORGED]),
        change_header(failure={FORGED: 1}),
        lambda reply: replace(reply, payload=encode({FORGED: 1})),
        lambda reply: replace(reply, payload=encode({"model": {FORGED[:-1]: torch.ones(1)}})),
    ],
    ids=["failure", "step", "list", "object", "item", "weight"],
)
def test_text_that_takes_over_a_terminal_or_forges_a_line(tmp_path, hostile, capfd):
    federation = HostileFederation(tmp_path, hostile={"train": hostile})
    for why in faults_of(federation):
        assert why.isprintable()
        assert len(why) <= 2500
    for name in ("events.jsonl", "metrics.jsonl"):
        for line in (federation.run / name).read_text().splitlines():
            assert all(text.isprintable() for text in texts(json.loads(line)))
    assert "\x1b" not in "".join(capfd.readouterr())


def texts(document):
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for key, value in document.items():
            yield key
            yield from texts(value)
    elif isinstance(document, list):
        for value in document:
            yield from texts(value)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00" * 7,
        b"\xff" * 64,
        b"\x08\0\0\0\0\0\0\0{{{{{{{{",
        (2**63).to_bytes(8, "little"),
        encode({"n": 1})[:-1] + b"x",
    ],
    ids=["short", "ones", "braces", "long", "more"],
)
def test_bytes_that_are_no_tree(tmp_path, payload):
    whys = faults_of(HostileFederation(tmp_path, hostile={"train": lambda reply: replace(reply, payload=payload)}))
    assert all(why.startswith("rejected: ") for why in whys)


def test_an_answer_to_an_earlier_question(tmp_path):
    """A reply that was valid once is none to a later question, not even of the same round after a restart."""
    kept = []

    def replay(reply):
        kept.append(reply)
        return replace(kept[0], header=kept[0].header | {k: reply.header[k] for k in ("round", "ask")})

    whys = faults_of(HostileFederation(tmp_path, hostile={"train": replay}))
    assert len(whys) == 1
    assert "another question" in whys[0]
