"""Our figures beside the paper's: which runs count for which cell, and what is never averaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from crossward.comparison.papers.filled_tables import FilledTable, fill
from crossward.comparison.papers.tables import Column, paper_table

F1 = Column("PBC", "beta=0.05", "F1")
ACCURACY = Column("PBC", "beta=0.05", "Accuracy")
Change = Callable[[dict[str, Any], dict[str, Any]], None]


@pytest.fixture
def store(tmp_path, finished_run) -> Callable[..., Path]:
    """Stores a run as if it were of PBC by Dirichlet(0.05), with these test metrics, of any method and seed."""
    result = finished_run()
    about, summary = deepcopy(result.about), deepcopy(result.summary)
    about["config"]["data"] = {"source": "pbc", "size": 28}
    about["config"]["partition"] |= {"kind": "dirichlet", "beta": 0.05, "sites": 12}

    def write(
        name: str = "fedavg", f1: float = 0.5, seed: int = 0, change: Change | None = None, **options: Any
    ) -> Path:
        mine, end = deepcopy(about), deepcopy(summary)
        mine["method"] = {"name": name, **options}
        mine["config"]["method"] = {"name": name, **options}
        mine["config"]["run"]["seed"] = seed
        for when in ("best", "last"):
            end[when]["metrics"]["test"]["global"] |= {"f1": f1 if when == "best" else 0.01, "accuracy": f1 / 2}
        if change:
            change(mine, end)
        folder = tmp_path / "runs" / f"run-{len(list(tmp_path.glob('runs/*')))}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(mine))
        (folder / "summary.json").write_text(json.dumps(end))
        return folder

    return write


def filled(tmp_path: Path, name: str = "fedbm-4") -> FilledTable:
    return fill(paper_table(name), [tmp_path / "runs"])


def test_mean_and_sample_deviation_over_seeds_at_the_round_validation_chose(store, tmp_path):
    for seed, f1 in enumerate((0.50, 0.60, 0.40)):
        store(f1=f1, seed=seed)
    table = filled(tmp_path)
    [figure] = table.figures["FedAvg", F1]
    assert figure.mean == pytest.approx(fmean([50, 60, 40]))
    assert figure.std == pytest.approx(stdev([50, 60, 40]))
    assert (figure.n, figure.seeds, figure.setup, figure.when) == (3, (0, 1, 2), "A", "best")
    assert table.figures["FedAvg", ACCURACY][0].mean == pytest.approx(25)
    assert ("FedBM", F1) in table.not_run()
    assert len(table.not_run()) == 42


def test_the_conditions_of_a_setup_are_shown(store, tmp_path):
    store()
    [conditions] = filled(tmp_path).setups.values()
    for words in (
        "pbc, 28x28 pixels",
        "all training images",
        "3 sites (dirichlet)",
        "3 rounds of 1 epoch(s)",
        "seeds 0",
    ):
        assert words in conditions
    assert "the round that f1 on validation chose (local view)" in conditions


def test_one_run_has_no_deviation(store, tmp_path):
    store()
    [figure] = filled(tmp_path).figures["FedAvg", F1]
    assert figure.std is None
    assert figure.n == 1


def test_runs_under_different_conditions_are_never_averaged(store, tmp_path):
    def longer(about: dict[str, Any], summary: dict[str, Any]) -> None:
        about["config"]["train"]["lr"] = 0.5

    store(f1=0.5)
    store(f1=0.9, seed=1, change=longer)
    table = filled(tmp_path)
    assert [(round(figure.mean), figure.n) for figure in table.figures["FedAvg", F1]] == [(50, 1), (90, 1)]
    assert {*table.setups} == {"A", "B"}


def test_another_setting_dataset_or_partition_does_not_count(store, tmp_path):
    def other_beta(about: dict[str, Any], _: dict[str, Any]) -> None:
        about["config"]["partition"]["beta"] = 0.5

    def other_data(about: dict[str, Any], _: dict[str, Any]) -> None:
        about["config"]["data"]["source"] = "ham10000"

    def other_kind(about: dict[str, Any], _: dict[str, Any]) -> None:
        about["config"]["partition"]["kind"] = "dirichlet-balanced"

    for change in (other_beta, other_data, other_kind):
        store(change=change)
    assert not filled(tmp_path).figures


FEDBM = {
    "classifier": "distribution", "weighting": "samples", "balanced": False, "lambda_div": 1.0, "lambda_dis": 0.1,
    "semantic": "surrogate", "conditions": "concept", "statistics": "mixed", "generate": "images",
}  # fmt: skip


def test_an_ablation_is_not_the_method(store, tmp_path):
    store("fedbm", **FEDBM | {"lambda_div": 0.0})
    store("fedbm", **FEDBM | {"balanced": True})
    assert not filled(tmp_path).figures
    store("fedbm", f1=0.8, generator_width=0.25, **FEDBM)
    table = filled(tmp_path)
    assert table.figures["FedBM", F1][0].mean == pytest.approx(80)
    assert any("generator_width = 0.25" in note for note in table.notes)


def test_options_that_tell_rows_apart_decide_the_row(store, tmp_path):
    def oct_c8(about: dict[str, Any], _: dict[str, Any]) -> None:
        about["config"]["data"] = {"source": "folder", "path": "/x", "size": 28}
        about["task"]["classes"] = ["amd", "cnv", "csr", "dme", "dr", "drusen", "mh", "normal"]

    store("fedbm", f1=0.7, change=oct_c8, **FEDBM | {"lambda_div": 10.0})
    figures = filled(tmp_path, "fedbm-10").figures
    assert {row for row, _ in figures} == {"FedBM lambda_div=10"}
    assert {row for row, _ in filled(tmp_path, "fedbm-1").figures} == set()


def test_the_share_of_prompts_decides_the_row(store, tmp_path):
    def quarter(about: dict[str, Any], _: dict[str, Any]) -> None:
        about["config"]["data"] = {"source": "folder", "path": "/x", "size": 28}
        about["task"]["classes"] = ["AMD", "CNV", "CSR", "DME", "DR", "DRUSEN", "MH", "NORMAL"]
        about["config"]["text"]["fraction"] = 0.25

    store("fedcb", change=quarter, classifier="distribution", weighting="samples", balanced=False)
    assert {row for row, _ in filled(tmp_path, "fedcb-4").figures} == {"FedCB(25%)"}
    assert not filled(tmp_path, "fedcb-2").figures


def test_the_newest_of_two_runs_with_one_seed_counts_with_a_note(store, tmp_path):
    def later(about: dict[str, Any], _: dict[str, Any]) -> None:
        about["created"] = "2999-01-01T00:00:00Z"

    store(f1=0.5, change=later)
    store(f1=0.1)
    table = filled(tmp_path)
    assert table.figures["FedAvg", F1][0].mean == pytest.approx(50)
    assert any("two runs of one kind have seed 0" in note for note in table.notes)


def test_unfinished_and_broken_runs_are_left_out_with_a_note(store, tmp_path):
    def running(about: dict[str, Any], _: dict[str, Any]) -> None:
        about["status"] = "running"

    store(change=running)
    (store() / "run.json").write_text("{")
    table = filled(tmp_path)
    assert not table.figures
    assert any("have not finished" in note for note in table.notes)
    assert any("run.json is damaged" in note for note in table.notes)


def test_without_validation_the_last_round_counts_and_that_is_said(store, tmp_path):
    def no_validation(_: dict[str, Any], summary: dict[str, Any]) -> None:
        summary["best"] = None

    store(change=no_validation)
    table = filled(tmp_path)
    assert table.figures["FedAvg", F1][0].mean == pytest.approx(1)
    assert "test metrics at the last round" in table.setups["A"]


def test_a_column_of_one_site_and_the_average(store, tmp_path):
    def resolution(about: dict[str, Any], summary: dict[str, Any]) -> None:
        sites = ["site-1", "site-2", "site-3", "site-4"]
        about["config"]["data"] = {"source": "breakhis", "size": 96}
        about["config"]["partition"]["kind"] = "group"
        about["sites"] = sites
        summary["best"]["metrics"]["test"]["local"] = {
            "mean": {"accuracy": 0.5},
            "sites": {site: {"accuracy": number / 10} for number, site in enumerate(sites, 1)},
        }

    store("local", change=resolution)
    figures = filled(tmp_path, "mh-pflgb-1").figures
    means = {column.setting: ours[0].mean for (row, column), ours in figures.items() if column.metric == "ACC"}
    assert means == {"high-resolution": 0.1, "x2down": 0.2, "x4down": 0.3, "x8down": 0.4, "Average": 0.5}


def test_rounds_and_parameters_to_a_target(finished_run, tmp_path):
    """The multiples of FedCD's Table 2, of runs that are made to look like CIFAR-10's and to learn alike."""
    for method in ("fedavg", "fedproc", "fedcd"):
        folder = tmp_path / "runs" / method
        shutil.copytree(finished_run(method, {"projection": 0} if method != "fedavg" else {}).folder, folder)
        shutil.copy(finished_run("fedavg").folder / "metrics.jsonl", folder)
        about = json.loads((folder / "run.json").read_text())
        about["config"]["data"] = {"source": "cifar10"}
        about["config"]["partition"] |= {"kind": "dirichlet-balanced", "beta": 0.5}
        (folder / "run.json").write_text(json.dumps(about))
    table = filled(tmp_path, "fedcd-2")
    assert ("FedAvg (target)", Column("CIFAR10", "beta=0.5;100 rounds", "Accuracy")) in table.figures
    [rounds] = table.figures["FedProc", Column("CIFAR10", "beta=0.5", "rounds relative to FedCD")]
    assert (rounds.mean, rounds.n, rounds.seeds, rounds.when) == (1.0, 1, (0,), "reach")
    [parameters] = table.figures["FedProc", Column("CIFAR10", "beta=0.5", "total params relative to FedCD")]
    assert 0.5 < parameters.mean < 1  # FedCD's prototypes are finer
    assert "FedProc: 1 of 1 run(s) reached FedAvg's accuracy, as FedCD's did" in table.notes


def test_networks_are_counted_not_run(tmp_path):
    (tmp_path / "runs").mkdir()
    table = filled(tmp_path, "mh-pflgb-5")
    assert table.not_run() == []
    resnet = table.figures["ResNet", Column("BreaKHis", "label-dist 384x384x3", "Params(M)")]
    assert resnet[0].mean == pytest.approx(11.18, abs=0.01)  # the paper: 11.111
    assert resnet[0].when == "counted"
    for net, paper in (("Unet", 33.09), ("Unet++", 10.421), ("FCN", 32.56), ("ResUnet", 19.913)):
        column = Column("Polyp", "segmentation 256x256x3", "Params(M)")
        assert table.figures[net, column][0].mean == pytest.approx(paper, rel=0.1)
