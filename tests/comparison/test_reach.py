"""Reach: rounds and parameters until a target, counted by hand on run directories that these tests write."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import crossward
from crossward.comparison.reach import CostToTarget, RunCost, cost_to_target, spread
from crossward.errors import ConfigError, StorageError
from crossward.runs.run_directory import RunDir

Scores = Sequence[float | None]  # of the rounds; None: the round was not evaluated
MODEL = {"down": {"model": 400}, "up": {"model": 400, "n": 4}}  # bytes a round
PROTOTYPES = {"down": {"model": 400, "prototypes": 80}, "up": {"model": 400, "prototypes": 80, "n": 4}}
CURVE = (0.1, 0.2, 0.3, 0.4, 0.5)


@pytest.fixture
def written(tmp_path) -> Callable[..., Path]:
    """A run directory with these scores, as far as `cost_to_target` reads it."""

    def write(
        name: str,
        scores: Scores,
        traffic: Mapping[str, Mapping[str, int]] = MODEL,
        *,
        seed: int = 0,
        folder: str = "",
        metric: str = "f1",
        partition: str = "p",
        data: str = "pbc",
        classes: Sequence[str] = ("a", "b"),
        chosen: int | None = None,
        **about: Any,
    ) -> Path:
        """`chosen` is the round that validation chose: by default the last that was evaluated."""
        last = max((round for round, score in enumerate(scores, 1) if score is not None), default=0)
        rundir = RunDir.create(tmp_path / (folder or f"{name}-s{seed}"))
        task = {"name": "classification", "classes": list(classes), "main": "f1"}
        known = {"method": {"name": name}, "plugins": {}, "task": task, "images": {"size": [28, 28]}}
        settings = {"config": {"run": {"seed": seed}}, "status": "finished", "pooled": False}
        rundir.write("run.json", {"format": 1, **known, **settings, **about})
        rundir.write("partition.json", {"hash": partition, "collection": {"name": data}})
        for round, score in enumerate(scores, 1):
            views = {"global": {metric: score, "n": 9}, "local": {"mean": {metric: 0.5 * (score or 0)}, "sites": {}}}
            metrics = None if score is None else {"test": views}
            rundir.append("metrics.jsonl", [{"round": round, "metrics": metrics, "best": round == (chosen or last)}])
            lines = [
                {"round": round, "step": "train", "direction": direction, "item": item, "bytes": count, "clients": 2}
                for direction, items in traffic.items()
                for item, count in items.items()
            ]
            rundir.append("traffic.jsonl", lines)
        return rundir.folder

    return write


def only_run(result: CostToTarget, method: str) -> RunCost:
    [run] = next(cost.runs for cost in result.costs if cost.method == method)
    return run


def test_by_hand(written):
    runs = [written("fedavg", CURVE), written("fedcd", (0.3, 0.5, 0.6), PROTOTYPES)]
    result = cost_to_target(runs, reference="fedavg")
    assert result.spec.metric == "f1"
    assert result.target_of == "fedavg"
    assert result.targets == [0.5]
    assert result.warnings == ()
    slow = only_run(result, "fedavg")
    assert slow.rounds == 5
    assert slow.bytes == {"up": 2020, "down": 2000, "total": 4020}
    assert slow.times_rounds == 1.0
    assert slow.times_parameters == 1.0
    assert slow.parameters() == {"up": 505, "down": 500, "total": 1005}
    assert slow.mib() == {"up": 2020 / 2**20, "down": 2000 / 2**20, "total": 4020 / 2**20}
    quick = only_run(result, "fedcd")
    assert quick.rounds == 2
    assert quick.bytes == {"up": 968, "down": 960, "total": 1928}
    assert quick.items == {"model": 1600, "prototypes": 320, "n": 8}
    assert quick.times_rounds == 2 / 5
    assert quick.times_parameters == 1928 / 4020
    assert quick.best == 0.6
    assert quick.target == 0.5
    assert quick.folder == str(runs[1])


def test_the_target_is_one_method_and_the_reference_another(written):
    runs = [written("fedavg", CURVE), written("fedcd", (0.3, 0.5, 0.6)), written("fedproc", (0.1, 0.2, 0.6))]
    result = cost_to_target(runs, target="fedavg", reference="fedcd")
    times_rounds = {cost.method: cost.runs[0].times_rounds for cost in result.costs}
    assert times_rounds == {"fedavg": 2.5, "fedcd": 1.0, "fedproc": 1.5}


def test_the_first_round_counts_also_for_the_method_that_sets_the_target(written):
    early = cost_to_target([written("early", (0.1, 0.6, 0.5))], reference="early")
    assert only_run(early, "early").rounds == 2


def test_a_window_smooths(written):
    run = written("fedavg", (0.1, 0.6, 0.2, 0.5, 0.6))
    assert only_run(cost_to_target([run], reference="fedavg", target=0.5), "fedavg").rounds == 2
    smooth = only_run(cost_to_target([run], reference="fedavg", target=0.5, window=2), "fedavg")
    assert smooth.rounds == 5
    assert smooth.best == 0.6
    ended = cost_to_target([run], reference="fedavg", window=2)
    assert ended.targets == pytest.approx([0.55])
    assert only_run(ended, "fedavg").rounds == 5
    assert cost_to_target([run], reference="fedavg", last=3).targets == pytest.approx([1.3 / 3])


def test_best_is_the_round_that_validation_chose_and_not_the_best_test_value(written):
    result = cost_to_target([written("fedavg", (0.1, 0.6, 0.5, 0.2), chosen=3)], reference="fedavg", target=0.5)
    assert only_run(result, "fedavg").best == 0.5
    assert result.document()["methods"][0]["best"] == {"mean": 0.5, "std": None}


def test_a_run_whose_chosen_round_has_no_such_figure_has_no_best_value(written):
    result = cost_to_target([written("fedavg", (None, 0.6), chosen=1)], reference="fedavg", target=0.5)
    assert only_run(result, "fedavg").best is None
    assert result.document()["methods"][0]["best"] is None


def test_a_run_that_does_not_reach_the_target_has_the_value_that_validation_chose(written):
    runs = [written("fedavg", CURVE), written("poor", (0.1, 0.3, 0.2), chosen=2)]
    result = cost_to_target(runs, reference="fedavg")
    poor = only_run(result, "poor")
    assert poor.rounds is None
    assert poor.best == 0.3
    assert poor.bytes == {}
    assert poor.times_rounds is None
    assert poor.times_parameters is None
    document = result.document()["methods"][1]
    assert document["reached"] == 0
    assert document["of"] == 1
    assert document["rounds"] is None
    assert document["best"] == {"mean": 0.3, "std": None}


def test_a_reference_that_does_not_reach_the_target(written):
    runs = [written("fedavg", CURVE), written("poor", (0.1, 0.3, 0.2))]
    without = cost_to_target(runs, reference="poor", target=0.5)
    assert only_run(without, "fedavg").times_rounds is None
    [warning] = without.warnings
    assert warning == f"{runs[0]} is compared with nothing: the reference did not reach the target with seed 0"


def test_lower_is_better_for_losses(written):
    runs = [written("fedavg", (2.0, 1.5, 1.0), metric="nll"), written("fedcd", (1.0, 1.2, 0.9), metric="nll")]
    result = cost_to_target(runs, reference="fedavg", metric="nll")
    assert [cost.runs[0].rounds for cost in result.costs] == [3, 1]
    assert [cost.runs[0].best for cost in result.costs] == [1.0, 0.9]


def test_rounds_that_were_not_evaluated_still_cost(written):
    result = cost_to_target([written("fedavg", (None, None, 0.4, None, 0.5))], reference="fedavg")
    run = only_run(result, "fedavg")
    assert run.rounds == 5
    assert run.bytes["total"] == 5 * 804
    [warning] = result.warnings
    assert "not evaluated in every round (the first one seen is round 3): a target may be reached before" in warning
    assert "evaluate.every" in cost_to_target([written("x", (0.1, None, 0.2))], reference="x").warnings[0]


def test_the_local_view_is_the_mean_over_sites(written):
    result = cost_to_target([written("fedavg", CURVE)], reference="fedavg", target=0.2, view="local")
    assert only_run(result, "fedavg").rounds == 4
    assert only_run(result, "fedavg").best == 0.25


def test_seeds_are_paired_and_each_has_its_own_target(written):
    runs = [
        written("fedavg", (0.1, 0.2, 0.3, 0.4), seed=0),
        written("fedavg", (0.3, 0.4, 0.5, 0.6, 0.7), seed=1),
        written("fedcd", (0.3, 0.4), seed=0),  # 2 of 4
        written("fedcd", (0.7,), seed=1),  # 1 of 5
    ]
    result = cost_to_target(runs, reference="fedavg")
    assert result.targets == [0.4, 0.7]
    assert [cost.method for cost in result.costs] == ["fedavg", "fedcd"]
    assert [cost.reached for cost in result.costs] == [2, 2]
    document = result.document()["methods"][1]
    assert document["rounds"] == {"mean": 1.5, "std": pytest.approx(0.5**0.5)}
    assert document["times_rounds"] == {"mean": pytest.approx(0.35), "std": pytest.approx(0.3 / 2**0.5)}
    assert document["parameters"] == {"mean": 1.5 * 201, "std": pytest.approx(201 * 0.5**0.5)}
    assert document["parameters_a_round"] == {"mean": 201, "std": 0}


def test_a_seed_that_the_reference_lacks(written):
    runs = [written("fedavg", CURVE), written("fedcd", CURVE), written("fedcd", CURVE, seed=1)]
    by_end = cost_to_target(runs, reference="fedavg")
    assert [len(cost.runs) for cost in by_end.costs] == [1, 1]
    assert by_end.warnings == (f"{runs[2]} is left out: there is no run of fedavg with seed 1",)
    by_number = cost_to_target(runs, reference="fedavg", target=0.3)
    assert [run.times_rounds for run in by_number.costs[1].runs] == [1.0, None]
    assert by_number.warnings == (f"{runs[2]} is compared with nothing: the reference has no run with seed 1",)


def test_runs_of_one_method_are_labelled_by_the_options_that_differ(written):
    method = {"name": "fedbm", "tau": 1.0}
    runs = [
        written("fedavg", CURVE),
        written("fedbm", CURVE, folder="one", method=method | {"balanced": False}),
        written("fedbm", CURVE, folder="two", method=method | {"balanced": True}),
        written("x+npr", CURVE, folder="three", plugins={"npr": {"k": 3}}),
        written("x+npr", CURVE, folder="four", plugins={"npr": {"k": 5}}),
    ]
    labels = [cost.method for cost in cost_to_target(runs, reference="fedavg").costs]
    assert labels == ["fedavg", "fedbm (balanced=false)", "fedbm (balanced=true)", "x+npr (npr.k=3)", "x+npr (npr.k=5)"]
    relabelled = cost_to_target(runs[:3], reference="plain", labels=["fedavg", "plain", "balanced"])
    assert [cost.method for cost in relabelled.costs] == ["fedavg", "plain", "balanced"]


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"reference": "fedcb"}, ["no run of 'fedcb'", "Did you mean 'fedcd'? Known: fedavg, fedcd."]),
        ({"target": "fedagv"}, ["no run of 'fedagv'", "Did you mean 'fedavg'?"]),
        ({"target": 66.0}, ["f1 cannot be 66.0", "say 0.66 for 66 %"]),
        ({"target": float("nan")}, ["f1 cannot be nan"]),
        ({"metric": "F-1"}, ["some runs have no F-1 on test, global view", "fedavg-s0 has f1", "Did you mean 'f1'?"]),
        ({"split": "val"}, ["no f1 on val", "fedavg-s0 has none at all", "Choose another view or split."]),
        ({"view": "globe"}, ["no view 'globe'", "Did you mean 'global'?"]),
        ({"split": "train"}, ["no split 'train'", "Known: test, val."]),
        ({"window": 0}, ["window must be at least 1, not 0"]),
        ({"window": 4}, ["a window of 4 is longer than some runs", "fedcd-s0: 3 evaluated rounds"]),
        ({"last": 6}, ["fedavg-s0 has 5 evaluated rounds, fewer than the last 6"]),
    ],
)
def test_what_is_refused(written, options, messages):
    runs = [written("fedavg", CURVE), written("fedcd", (0.3, 0.5, 0.6))]
    with pytest.raises(ConfigError) as error:
        cost_to_target(runs, **{"reference": "fedavg", **options})
    assert [message for message in messages if message not in str(error.value)] == []


def test_runs_that_send_nothing_are_refused(written):
    runs = [written("fedavg", CURVE), written("local", CURVE, {}), written("central", CURVE, pooled=True)]
    runs.append(written("fedcd", ()))
    with pytest.raises(ConfigError) as error:
        cost_to_target(runs, reference="fedavg")
    assert error.value.details == (
        f"{runs[1]}: local sends nothing",
        f"{runs[2]}: central trains on all images in one place",
        f"{runs[3]}: no round is done",
    )


def test_one_run_of_a_method_and_seed(written, tmp_path):
    runs = [written("fedavg", CURVE, folder="one"), written("fedavg", CURVE, folder="two")]
    with pytest.raises(ConfigError, match="two runs of 'fedavg' have seed 0") as error:
        cost_to_target(runs, reference="fedavg")
    assert error.value.details == tuple(map(str, runs))
    with pytest.raises(ConfigError, match="no runs were given"):
        cost_to_target([], reference="fedavg")
    with pytest.raises(StorageError, match="not a run directory"):
        cost_to_target([tmp_path / "nothing"], reference="fedavg")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"classes": ("a", "c")}, "these runs learn different tasks: classification of a, b; classification of a, c"),
        ({"data": "ham"}, "these runs learn from different data: pbc at 28x28, ham at 28x28"),
        ({"images": {"size": [64, 32]}}, "these runs learn from different data: pbc at 28x28, pbc at 64x32"),
        ({"partition": "q"}, "the runs of seed 0 share the images out among the sites in different ways"),
        ({"status": "running"}, "fedcd-s0 has not finished: it is running"),
    ],
)
def test_what_deserves_a_second_look(written, other, message):
    result = cost_to_target([written("fedavg", CURVE), written("fedcd", CURVE, **other)], reference="fedavg")
    [warning] = result.warnings
    assert warning.endswith(message)


def test_other_seeds_may_share_images_out_otherwise(written):
    runs = [written("fedavg", CURVE, seed=s, partition=f"p{s}") for s in (0, 1)]
    assert cost_to_target(runs, reference="fedavg").warnings == ()


def test_spread():
    assert spread([]) is None
    assert spread([3.0]) == (3.0, None)
    assert spread([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))


def test_a_real_run(finished_run):
    run = finished_run()
    result = cost_to_target([run.folder], reference="fedavg", metric="accuracy", last=3)
    cost = only_run(result, "fedavg")
    scores = [line["metrics"]["test"]["global"]["accuracy"] for line in run.rounds]
    assert result.targets == pytest.approx([sum(scores) / 3])
    assert cost.rounds == next(round for round, score in enumerate(scores, 1) if score >= result.targets[0])
    sent = [line["bytes"] for line in run.rounds[: cost.rounds]]
    assert cost.bytes["up"] == sum(line["up"] for line in sent)
    assert cost.bytes["down"] == sum(line["down"] for line in sent)
    assert result.warnings == ()


def test_a_result_stands_for_its_folder(finished_run):
    result = cost_to_target([crossward.load(finished_run().folder)], reference="fedavg")
    assert only_run(result, "fedavg").times_rounds == 1


def test_the_command_prints_a_table(cli, written, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    runs = [written("fedavg", CURVE), written("fedcd", (0.3, 0.5), PROTOTYPES), written("poor", (0.1, 0.3))]
    output = cli("reach", *runs, "--reference", "fedcd", "--target", "fedavg")
    assert output.code == 0
    assert "Until f1 on test (global view) reached 50.00, the end of fedavg" in output.out
    rows = {words[0]: words[1:] for line in output.out.splitlines() if (words := line.split())}
    assert rows["fedavg"][:3] == ["1/1", "5", "2.50"]
    assert rows["fedcd"][:3] == ["1/1", "2", "1.00"]
    assert rows["poor"] == ["0/1", "not", "reached", *"——————", "30.0"]
    assert "note:" not in output.out


def test_the_command_prints_warnings_and_means_over_seeds(cli, written, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    runs = [written("fedavg", CURVE, seed=s, status="running") for s in (0, 1)]
    output = cli("reach", *runs, "--reference", "fedavg", "--target", "0.15")
    assert output.out.count("note: ") == 2
    assert "reached 15.00 " in output.out
    assert "2.0 ±0.0" in output.out


def test_the_command_prints_json(cli, written):
    output = cli(
        "reach", written("fedavg", CURVE), "--reference", "fedavg", "--json", "--window", "2", "--metric", "f1"
    )
    document = json.loads(output.out)
    assert document["metric"] == "f1"
    assert document["view"] == "global"
    assert document["split"] == "test"
    assert document["window"] == 2
    assert document["reference"] == "fedavg"
    assert document["warnings"] == []
    assert document["target"] == {"of": "fedavg", "mean": pytest.approx(0.45), "std": None}
    [method] = document["methods"]
    assert method["runs"][0]["parameters"] == {"up": 505, "down": 500, "total": 1005}
    assert method["runs"][0]["bytes"]["total"] == 4020


def test_the_command_refuses_by_exit_code(cli, written):
    run = written("fedavg", CURVE)
    assert cli("reach", run).code == 2
    assert "there is no run of 'fedprox' among these" in cli("reach", run, "--reference", "fedprox").err
