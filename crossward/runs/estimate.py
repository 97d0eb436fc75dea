"""The estimate of a run: the time, memory and disk that it will take, from a part of a round that is measured.

A step at a site is thought to take a time of its own and a time for each image. The server's part of a round is taken
as measured. Rounds are thought to be alike: a method that does something every few rounds only is misjudged by that.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from crossward.config.schema import Config
from crossward.core import machine_memory
from crossward.core.cores import usable_cores
from crossward.core.engine import SERVER
from crossward.core.memory_budgets import budget
from crossward.core.run import cohort_size, cohorts
from crossward.disk import present
from crossward.runs.build import PreparedRun, client_memory_budget, prepare
from crossward.runs.checkpoint_writer import SHARE, SHORT, Every
from crossward.runs.devices import worker_count
from crossward.runs.lifecycle import kept_predictions
from crossward.runs.trial_round import EVALUATION_STEP, StepTaken, Trial, try_round

DEPLOYMENT_STEP = "deploy"
KEPT = 5  # files of predictions: of best and last round, at the checkpoint and now, and one that is about to go
COPIES = 3  # of the clients' memory on disk: of the best round, of the last checkpoint, and of the one being written
REMEDIES = {
    "checkpoints": "run.out can name a folder on a larger disk",
    "weights": "run.out can name a folder on a larger disk",
    "predictions": 'evaluate.keep_predictions = "best" keeps those of two rounds, false none',
    "records": "a larger evaluate.every writes less",
    "process": "a smaller train.batch_size, or smaller images, take less",
    "workers": "fewer engine.workers take less",
    "replies": "a lower run.participation takes less",
    "client memory": "a lower engine.memory_mib keeps more of it on disk",
    "predictions in memory": "a smaller test set takes less",
}


@dataclass(frozen=True)
class RunEstimate:
    """What a run will take, by what takes it."""

    rounds: int
    sites: int
    cohort: int  # sites that are asked in a round
    seconds: Mapping[str, float]
    memory: Mapping[str, int]  # bytes, at the most at one moment
    disk: Mapping[str, int]  # bytes, at the most at one moment
    checkpoint_bytes: int  # that one checkpoint writes
    measured: str  # what the figures come from
    notes: Sequence[str] = field(default_factory=list)  # what is worth knowing of the run anyhow

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def total_memory(self) -> int:
        return sum(self.memory.values())

    @property
    def total_disk(self) -> int:
        return sum(self.disk.values())


@dataclass(frozen=True)
class StepCost:
    """What a step takes at a site."""

    fixed: float  # seconds
    per_image: float

    def seconds(self, images: int) -> float:
        return self.fixed + self.per_image * images


def estimate_run(config: Config) -> RunEstimate:
    """Measure a part of a round and compute what the whole run will take. Nothing is left behind but the cache of
    images, which the run will find."""
    machine_memory.forget_peak()
    began = time.perf_counter()
    prepared = prepare(config)
    prepared_in = time.perf_counter() - began
    trial = try_round(prepared)
    peak = machine_memory.peak_bytes()
    plan = prepared.plan
    sites = prepared.run_sites
    batch = sites.training.batch_size
    return RunEstimate(
        rounds=plan.rounds,
        sites=len(sites.ids),
        cohort=cohort_size(plan.participation, len(sites.clients)),
        seconds=_seconds(prepared, trial, prepared_in),
        memory=_memory(prepared, trial, peak),
        disk=_disk(prepared, trial),
        checkpoint_bytes=_checkpoint_bytes(prepared, trial),
        measured=f"a round at {trial.clients} site(s) with up to {_most_images(trial)} images, in batches of {batch}",
        notes=prepared.warnings,
    )


def shortages(memory: float, disk: float, folder: Path, why: Mapping[str, str] | None = None) -> list[str]:
    """What to say where the machine has less memory, or the disk of a folder less space, than is needed. `why` names
    the way forward for each."""
    why = why or {}
    lines = []
    available = machine_memory.available_bytes()
    if available is not None and memory > available:
        lines.append(
            f"about {_gib(memory)} of memory are needed, {_gib(available)} are available{why.get('memory', '')}"
        )
    free = free_disk(folder)
    if disk > free:
        lines.append(f"up to {_gib(disk)} of disk are needed, {_gib(free)} are free in {folder}{why.get('disk', '')}")
    return lines


def cautions(estimate: RunEstimate, folder: Path) -> list[str]:
    """Before a run that the machine, or the disk of a folder, has no room for."""
    parts = {"memory": estimate.memory, "disk": estimate.disk}
    why = {}
    for what, amounts in parts.items():
        dominant = dominant_part(amounts)
        why[what] = f"; most of it is for {dominant}: {REMEDIES[dominant]}"
    return shortages(estimate.total_memory, estimate.total_disk, folder, why)


def dominant_part(amounts: Mapping[str, float]) -> str:
    """The part that takes most."""
    return max(amounts, key=lambda name: amounts[name])


def free_disk(folder: Path) -> int:
    """Bytes that are free where the folder is, or will be."""
    place = folder.absolute()
    return shutil.disk_usage(next(path for path in (place, *place.parents) if present(path))).free


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def _most_images(trial: Trial) -> int:
    return max((taken.images for taken in _training_steps(trial)), default=0)


def _training_steps(trial: Trial) -> list[StepTaken]:
    """Those of the round itself."""
    return [taken for taken in trial.steps if taken.step not in (EVALUATION_STEP, DEPLOYMENT_STEP)]


# time -----------------------------------------------------------------------------------------------------------------
def _seconds(prepared: PreparedRun, trial: Trial, start: float) -> dict[str, float]:
    plan = prepared.plan
    sites = prepared.run_sites
    steps = _training_steps(trial)
    asked = Counter(taken.step for taken in steps)
    costs = {step: step_cost([taken for taken in steps if taken.step == step]) for step in asked}
    turns = {step: count / max(1, trial.clients) for step, count in asked.items()}

    def client(site: int) -> float:
        images = sites.work(site, "train")
        return sum(turns[step] * cost.seconds(images) for step, cost in costs.items())

    by_client = {site: client(site) for site in sites.clients}
    workers = _workers(prepared)
    training = sum(_side_by_side([by_client[site] for site in drawn], workers) for drawn in _cohorts(prepared))
    ids = _evaluated_sites(prepared)
    evaluated = sum(plan.evaluates(number) for number in range(1, plan.rounds + 1))
    predicting = step_cost([taken for taken in trial.steps if taken.step == EVALUATION_STEP])
    held_out = [sites.work(site, EVALUATION_STEP) for site in ids]
    one_evaluation = _side_by_side([predicting.seconds(images) for images in held_out], workers)
    scoring = trial.scoring_seconds * sum(held_out) / max(1, trial.held_out)
    deploying = fmean([taken.seconds for taken in trial.steps if taken.step == DEPLOYMENT_STEP] or [0.0])
    rounds = {
        "training": training,
        "server": plan.rounds * trial.server_seconds,
        "evaluation": evaluated * (one_evaluation + scoring),
    }
    return {
        "start": start,
        **rounds,
        "checkpoints": _checkpoint_seconds(prepared, trial, sum(rounds.values()) / plan.rounds),
        "end": 2 * deploying * (len(ids) if sites.personal else 1) / workers,
    }


def _checkpoint_seconds(prepared: PreparedRun, trial: Trial, one_round: float) -> float:
    tried = _bytes_in(trial, "checkpoint/last.safetensors") + _bytes_in(trial, "checkpoint/memory/")
    one = trial.checkpoint_seconds * _checkpoint_bytes(prepared, trial) / max(1, tried)
    spare_core = usable_cores() > _workers(prepared) * prepared.config.engine.threads
    every = prepared.config.checkpoint.every
    return checkpoint_seconds(one, every, prepared.plan.rounds, one_round, spare_core=spare_core)


def checkpoint_seconds(one: float, every: Every, rounds: int, one_round: float, *, spare_core: bool) -> float:
    """How much longer a run takes by checkpoints of `one` second each: its end waits for the last, and rounds for what
    of the others is not written meanwhile."""
    seldom = 1 if one < SHORT else max(1, math.ceil(one / SHARE / max(one_round, 1e-9)))
    apart = seldom if every == "auto" else every  # rounds
    hidden = apart * one_round if spare_core else 0.0
    return rounds // apart * max(0.0, one - hidden) + one


def step_cost(taken: Sequence[StepTaken]) -> StepCost:
    """The line through what was measured. Without two different numbers of images the whole time is thought to be the
    images'; a line that falls, or begins below nothing, is the clock's noise."""
    if not taken:
        return StepCost(0.0, 0.0)
    images, seconds = fmean(each.images for each in taken), fmean(each.seconds for each in taken)
    spread = sum((each.images - images) ** 2 for each in taken)
    alone = StepCost(0.0, seconds / images) if images else StepCost(seconds, 0.0)
    if not spread:
        return alone
    slope = sum((each.images - images) * (each.seconds - seconds) for each in taken) / spread
    fixed = seconds - slope * images
    if slope < 0:
        return StepCost(seconds, 0.0)
    return alone if fixed < 0 else StepCost(fixed, slope)


def _side_by_side(seconds: Sequence[float], workers: int) -> float:
    return max(max(seconds, default=0.0), sum(seconds) / workers)


def _workers(prepared: PreparedRun) -> int:
    settings = prepared.config.engine
    sites = prepared.run_sites
    return worker_count(settings, sites.devices, len(sites.ids)) if settings.name == "pool" else 1


def _cohorts(prepared: PreparedRun) -> list[list[int]]:
    return cohorts(prepared.plan, prepared.run_sites.clients)


def _evaluated_sites(prepared: PreparedRun) -> list[int]:
    sites = prepared.run_sites
    ids = sites.ids if sites.personal else [*sites.ids, SERVER]
    return [site for site in ids if sites.work(site, EVALUATION_STEP)]


# memory ---------------------------------------------------------------------------------------------------------------
def _memory(prepared: PreparedRun, trial: Trial, peak: int) -> dict[str, int]:
    """What the trial took, and what more sites and more images add to it."""
    sites = prepared.run_sites
    replies = [taken.reply_bytes for taken in _training_steps(trial)]
    cohort = cohort_size(prepared.plan.participation, len(sites.clients))
    reply = fmean(replies or [0])
    remembered = trial.memory_bytes / max(1, trial.clients) * _clients_with_memory(prepared)
    predicted = sum(taken.reply_bytes for taken in trial.steps if taken.step == EVALUATION_STEP)
    all_predicted = predicted * _held_out(prepared) / max(1, trial.held_out)
    amounts = {
        "process": peak,
        "replies": max(0, int(min(budget("replies"), cohort * reply) - trial.clients * reply)),
        # twice: a checkpoint that is being written holds what rounds after it have replaced
        "client memory": max(0, int(2 * min(client_memory_budget(prepared.config), remembered) - trial.memory_bytes)),
        "predictions in memory": max(0, int(all_predicted - predicted)),
    }
    if prepared.config.engine.name == "pool":
        collection = prepared.federation.collection
        held = collection.images.nbytes if collection.file is None else 0
        amounts["workers"] = _workers(prepared) * max(0, peak - held)
    return amounts


def _clients_with_memory(prepared: PreparedRun) -> int:
    """Clients that are asked in some round."""
    return len({site for drawn in _cohorts(prepared) for site in drawn})


def _held_out(prepared: PreparedRun) -> int:
    return sum(prepared.run_sites.work(site, EVALUATION_STEP) for site in _evaluated_sites(prepared))


# disk -----------------------------------------------------------------------------------------------------------------
def _disk(prepared: PreparedRun, trial: Trial) -> dict[str, int]:
    plan = prepared.plan
    sites = prepared.run_sites
    state = _bytes_in(trial, "checkpoint/last.safetensors") + _bytes_in(trial, "checkpoint/best.safetensors")
    one_state = _bytes_in(trial, "checkpoint/last.safetensors")
    weights = [size for path, size in trial.files.items() if path.startswith("weights/")]
    deployed = len(_evaluated_sites(prepared)) if sites.personal else 1
    evaluated = sum(plan.evaluates(number) for number in range(1, plan.rounds + 1))
    kept = {"none": 0, "best": min(KEPT, evaluated), "all": evaluated}[kept_predictions(prepared.config, sites)]
    larger = _held_out(prepared) / max(1, trial.held_out)
    predicted = _bytes_in(trial, "predictions/round-") * kept + _bytes_in(trial, "predictions/targets")
    lines = _bytes_in(trial, "metrics.jsonl") + _bytes_in(trial, "traffic.jsonl")
    more_sites = max(1.0, len(_evaluated_sites(prepared)) / max(1, trial.clients))
    described = sum(size for path, size in trial.files.items() if "/" not in path and not path.endswith(".jsonl"))
    pictures = _bytes_in(trial, "pictures/overlay-") * more_sites
    drawn = _bytes_in(trial, "pictures/") - _bytes_in(trial, "pictures/overlay-")
    return {
        "checkpoints": int(state + one_state + COPIES * _memory_files(prepared, trial)),
        "weights": int(2 * deployed * fmean(weights or [0])),
        "predictions": int(larger * predicted),
        "records": int(described + plan.rounds * (lines * more_sites + drawn) + pictures),
    }


def _checkpoint_bytes(prepared: PreparedRun, trial: Trial) -> int:
    cohort = cohort_size(prepared.plan.participation, len(prepared.run_sites.clients))
    changed = min(1.0, cohort / max(1, _clients_with_memory(prepared)))
    return int(_bytes_in(trial, "checkpoint/last.safetensors") + changed * _memory_files(prepared, trial))


def _memory_files(prepared: PreparedRun, trial: Trial) -> float:
    """Bytes of the files of all clients' memory."""
    return _bytes_in(trial, "checkpoint/memory/") / max(1, trial.clients) * _clients_with_memory(prepared)


def _bytes_in(trial: Trial, beginning: str) -> int:
    return sum(size for path, size in trial.files.items() if path.startswith(beginning))
