"""The estimate of a run: from a part of a round to the whole, and what is said where there is no room for it."""

from __future__ import annotations

import time
from collections import namedtuple
from pathlib import Path

import pytest

from crossward.config.reading import config_from
from crossward.core import machine_memory
from crossward.core.engine import SERVER
from crossward.runs import estimate, lifecycle, trial_round
from crossward.runs.build import prepare
from crossward.runs.estimate import (
    RunEstimate,
    StepCost,
    cautions,
    checkpoint_seconds,
    dominant_part,
    estimate_run,
    step_cost,
)
from crossward.runs.run_directory import RunDir
from crossward.runs.run_list import folder_size
from crossward.runs.trial_round import StepTaken

GIB = 1 << 30


@pytest.fixture(autouse=True)
def short_trials(monkeypatch):
    """One batch at each site, then two."""
    monkeypatch.setattr(trial_round, "SECONDS", 0.0)


def taken(*measured: tuple[int, float]) -> list[StepTaken]:
    return [StepTaken("train", images, seconds, 0) for images, seconds in measured]


@pytest.mark.parametrize(
    ("measured", "cost"),
    [
        (taken((10, 2.0), (20, 3.0)), StepCost(1.0, 0.1)),
        (taken((10, 2.0), (10, 4.0)), StepCost(0.0, 0.3)),  # one size: all of it is the images'
        (taken((10, 3.0), (20, 2.0)), StepCost(2.5, 0.0)),  # more images cannot take less
        (taken((10, 1.0), (20, 3.0)), StepCost(0.0, 2 / 15)),  # nor none less than nothing
        (taken((0, 2.0)), StepCost(2.0, 0.0)),
        ([], StepCost(0.0, 0.0)),
    ],
)
def test_a_step_takes_a_time_of_its_own_and_one_for_each_image(measured, cost):
    found = step_cost(measured)
    assert (found.fixed, found.per_image) == (pytest.approx(cost.fixed), pytest.approx(cost.per_image))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "local"])
def test_the_disk_that_is_foreseen_is_what_the_run_takes_or_a_little_more(config, tmp_path, method):
    settings = config_from(config(method={"name": method}, data={"sites": 4, "train": 40, "val": 10, "test": 20}))
    found = estimate_run(settings)
    assert not (tmp_path / "runs").exists()
    assert (found.rounds, found.sites, found.cohort) == (3, 4, 4)
    folder = lifecycle.run(settings).folder
    ended = {part: folder_size(folder / part) for part in ("checkpoint", "weights", "predictions")}
    assert ended["weights"] == pytest.approx(found.disk["weights"], rel=0.05)
    # up to three of each: of the best round, of the last checkpoint and of the one being written; at the end, often one
    assert ended["checkpoint"] <= found.disk["checkpoints"] <= 3.1 * ended["checkpoint"]
    assert 0.9 * ended["predictions"] <= found.disk["predictions"] <= 3.1 * ended["predictions"]
    assert folder_size(folder) < 1.1 * found.total_disk


@pytest.mark.parametrize(
    ("every", "spare_core", "expected"),
    [
        (1, True, 20 * (9.0 - 2.0) + 9.0),  # each round waits for the rest of the last checkpoint, the end for its own
        (4, True, 5 * (9.0 - 8.0) + 9.0),
        (10, True, 9.0),
        (10, False, 2 * 9.0 + 9.0),  # nothing else computes while it is written
        ("auto", True, 9.0),
        ("auto", False, 9.0),  # 90 s, 45 rounds apart
    ],
)
def test_checkpoints_take_the_time_that_rounds_cannot_hide(every, spare_core, expected):
    assert checkpoint_seconds(9.0, every, 20, 2.0, spare_core=spare_core) == pytest.approx(expected)


def test_short_checkpoints_are_written_after_every_round():
    assert checkpoint_seconds(0.4, "auto", 20, 0.1, spare_core=True) == pytest.approx(20 * 0.3 + 0.4)


def test_the_time_of_checkpoints_is_measured(config, monkeypatch):
    written = []
    keep = RunDir.keep

    def slow(self, name, tree):
        keep(self, name, tree)
        if name.startswith("checkpoint/"):
            written.append(name)
            time.sleep(0.2)

    monkeypatch.setattr(RunDir, "keep", slow)
    settings = config(method={"name": "scaffold"}, run={"rounds": 50}, checkpoint={"every": 1})
    monkeypatch.setattr(estimate, "usable_cores", lambda: 1)
    found = estimate_run(config_from(settings))
    assert found.seconds["checkpoints"] > 50 * 0.2
    assert written


