"""The demo: methods side by side on phantom hospitals, which classify blood cells and outline polyps."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from crossward.cli.runs import watched
from crossward.comparison.rows import compared, table
from crossward.config.reading import checked
from crossward.disk import present
from crossward.engines.pool import WorkerPool
from crossward.runs import lifecycle as api
from crossward.runs.result import Result


@dataclass(frozen=True)
class Comparison:
    name: str
    title: str
    methods: tuple[str, ...]
    rounds: int
    config: dict[str, Any]  # the same for every method
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # of single methods


POLYP: dict[str, Any] = {
    "data": {"kind": "polyp", "sites": 4, "train": 60, "val": 16, "test": 24, "global_test": 60, "size": 48,
             "augment": ["hflip", "vflip"]},
    "train": {"optimizer": "adam", "lr": 0.003, "epochs": 2, "batch_size": 8},
    "evaluate": {"every": 2},
}  # fmt: skip
COMPARISONS = (
    Comparison(
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
    Comparison(
        "polyp",
        "Polyps, at four hospitals with different endoscopes",
        ("local", "fedavg"),
        8,
        POLYP | {"net": {"name": "unet", "base": 8, "levels": 3}},
    ),
    Comparison(
        "mixed",
        "Polyps, at four hospitals with a different network each: U-Net, U-Net++, FCN, ResUNet",
        ("local", "mh-pflgb"),
        8,
        POLYP | {"net": {"name": ["unet", "unetpp", "fcn", "resunet"], "base": 8}},
    ),
)  # fmt: skip


def show(out: Path, rounds: int | None, *, quiet: bool, as_json: bool) -> None:
    console, folder = Console(), _new_folder(out)
    workers = min(2, os.cpu_count() or 1)
    crew = WorkerPool(workers)
    told: dict[str, list[Result]] = {}
    try:
        for comparison in COMPARISONS:
            told[comparison.name] = [
                _run(console, folder, comparison, method, rounds, crew, quiet=quiet, as_json=as_json)
                for method in comparison.methods
            ]
    finally:
        crew.stop()
    if as_json:
        results = {name: compared(results) for name, results in told.items()}
        console.out(json.dumps({"results": results, "folder": str(folder)}), highlight=False)
        return
    for comparison in () if quiet else COMPARISONS:
        console.print(table(told[comparison.name], comparison.title))
    console.out(str(folder), highlight=False)


def _run(
    console: Console,
    folder: Path,
    comparison: Comparison,
    method: str,
    rounds: int | None,
    crew: WorkerPool,
    *,
    quiet: bool,
    as_json: bool,
) -> Result:
    config = comparison.config | {
        "method": {"name": method} | comparison.options.get(method, {}),
        "engine": {"name": "pool", "workers": len(crew.workers)},
        "run": {"rounds": rounds or comparison.rounds, "out": str(folder / comparison.name), "name": method},
    }
    with watched(console, method, quiet=quiet, as_json=as_json) as observers:
        return api.run(checked(config), observers=observers, crew=crew)


def _new_folder(out: Path) -> Path:
    number = 1
    while present(folder := out / f"demo-{number}"):
        number += 1
    return folder
