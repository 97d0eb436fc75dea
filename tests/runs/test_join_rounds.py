"""Rounds of a hospital that joined: what it starts from, what moves, what it costs, and how it is interrupted."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from crossward.core.weights import Weights
from crossward.runs.checkpoint_writer import BEST, CHECKPOINT
from crossward.runs.join import join
from crossward.runs.run_directory import RunDir

LEFT_OUT = {"partition": {"leave_out": ["hospital-2"]}, "run": {"rounds": 2, "seed": 5}}  # a run of these tests alone


def joined(folder, *overrides):
    return join(folder, "hospital-2", overrides, lambda label: nullcontext([])).joined


def model(folder, file) -> Weights:
    found = RunDir(folder).tree(file)["state"]["model"]
    assert isinstance(found, Weights)
    return found


def lines(run, name):
    return [json.loads(line) for line in (run.folder / name).read_text().splitlines()]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_with_all_weights_shared_it_goes_on_from_the_federation_s(finished_run, method):
    """As a federation of one: each round starts where its last one ended, and what it learns is kept."""
    federation = finished_run(method, **LEFT_OUT)
    one, two = (joined(federation.folder, f"run.rounds={rounds}") for rounds in (1, 2))
    given, after_one, after_two = (
        model(federation.folder, BEST),
        model(one.folder, CHECKPOINT),
        model(two.folder, CHECKPOINT),
    )
    assert not any(after_one[name].equal(given[name]) for name in ("head.weight", "body.0.weight"))
    assert not any(after_two[name].equal(after_one[name]) for name in ("head.weight", "body.0.weight"))
    moved = [(after - given).norm() for after in (after_one, after_two)]
    own = joined(federation.folder, "run.rounds=1", "train.lr=1e-6")
    assert 0 < (model(own.folder, CHECKPOINT) - given).norm() < 0.01 * moved[0]  # it did start there
    losses = [line["loss"]["hospital-2"] for line in lines(two, "metrics.jsonl")]
    assert losses[1] < losses[0]


def test_with_weights_of_its_own_what_is_shared_stays(finished_run):
    federation = finished_run("fedrep", **LEFT_OUT)
    run = joined(federation.folder, "run.rounds=2")
    given, after = model(federation.folder, BEST), model(run.folder, CHECKPOINT)
    assert {name for name in given if not after[name].equal(given[name])} == set()
    first, second = (line["metrics"]["val"]["local"]["mean"]["nll"] for line in lines(run, "metrics.jsonl"))
    assert first != second  # its head moves


@pytest.mark.parametrize("method", ["mh-pflgb", "fedavg"])
def test_it_is_given_the_federation_s_once_and_sends_nothing(finished_run, method):
    federation = finished_run(method, **LEFT_OUT)
    run = joined(federation.folder, "run.rounds=2")
    sent = lines(run, "traffic.jsonl")
    assert {(row["round"], row["direction"]) for row in sent} == {(1, "down")}
    size = sum(t.numel() * t.element_size() for t in model(federation.folder, BEST).values())
    assert sum(row["bytes"] for row in sent) == size
    assert [line["bytes"] for line in lines(run, "metrics.jsonl")] == [{"down": size, "up": 0}, {"down": 0, "up": 0}]


def test_an_interrupted_one_is_told_to_join_again(finished_run, cli, monkeypatch):
    folder = finished_run("mh-pflgb", **LEFT_OUT).folder

    def interrupted_run(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("crossward.runs.recorder.Recorder.on_round", interrupted_run)
    said = cli("join", folder, "--site", "hospital-2")
    assert said.code == 130
    assert f"Join again by: crossward join {folder} --site hospital-2" in said.err
    assert "resume" not in said.err
