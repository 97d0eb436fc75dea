"""Records: the numbers of a study as tidy rows, one for each number, for people's own plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crossward.runs.run_directory import RunDir
from crossward.studies.status import CellStatus

Record = dict[str, Any]


def run_records(cell: CellStatus, folder: Path) -> Iterator[Record]:
    """A row for each metric of each set in each evaluated round: method, the study's axes, seed, repeat, round, whether
    validation chose the round, split, view ("global", "mean", "worst" or "site"), site, metric, value."""
    lines = [line for line in RunDir(folder).lines("metrics.jsonl") if line["metrics"]]
    chosen = max((line["round"] for line in lines if line["best"]), default=None)
    for line in lines:
        start = {
            "method": cell.label,
            **cell.axes,
            "seed": cell.seed,
            "repeat": cell.repeat,
            "round": line["round"],
            "chosen": line["round"] == chosen,
        }
        for split, views in line["metrics"].items():
            for view, site, scores in _scores(views):
                for metric, value in scores.items():
                    if isinstance(value, float):
                        where = {"split": split, "view": view, "site": site}
                        yield {**start, **where, "metric": metric, "value": value}


def _scores(views: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """View, site and metrics of each set."""
    if "global" in views:
        yield "global", "", views["global"]
    if "local" in views:
        yield "mean", "", views["local"]["mean"]
        yield "worst", "", views["local"]["worst"]
        for site, scores in views["local"]["sites"].items():
            yield "site", site, scores
