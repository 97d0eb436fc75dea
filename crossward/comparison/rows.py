"""Rows: one for each run, with its test metrics, its traffic and its time; and what one row has over another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crossward.core.evaluation import LOWER_IS_BETTER, metric_at
from crossward.core.metric_sum import worst_value
from crossward.runs.result import Result

METRICS = {  # of a row, by task
    "classification": ("accuracy", "f1", "auc"),
    "multi-label": ("auc", "f1", "accuracy"),
    "segmentation": ("dice", "dice_positive", "false_positive_rate", "hd95_penalised"),
}


def result_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row a run: test metrics at the round that validation chose."""
    return [_row(result) for result in results]


def _row(result: Result) -> dict[str, Any]:
    about = result.about
    summary = result.summary
    best = summary["best"] or {}
    metrics = best.get("metrics", {})
    main = about["config"]["evaluate"]["select"] or about["task"]["main"]
    own_sets = metrics.get("test", {}).get("local", {}).get("sites", {})
    names = METRICS[about["task"]["name"]]
    return {
        "method": about["method"]["name"],
        "task": about["task"]["name"],
        "best_round": best.get("round"),
        "global": {name: metric_at(metrics, "test", "global", name) for name in names},
        "local": {name: metric_at(metrics, "test", "local", name) for name in names},
        "worst": worst_value(own_sets, main, lower_is_better=main in LOWER_IS_BETTER),
        "main": main,
        "bytes": sum(summary["bytes"].values()),
        "pooled": about["pooled"],
        "seconds": summary["seconds"],
        "folder": str(result.folder),
    }


def gains(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float | None]:
    """What the row `after` has more than the row `before`, in each metric on the sites' own test sets."""
    differences = {}
    for name, old in before["local"].items():
        new = after["local"][name]
        differences[name] = None if old is None or new is None else new - old
    return differences
