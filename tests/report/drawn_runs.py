"""Run directories as crossward writes them, drawn instead of trained: any number of methods, seeds, rounds, sites and
classes, with any names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crossward.config.reading import config_from
from crossward.core.evaluation import mean, worst
from crossward.runs.result import summarised
from crossward.runs.run_directory import RunDir
from crossward.studies.study_folder import CellRecord, StudyFolder
from crossward.tasks import task as make_task

SKILL = {"local": 0.0, "fedavg": 0.35, "fedprox": 0.4, "fedrep": 2.5, "fedbm": 2.8}


@dataclass(frozen=True)
class Drawn:
    """What the drawn runs look like."""

    methods: tuple[str, ...] = ("local", "fedavg", "fedrep")
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int = 4
    sites: tuple[str, ...] = ("north", "south", "east")
    classes: tuple[str, ...] = ("cat", "dog", "owl")
    images: int = 40  # at each site, for testing
    common: int = 0  # images of the federation's own test set
    status: str = "finished"
    predictions: bool = True
    data: str = "drawn"
    size: int = 28
    batch_order: int = 0
    distinct: int = 1000  # rounds that are drawn; later ones repeat them


def draw_runs(folder: Path, drawn: Drawn | None = None) -> list[Path]:
    """Write the runs; returns their folders."""
    drawn = drawn or Drawn()
    return [
        _draw(
            folder / (f"{method}-s{seed}" if method.isascii() and method.isalnum() else f"m{number}-s{seed}"),
            drawn,
            method,
            seed,
        )
        for number, method in enumerate(drawn.methods)
        for seed in drawn.seeds
    ]


def draw_study(folder: Path, settings: Mapping[float, Drawn]) -> Path:
    """The folder of a study whose settings are values of partition.beta."""
    index = StudyFolder(folder)
    for beta, drawn in settings.items():
        places = draw_runs(folder, drawn)
        cells = [(method, seed) for method in drawn.methods for seed in drawn.seeds]
        for place, (method, seed) in zip(places, cells, strict=True):
            moved = place.rename(place.with_name(f"{place.name}-beta-{beta}"))
            key = f"{method} {beta} {seed}"
            index.cells[key] = CellRecord(moved.name, method, {"partition.beta": beta}, seed, key=key)
    index.keep_cells()
    return folder


def _draw(place: Path, drawn: Drawn, method: str, seed: int) -> Path:
    rundir = RunDir.create(place)
    targets = _targets(drawn, seed)
    task = make_task("classification", drawn.classes)
    rundir.write("partition.json", _partition(drawn, targets))
    rundir.keep_predictions("targets", {site: {"test": truth} for site, truth in targets.items()})
    best = drawn.rounds - 1 or 1
    lines: list[dict[str, Any]] = []
    for round in range(1, drawn.rounds + 1):
        if round > drawn.distinct and round != best:
            lines.append(lines[round % drawn.distinct] | {"round": round, "best": False})
            continue
        predicted = _predictions(drawn, method, seed, round, targets)
        if round == best and drawn.predictions:
            rundir.keep_predictions(f"round-{round:04d}", {site: {"test": p} for site, p in predicted.items()})
        each = {site: task.metrics(p, targets[site]) for site, p in predicted.items() if site != "server"}
        together = task.metrics(torch.cat(list(predicted.values())), torch.cat(list(targets.values())))
        views = {
            "local": {"mean": mean(each.values()), "worst": worst(each.values()), "sites": each},
            "global": together,
        }
        sent = 0 if method == "local" else 1_000_000
        lines.append({
            "round": round, "clients": list(drawn.sites), "failures": {}, "loss": {},
            "metrics": {"val": views, "test": views}, "best": round in (1, best),
            "bytes": {"down": sent, "up": sent}, "seconds": 1.5,
        })  # fmt: skip
    rundir.append("metrics.jsonl", lines)
    rundir.append("traffic.jsonl", [
        {"round": line["round"], "step": "train", "direction": direction, "item": "model", "bytes": count, "clients": 2}
        for line in lines for direction, count in line["bytes"].items() if count
    ])  # fmt: skip
    rundir.write("run.json", _about(drawn, method, seed, targets))
    if drawn.status == "finished":
        rundir.write("summary.json", summarised(rundir))
    return place


def _targets(drawn: Drawn, seed: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    truth = {}
    for site in drawn.sites:
        shares = rng.dirichlet(np.full(len(drawn.classes), 0.7))
        truth[site] = torch.from_numpy(rng.choice(len(drawn.classes), drawn.images, p=shares))
    if drawn.common:
        truth["server"] = torch.from_numpy(rng.integers(0, len(drawn.classes), drawn.common))
    return truth


def _predictions(
    drawn: Drawn, method: str, seed: int, round: int, targets: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng([seed, round, sum(method.encode())])
    skill = SKILL.get(method, (sum(method.encode()) % 13) / 10)
    strength = 0.6 + skill + 0.6 * round / drawn.rounds + 0.1 * rng.normal()
    predicted = {}
    for site, truth in targets.items():
        logits = rng.normal(size=(len(truth), len(drawn.classes)))
        logits[np.arange(len(truth)), truth.numpy()] += strength
        predicted[site] = torch.from_numpy(logits).float().softmax(1)
    return predicted


def _partition(drawn: Drawn, targets: dict[str, torch.Tensor]) -> dict[str, Any]:
    parts = {
        site: {"train": [], "val": [], "test": [f"{site}/{i}" for i in range(len(truth))]}
        for site, truth in targets.items()
    }
    server = parts.pop("server", {"train": [], "val": [], "test": []})
    content = {
        "format": 1,
        "collection": {"name": drawn.data, "task": "classification", "classes": list(drawn.classes),
                       "fingerprint": "0f1e2d3c4b5a69780f1e2d3c4b5a6978"},
        "recipe": {"partition": "site", "group_aware": True},
        "sites": parts,
        "server": server,
        "public": [],
    }  # fmt: skip
    truth = {site: labels.tolist() for site, labels in targets.items()}
    digest = blake2b(json.dumps([drawn.data, drawn.size, truth]).encode(), digest_size=16)
    return content | {"hash": digest.hexdigest()}


def _about(drawn: Drawn, method: str, seed: int, targets: dict[str, torch.Tensor]) -> dict[str, Any]:
    counts = {site: torch.bincount(targets[site], minlength=len(drawn.classes)).tolist() for site in drawn.sites}
    return {
        "format": 1, "crossward": "0.1.0", "status": drawn.status, "created": "2026-01-02T03:04:05Z",
        "config": _config(drawn, method, seed),
        "method": {"name": method}, "plugins": {},
        "net": {"name": "cnn", "channels": 3, "classes": len(drawn.classes), "size": drawn.size, "options": {}},
        "nets": {}, "task": {"name": "classification", "classes": list(drawn.classes), "main": "f1"},
        "images": {"size": [drawn.size, drawn.size], "mean": [0.5] * 3, "std": [0.25] * 3}, "text": {},
        "sites": list(drawn.sites), "personal": method in ("local", "fedrep"), "pooled": False,
        "class_counts": {site: {"train": row, "val": row, "test": row} for site, row in counts.items()},
        "discloses": {"model": "weights"}, "warnings": [],
    }  # fmt: skip


def _config(drawn: Drawn, method: str, seed: int) -> dict[str, Any]:
    """A whole configuration, as run.json has it; names that no catalogue knows are put in afterwards."""
    run = {"name": f"{method}-s{seed}"[:60], "out": "runs", "seed": seed, "rounds": drawn.rounds}
    config = config_from({"data": {"kind": "blood", "size": drawn.size}, "net": {"name": "cnn"},
                          "method": {"name": "fedavg"}, "run": {"rounds": drawn.rounds}}).canonical()  # fmt: skip
    evaluate = config["evaluate"] | {"keep_predictions": drawn.predictions}
    changed = {"run": config["run"] | run | {"batch_order": drawn.batch_order}, "evaluate": evaluate}
    return config | changed | {"method": {"name": method}}


def many(prefix: str, count: int) -> Sequence[str]:
    return tuple(f"{prefix}-{number}" for number in range(1, count + 1))
