"""The demo: every method on the same phantom hospitals, side by side."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from crossward.engines.pool import Crew
from crossward.experiment import api
from crossward.experiment.commands import watched
from crossward.experiment.compare import compared, table
from crossward.experiment.load import checked

METHODS = ("local", "fedavg", "fedprox", "scaffold", "fedavg+ft", "central")
BLOOD: dict[str, Any] = {
    "data": {"source": "phantom", "kind": "blood", "sites": 6, "train": 300, "augment": ["hflip", "vflip"]},
    "net": {"name": "cnn"},
    "train": {"lr": 0.02, "momentum": 0.9, "epochs": 2, "batch_size": 32},
    "run": {"rounds": 15},
}


def show(out: Path, rounds: int | None, *, quiet: bool, as_json: bool) -> None:
    console = Console()
    folder = _new_folder(out)
    workers = min(2, os.cpu_count() or 1)
    crew = Crew(workers)
    results = []
    try:
        for method in METHODS:
            config = BLOOD | {
                "method": {"name": method},
                "engine": {"name": "pool", "workers": workers},
                "run": {"rounds": rounds or BLOOD["run"]["rounds"], "out": str(folder), "name": method},
            }
            with watched(console, method, quiet=quiet, as_json=as_json) as told:
                results.append(api.run(checked(config), observers=told, crew=crew))
    finally:
        crew.stop()
    if as_json:
        console.out(json.dumps({"results": compared(results), "folder": str(folder)}), highlight=False)
        return
    if not quiet:
        console.print(table(results, "Six phantom hospitals, blood cells of eight classes"))
    console.out(str(folder), highlight=False)


def _new_folder(out: Path) -> Path:
    number = 1
    while (folder := out / f"demo-{number}").exists():
        number += 1
    return folder