def test_more_rounds_sites_and_images_take_more_time(config, monkeypatch):
    costs = {"train": StepCost(1.0, 0.1), "predict": StepCost(0.5, 0.01)}
    monkeypatch.setattr(estimate, "step_cost", lambda steps: costs[steps[0].step])
    data = {"sites": 4, "train": 40, "val": 10, "test": 20, "global_test": 30}
    settings = config_from(config(data=data, run={"rounds": 10}, evaluate={"every": 5}))
    sites = prepare(settings).run_sites
    trained = [sites.work(site, "train") for site in sites.ids]
    found = estimate_run(settings)
    assert found.seconds["training"] == pytest.approx(10 * (4 * 1.0 + 0.1 * sum(trained)))
    predicted = sum(sites.work(site, "predict") for site in [*sites.ids, SERVER])
    assert found.seconds["evaluation"] >= 2 * (5 * 0.5 + 0.01 * predicted)
    half = estimate_run(config_from(config(data=data, run={"rounds": 10, "participation": 0.5})))
    assert half.cohort == 2
    assert half.seconds["training"] < 0.7 * found.seconds["training"]
    pooled = estimate_run(config_from(config(data=data, run={"rounds": 10}, engine={"name": "pool", "workers": 2})))
    assert pooled.seconds["training"] == pytest.approx(found.seconds["training"] / 2)
    assert pooled.memory["workers"] > pooled.memory["process"]


def test_only_a_few_images_of_a_few_sites_are_trained_on(config, monkeypatch):
    seen: list[tuple[int, int]] = []
    real = trial_round._tried

    def watched(thin):
        sites = thin.run_sites
        seen.append((len(sites.clients), max(sites.work(site, "train") for site in sites.clients)))
        return real(thin)

    monkeypatch.setattr(trial_round, "_tried", watched)
    found = estimate_run(config_from(config(data={"sites": 6, "train": 100}, train={"batch_size": 8})))
    assert seen == [(2, 8), (2, 16)]
    assert found.measured == "a round at 2 site(s) with up to 16 images, in batches of 8"
    assert found.memory["process"] > 1e7


def test_every_architecture_is_tried(config):
    sections = {"method": {"name": "local"}, "net": {"name": ["cnn", "squeezenet"]}}
    found = estimate_run(config_from(config(data={"sites": 4, "train": 24}, **sections)))
    folder = lifecycle.run(config(data={"sites": 4, "train": 24}, **sections)).folder
    assert folder_size(folder / "weights") == pytest.approx(found.disk["weights"], rel=0.05)


@pytest.mark.parametrize(
    "sections",
    [
        {"privacy": {"unit": "image", "noise": 1.0}},
        {"privacy": {"secure_aggregation": True}},
        {"method": {"name": "fedmd"}, "partition": {"public": 0.2}},
        {"method": {"name": "central"}},
        {"data": {"kind": "polyp", "size": 32}, "evaluate": {"every": 0}},
    ],
    ids=["noise", "secure sum", "public images", "pooled", "never evaluated"],
)
def test_runs_of_all_kinds_are_estimated(config, sections):
    found = estimate_run(config_from(config(**sections)))
    assert found.seconds["training"] > 0
    assert found.disk["checkpoints"] > 0


def foreseen(memory: int, disk: int) -> RunEstimate:
    parts = {"process": 1, "replies": memory}
    return RunEstimate(1, 1, 1, {"training": 1.0}, parts, {"checkpoints": 1, "predictions": disk}, 0, "")


def test_what_does_not_fit_is_said_with_what_dominates(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine_memory, "available_bytes", lambda: 4 * GIB)
    monkeypatch.setattr(estimate.shutil, "disk_usage", lambda place: usage(9 * GIB, 0, 2 * GIB))
    assert cautions(foreseen(3 * GIB, GIB), tmp_path / "not" / "yet") == []
    memory, disk = cautions(foreseen(5 * GIB, 3 * GIB), tmp_path / "not" / "yet")
    assert memory.startswith("about 5.0 GiB of memory are needed, 4.0 GiB are available; most of it is for replies: ")
    assert disk.startswith(
        f"up to 3.0 GiB of disk are needed, 2.0 GiB are free in {tmp_path / 'not' / 'yet'}; most of "
    )
    assert "evaluate.keep_predictions" in disk
    monkeypatch.setattr(machine_memory, "available_bytes", lambda: None)
    assert cautions(foreseen(5 * GIB, GIB), Path()) == []


def test_the_part_that_takes_most():
    assert dominant_part({"a": 1.0, "b": 3.0, "c": 2.0}) == "b"
