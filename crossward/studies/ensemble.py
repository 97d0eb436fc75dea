"""The ensemble of local training: the mean of the local networks' predictions on the test set of the federation.

Nothing is trained. The predictions that the local run stored make a run directory of their own, which tables, reports
and statistics read as any other. Class maps of segmentation are combined by majority.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossward.core.task import Task
from crossward.disk import cannot_write
from crossward.errors import RunError, StorageError
from crossward.runs.description import now
from crossward.runs.result import Result, load, summarised
from crossward.runs.run_directory import RunDir
from crossward.studies.study_file import ENSEMBLE
from crossward.tasks import task as make_task

SERVER = "server"
COPIED = ("partition.json", "environment.json")


def write_ensemble(members: Path, folder: Path) -> Result:
    """Make the run directory of the ensemble from that of the local run `members`; `folder` must not be there yet. It
    is written under another name first, so that a crash leaves no half of it."""
    local = load(members)
    if local.about["status"] != "finished":
        raise RunError(f"the ensemble is made of {members}, which has not finished")
    draft = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    rundir = RunDir.create(draft)
    _describe(rundir, local)
    _write_rounds(rundir, local)
    rundir.write("summary.json", summarised(rundir))
    rundir.mark("finished", finished=now())
    try:
        draft.rename(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return load(folder)


def _describe(rundir: RunDir, local: Result) -> None:
    try:
        for name in COPIED:
            shutil.copyfile(local.folder / name, rundir.folder / name)
    except OSError as error:
        raise cannot_write(rundir.folder, error) from error
    about = {
        **local.about,
        "status": "created",
        "created": now(),
        "config": {**local.config, "method": {"name": ENSEMBLE}},
        "method": {"name": ENSEMBLE, "members": local.folder.name},
        "plugins": {},
        "personal": False,
        "discloses": {},
    }
    rundir.write("run.json", about)


def _write_rounds(rundir: RunDir, local: Result) -> None:
    task: Task = make_task(
        local.about["task"]["name"], tuple(local.about["task"]["classes"]), **local.config.get("task", {})
    )
    targets = local.targets().get(SERVER, {})
    if "test" not in targets:
        raise RunError(
            "there is no ensemble without a test set of the whole federation",
            hint="Hold one out by partition.global_split = [0.7, 0.1, 0.2], or name a split in the data.",
        )
    rundir.keep_predictions("targets", {SERVER: targets})
    evaluated = [line for line in local.rounds if line["metrics"]]
    for line in evaluated:
        predictions = _mean_predictions(local, line["round"])
        rundir.keep_predictions(f"round-{line['round']:04d}", {SERVER: predictions})
        full = line["best"] or line is evaluated[-1]
        metrics = {part: {"global": task.metrics(p, targets[part], full=full)} for part, p in predictions.items()}
        rundir.append("metrics.jsonl", [_line(line, metrics)])


def _line(line: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The best round is the one that validation chose for the local networks."""
    return {
        "round": line["round"],
        "clients": line["clients"],
        "failures": {},
        "loss": {},
        "metrics": json.loads(json.dumps(metrics)),
        "best": line["best"],
        "bytes": {"down": 0, "up": 0},
        "seconds": line["seconds"],
    }


def _mean_predictions(local: Result, round: int) -> dict[str, Tensor]:
    """By part ("val", "test"): what the networks of all sites predict together."""
    try:
        by_site = local.predictions(round)
    except StorageError as error:
        raise RunError(
            f"the predictions of round {round} of {local.folder} are not stored, so that there is no ensemble",
            details=[error.what],
            hint='Write evaluate.keep_predictions = "all". `study prune` removes predictions of older rounds.',
        ) from None
    parts: dict[str, list[Tensor]] = {}
    for sets in by_site.values():
        for name, prediction in sets.items():
            if name.startswith("common_"):
                parts.setdefault(name.removeprefix("common_"), []).append(prediction)
    return {part: combine(predictions) for part, predictions in parts.items()}


def combine(predictions: list[Tensor]) -> Tensor:
    """(n, K) probabilities: the mean. (n, H, W) class maps: the class that most networks name (the first of equals)."""
    stacked = torch.stack(predictions)
    if stacked.dtype != torch.uint8:
        return stacked.mean(0)
    classes = int(stacked.max()) + 1 if stacked.numel() else 1
    votes = torch.stack([(stacked == k).sum(0) for k in range(classes)])
    return votes.argmax(0).to(torch.uint8)
