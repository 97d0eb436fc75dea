"""A table of several runs: the global and the local view, the worst site, what was sent, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from crossward.cli.progress import megabytes
from crossward.core.evaluation import at
from crossward.runs.result import Result

SHOWN = {
    "classification": ("accuracy", "f1", "auc"),
    "segmentation": ("dice", "iou", "hd95"),
}
SHORT = {
    "accuracy": "acc",
    "balanced_accuracy": "bACC",
    "auc": "bAUC",
    "f1": "F1",
    "dice": "Dice",
    "iou": "IoU",
    "hd95": "HD95",
}


def compared(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row a run: test metrics at the round that validation chose."""
    rows = []
    for result in results:
        summary, about = result.summary, result.about
        metrics = (summary["best"] or {}).get("metrics", {})
        main = about["config"]["evaluate"]["select"] or about["task"]["main"]
        shown = SHOWN[about["task"]["name"]]
        rows.append(
            {
                "method": about["method"]["name"],
                "task": about["task"]["name"],
                "best_round": (summary["best"] or {}).get("round"),
                "global": {name: at(metrics, "test", "global", name) for name in shown},
                "local": {name: at(metrics, "test", "local", name) for name in shown},
                "worst": metrics.get("test", {}).get("local", {}).get("worst", {}).get(main),
                "main": main,
                "bytes": sum(summary["bytes"].values()),
                "pooled": about["pooled"],
                "seconds": summary["seconds"],
                "folder": str(result.folder),
            }
        )
    return rows


def table(results: Sequence[Result], title: str) -> Table:
    rows = compared(results)
    shown, main = list(rows[0]["global"]), rows[0]["main"]
    caption = (
        "Test sets, at the round that validation chose. Global: one set for all; local: the mean of the sites' own."
    )
    made = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD, padding=0)
    made.add_column("method", style="bold", no_wrap=True)
    for view in ("global", "local"):
        for name in shown:
            made.add_column(f"{view}\n{SHORT[name]}", justify="right")
    made.add_column(f"worst\n{SHORT.get(main, main)}", justify="right")
    for name in ("best\nround", "traffic", "time"):
        made.add_column(name, justify="right")
    for row in rows:
        numbers = [_number(row[view][name], name) for view in ("global", "local") for name in shown]
        tail = [
            _number(row["worst"], main),
            str(row["best_round"] or "—"),
            "images" if row["pooled"] else megabytes(row["bytes"]),
            f"{row['seconds']:.0f} s",
        ]
        made.add_row(row["method"], *numbers, *tail)
    return made


def gain(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float | None]:
    """What `after` has more than `before` on the sites' own test sets, of two rows of `compared`."""
    both = {name: (value, after["local"][name]) for name, value in before["local"].items()}
    return {name: None if None in pair else pair[1] - pair[0] for name, pair in both.items()}


def signed(by: float, name: str) -> str:
    """A difference of a metric, as the table shows it: F1 +1.3."""
    return f"{SHORT[name]} {by:+.1f}" if name == "hd95" else f"{SHORT[name]} {100 * by:+.1f}"


def _number(value: float | None, name: str) -> str:
    if value is None:
        return "—"
    return f"{value:.1f}" if name == "hd95" else f"{100 * value:.1f}"
