"""Rows: what a row of a run holds, and what one row has over another."""

from __future__ import annotations

import pytest

from crossward.comparison.rows import gains, result_rows


def test_a_row_holds_the_test_metrics_of_the_best_round(finished_run):
    result = finished_run()
    best = result.summary["best"]
    [row] = result_rows([result])
    assert row["method"] == "fedavg"
    assert row["best_round"] == best["round"]
    test = best["metrics"]["test"]
    for name in ("accuracy", "f1", "auc"):
        assert row["global"][name] == test["global"][name]
        assert row["local"][name] == test["local"]["mean"][name]
    assert row["worst"] == test["local"]["worst"]["f1"]
    assert row["bytes"] == sum(line["bytes"] for line in result.traffic)


def test_a_row_of_a_segmentation_scores_images_with_and_without_the_class_apart(finished_run):
    """The mean alone rewards a network that sees nothing wherever there is nothing."""
    data = {"source": "phantom", "kind": "polyp", "sites": 2, "train": 6, "val": 2, "test": 2, "global_test": 4}
    result = finished_run(data=data | {"size": 32}, net={"name": "unet", "base": 4, "levels": 3}, run={"rounds": 1})
    test = result.summary["best"]["metrics"]["test"]["global"]
    [row] = result_rows([result])
    assert [*row["global"]] == ["dice", "dice_positive", "false_positive_rate", "hd95_penalised"]
    assert row["global"] == {name: test[name] for name in row["global"]}
    assert row["global"]["dice"] is not None


def test_the_worst_site_by_a_sum_of_metrics(finished_run):
    result = finished_run(evaluate={"select": "f1 + precision"})
    [row] = result_rows([result])
    sites = result.summary["best"]["metrics"]["test"]["local"]["sites"].values()
    assert row["main"] == "f1+precision"
    assert row["worst"] == pytest.approx(min(site["f1"] + site["precision"] for site in sites))


def test_gains_are_differences_on_the_local_test_sets():
    before = {"local": {"f1": 0.5, "auc": None, "accuracy": 0.5}}
    after = {"local": {"f1": 0.75, "auc": 0.9, "accuracy": None}}
    assert gains(before, after) == {"f1": pytest.approx(0.25), "auc": None, "accuracy": None}
