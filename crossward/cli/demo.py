"""The command `demo`: methods side by side on phantom hospitals, which classify blood cells and outline polyps."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from crossward.cli.options import Json, Quiet
from crossward.cli.output import print_json, print_line
from crossward.cli.tables import results_table
from crossward.disk import present

if TYPE_CHECKING:
    from crossward.engines.pool import WorkerPool
    from crossward.runs.result import Result


@dataclass(frozen=True)
class DemoComparison:
    """Several methods on the same data."""

    name: str
    title: str
    methods: tuple[str, ...]
    rounds: int
    config: dict[str, Any]  # what all methods share
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # of single methods

    def config_of(self, method: str, *, rounds: int | None, workers: int, out: Path) -> dict[str, Any]:
        return {
            **self.config,
            "method": {"name": method, **self.options.get(method, {})},
            "engine": {"name": "pool", "workers": workers},
            "run": {"rounds": rounds or self.rounds, "out": str(out / self.name), "name": method},
        }


POLYP_SETTINGS: dict[str, Any] = {
    "data": {"kind": "polyp", "sites": 4, "train": 60, "val": 16, "test": 24, "global_test": 60, "size": 48,
             "augment": ["hflip", "vflip"]},
    "train": {"optimizer": "adam", "lr": 0.003, "epochs": 2, "batch_size": 8},
    "evaluate": {"every": 2},
}  # fmt: skip
COMPARISONS = (
    DemoComparison(
        "blood",
        "Blood cells of eight classes, at six hospitals that differ in stain, camera and patients",
        ("local", "fedavg", "fedprox", "scaffold", "fedavg+ft", "fednpr", "fednpr-per", "fedcd", "fedcb",
         "fedbm", "central"),
        15,
        {
            "data": {"kind": "blood", "augment": ["hflip", "vflip"]},
            "net": {"name": "cnn"},
            "train": {"lr": 0.05, "momentum": 0.9, "clip": 1.0, "epochs": 2, "batch_size": 32},
        },
        {
            "fedcb": {"tau": 12.5},
            "fedbm": {"tau": 12.5, "synthetic": 16, "cycle": 3, "iterations": 50, "generator_width": 0.25},
        },
    ),
    DemoComparison(
        "polyp",
        "Polyps, at four hospitals with different endoscopes",
        ("local", "fedavg"),
        8,
        POLYP_SETTINGS | {"net": {"name": "unet", "base": 8, "levels": 3}},
    ),
    DemoComparison(
        "mixed",
        "Polyps, at four hospitals with a different network each: U-Net, U-Net++, FCN, ResUNet",
        ("local", "mh-pflgb"),
        8,
        POLYP_SETTINGS | {"net": {"name": ["unet", "unetpp", "fcn", "resunet"], "base": 8}},
    ),
)  # fmt: skip


app = typer.Typer()


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the run directories go.")] = Path("runs"),
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each method.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare the methods on the embedded phantom hospitals, in a few minutes."""
    from crossward.comparison.rows import result_rows
    from crossward.engines.pool import WorkerPool

    folder = _new_folder(out)
    worker_pool = WorkerPool(min(2, os.cpu_count() or 1))
    try:
        results = _run_all(folder, rounds, worker_pool, quiet=quiet, as_json=as_json)
    finally:
        worker_pool.stop()
    rows = {name: result_rows(of_comparison) for name, of_comparison in results.items()}
    if as_json:
        print_json({"results": rows, "folder": str(folder)})
        return
    if not quiet:
        console = Console()
        for comparison in COMPARISONS:
            console.print(results_table(rows[comparison.name], comparison.title))
    print_line(str(folder))


def _run_all(
    folder: Path, rounds: int | None, worker_pool: WorkerPool, *, quiet: bool, as_json: bool
) -> dict[str, list[Result]]:
    """The results of every comparison, by its name."""
    from crossward.cli.progress import show_progress
    from crossward.config.reading import config_from
    from crossward.runs import lifecycle

    results: dict[str, list[Result]] = {}
    for comparison in COMPARISONS:
        results[comparison.name] = []
        for method in comparison.methods:
            workers = len(worker_pool.workers)
            config = config_from(comparison.config_of(method, rounds=rounds, workers=workers, out=folder))
            with show_progress(method, quiet=quiet, as_json=as_json) as observers:
                result = lifecycle.run(config, observers=observers, worker_pool=worker_pool)
            results[comparison.name].append(result)
    return results


def _new_folder(out: Path) -> Path:
    """The first of demo-1, demo-2 ... that is not there."""
    number = 1
    while present(out / f"demo-{number}"):
        number += 1
    return out / f"demo-{number}"
