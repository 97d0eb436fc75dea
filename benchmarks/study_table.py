"""How long the status and the table of a large study take: 1,000 finished cells, first and again from their caches.

    python benchmarks/study_table.py [--labels 50] [--seeds 20] [--images 500] [--classes 8] [--resamples 1000]

It writes run directories with drawn predictions into a temporary folder. Each label is a method of its own skill; all
seeds of a label are tested on the same images of four sites. Seconds of this machine, not ratios: the bars are 2 s for
`crossward study status` (a process of its own, its start included), 60 s and 10 s for the table. `process` is the time
that the processor spent, which other work on the machine does not disturb.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crossward import __version__
from crossward.comparison.study_tables import LabelledRun, StudyTables, TableSpec, compare_runs
from crossward.runs.run_directory import FORMAT, RunDir
from crossward.studies.grid import grid
from crossward.studies.study_file import read_study
from crossward.studies.study_folder import CellRecord, StudyFolder
from crossward.tasks.classification import Classification

SITES = ("north", "east", "south", "west")
COLUMNS = ("best.global.f1", "best.global.auc", "best.mean.f1", "best.worst.f1", "last.global.f1")


def drawn_probabilities(targets: np.ndarray, classes: int, skill: float, generator: np.random.Generator) -> np.ndarray:
    """(n, K) probabilities; `skill` is how far the true class stands out."""
    logits = generator.normal(0, 1, (len(targets), classes))
    logits[np.arange(len(targets)), targets] += skill
    odds = np.exp(logits)
    return np.asarray(odds / odds.sum(1, keepdims=True), dtype=np.float32)


def write_run(
    folder: Path, *, method: str, seed: int, skill: float, images: int = 500, classes: int = 8, rounds: int = 3,
    data_seed: int = 0, name: str = "drawn",
) -> Path:  # fmt: skip
    """A finished run directory, as far as tables read it: `images` test images at four sites, round 2 is the best."""
    rundir = RunDir.create(folder)
    task = Classification(tuple(f"class {k}" for k in range(classes)))
    targets = np.random.default_rng(data_seed).integers(0, classes, images)
    parts = dict(zip(SITES, np.array_split(np.arange(images), len(SITES)), strict=True))
    ids = {site: [f"{name}-{i}" for i in rows] for site, rows in parts.items()}
    generator = np.random.default_rng([seed, sum(map(ord, method))])
    documents = []
    for round in range(1, rounds + 1):
        p = drawn_probabilities(targets, classes, skill + generator.normal(0, 0.1), generator)
        each = {s: task.metrics(torch.from_numpy(p[r]), torch.from_numpy(targets[r])) for s, r in parts.items()}
        documents.append(_views(each, task.metrics(torch.from_numpy(p), torch.from_numpy(targets))))
        rundir.keep_predictions(
            f"round-{round:04d}", {s: {"test": torch.from_numpy(p[r])} for s, r in parts.items()}
        )  # fmt: skip
    truth = {s: {"test": torch.from_numpy(targets[r])} for s, r in parts.items()}
    rundir.keep_predictions("targets", truth)
    lines = [
        {"round": round, "clients": list(SITES), "failures": {}, "metrics": {"test": views}, "best": round == 2,
         "bytes": {"up": 400, "down": 400}, "seconds": 1.0}
        for round, views in enumerate(documents, 1)
    ]  # fmt: skip
    rundir.append("metrics.jsonl", lines)
    _describe(rundir, method, seed, task, ids, name)
    summary = {"best": {"round": 2, "metrics": {"test": documents[1]}}, "rounds": rounds, "seconds": float(rounds)}
    summary |= {"last": {"round": rounds, "metrics": {"test": documents[-1]}}, "bytes": {"up": 1200, "down": 1200}}
    rundir.write("summary.json", summary | {"failures": 0})
    return folder


def _views(each: dict[str, dict[str, Any]], overall: dict[str, Any]) -> dict[str, Any]:
    from crossward.core.evaluation import mean, worst

    local = {"mean": mean(each.values()), "worst": worst(each.values()), "sites": each}
    return {"global": overall, "local": local}


def _describe(
    rundir: RunDir, method: str, seed: int, task: Classification, ids: dict[str, list[str]], name: str
) -> None:
    collection = {"name": name, "task": "classification", "classes": list(task.classes), "fingerprint": name}
    sites = {site: {"train": [], "val": [], "test": rows} for site, rows in ids.items()}
    rundir.write("partition.json", {"format": 1, "collection": collection, "sites": sites, "server": {}, "hash": name})
    config = {"run": {"seed": seed, "rounds": 3}, "data": {"source": name}, "method": {"name": method}}
    config |= {"evaluate": {"select": None, "view": "global"}}
    about = {"format": FORMAT, "created": "2026-01-01T00:00:00Z"}
    about |= {
        "crossward": __version__,
        "status": "finished",
        "config": config,
        "plugins": {},
    }
    about |= {"method": {"name": method}, "sites": list(SITES), "personal": False, "pooled": False}
    about |= {"task": {"name": "classification", "classes": list(task.classes), "main": "f1"}}
    about |= {"images": {"size": [28, 28]}}
    for round in (1, 2, 3):
        line = {"round": round, "step": "train", "item": "model", "bytes": 400, "clients": 4}
        rundir.append("traffic.jsonl", [line | {"direction": direction} for direction in ("up", "down")])
    rundir.write("run.json", about)


def write_study(folder: Path, labels: int, seeds: int, images: int, classes: int) -> list[LabelledRun]:
    runs = []
    for number in range(labels):
        label = "local" if number == 0 else f"method-{number:02d}"
        for seed in range(seeds):
            place = write_run(
                folder / f"{label}-s{seed}", method=label, seed=seed, skill=1 + number / labels, images=images,
                classes=classes,
            )  # fmt: skip
            runs.append(LabelledRun(label, "", seed, 0, place))
    return runs


def measure(runs: list[LabelledRun], cache: Path, resamples: int) -> tuple[StudyTables, dict[str, float]]:
    labels = list(dict.fromkeys(run.label for run in runs))
    pairs = tuple((label, labels[0]) for label in labels[1:])
    spec = TableSpec(COLUMNS, pairs, last=2, resamples=resamples, sites="best.site.f1", specificity=0.9)
    clock, processor = time.perf_counter(), time.process_time()
    tables = compare_runs(runs, spec, cache=cache)
    return tables, {"seconds": time.perf_counter() - clock, "process": time.process_time() - processor}


def describe_study(root: Path, runs: list[LabelledRun]) -> Path:
    """The file of a study whose cells these runs are, in the folder that it has below `root`."""
    labels = dict.fromkeys(run.label for run in runs)
    methods = "".join(f'[[study.method]]\nname = "fedavg"\nlabel = "{label}"\n' for label in labels)
    file = root / f"{runs[0].folder.parent.name}.toml"
    file.write_text(f"[study]\nseeds = {sorted({run.seed for run in runs})}\n{methods}")
    folders = {(run.label, run.seed): run.folder.name for run in runs}
    known = StudyFolder(root / file.stem)
    for cell in grid(read_study(file)):
        folder = folders[cell.label, cell.seed]
        known.cells[cell.written_key] = CellRecord(folder, cell.label, cell.setting, cell.seed)
    known.keep_cells()
    return file


def measure_status(file: Path, cells: int) -> dict[str, float]:
    """`crossward study status` as people run it."""
    command = [sys.executable, "-m", "crossward", "study", "status", str(file), "--out", str(file.parent)]
    clock, before = time.perf_counter(), os.times()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, after = time.perf_counter() - clock, os.times()
    assert f"{cells} cells in {file.with_suffix('')}: {cells} finished" in done.stdout, done.stdout
    process = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "process": process}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("labels", 50), ("seeds", 20), ("images", 500), ("classes", 8), ("resamples", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        runs = write_study(root / "runs", options.labels, options.seeds, options.images, options.classes)
        file = describe_study(root, runs)
        status = {when: measure_status(file, len(runs)) for when in ("first", "again")}
        first, cold = measure(runs, root / "cache.json", options.resamples)
        again, warm = measure(runs, root / "cache.json", options.resamples)
        figures = {"cells": len(runs), "status": status, "first": cold, "again": warm, "same": first == again}
        figures["cache_bytes"] = (root / "cache.json").stat().st_size
    print(json.dumps(figures))
    return figures


if __name__ == "__main__":
    main()
