"""A trial round: a part of a run's first round, at a few sites with a few of their images, in a temporary folder.

It goes through the same code as the run itself, and what it takes is measured: seconds of each step at each site, bytes
of replies and of clients' memory, and the files of its run directory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from crossward.config.schema import ObserveSettings
from crossward.core.engine import SERVER, Engine, Job, Outcome, Payload
from crossward.core.run import Observer, RoundRecord
from crossward.core.store import TreeStore
from crossward.core.tree import sizes
from crossward.data.federation import NO_ROWS, Federation, Split
from crossward.engines.local import LocalEngine
from crossward.runs.build import PreparedRun
from crossward.runs.checkpoint_writer import CHECKPOINT, read_checkpoint
from crossward.runs.lifecycle import execute, held
from crossward.runs.private_runs import protection
from crossward.runs.run_directory import RunDir
from crossward.runs.sites import RunSites

SECONDS = 5.0  # that the round measured should take, where two batches at a site take less
LONG = 60.0  # seconds of a first try with one batch at each site, after which no other is made
MOST_BATCHES = 8  # at a site
HELD_OUT = 64  # images of validation and of test, for each batch of training
MOST_ARCHITECTURES = 4  # that are tried
EVALUATION_STEP = "predict"
NO_LIMIT = 1 << 62  # bytes in memory
# by the unit that noise protects: it needs units that are not in a batch, and a patient may have many images
LEAST_BATCHES = {None: 1, "site": 1, "image": 2, "patient": 1 << 20}


@dataclass(frozen=True)
class StepTaken:
    """A step at a site, as measured."""

    step: str
    images: int  # that the step saw
    seconds: float
    reply_bytes: int


@dataclass
class Trial:
    """What a trial round took."""

    steps: list[StepTaken] = field(default_factory=list)
    server_seconds: float = 0.0  # of the round, outside the steps of sites
    scoring_seconds: float = 0.0  # of the evaluation, outside the steps of sites
    clients: int = 0
    memory_bytes: int = 0  # of all its clients, between rounds
    files: dict[str, int] = field(default_factory=dict)  # of its run directory: path -> bytes
    checkpoint_seconds: float = 0.0  # of writing the checkpoint among these files

    @property
    def held_out(self) -> int:
        """Images that were predicted."""
        return sum(taken.images for taken in self.steps if taken.step == EVALUATION_STEP)


class TimedEngine:
    """Measures each step that the engine it wraps performs."""

    def __init__(self, engine: Engine, sites: RunSites, trial: Trial) -> None:
        self.engine = engine
        self.memory = engine.memory
        self.sites = sites
        self.trial = trial
        self.evaluation_began: float | None = None

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        if self.evaluation_began is None and jobs and jobs[0].step == EVALUATION_STEP:
            self.evaluation_began = time.perf_counter()
        for job in jobs:
            began = time.perf_counter()
            for outcome in self.engine.perform([job], payload):
                seconds = time.perf_counter() - began
                size = sum(sizes(outcome.reply).values())
                self.trial.steps.append(StepTaken(job.step, self.sites.work(job.site, job.step), seconds, size))
                yield outcome

    def close(self) -> None:
        self.engine.close()


class RoundWatch(Observer):
    """Divides what a round took beside the steps of sites into the server's part and the evaluation's."""

    def __init__(self, engine: TimedEngine) -> None:
        self.engine = engine

    def on_round(self, record: RoundRecord) -> None:
        ended = time.perf_counter()
        began = ended - record.seconds
        evaluated = ended if self.engine.evaluation_began is None else self.engine.evaluation_began
        trial = self.engine.trial
        trial.server_seconds = max(0.0, evaluated - began - _seconds(trial, evaluation=False))
        trial.scoring_seconds = max(0.0, ended - evaluated - _seconds(trial, evaluation=True))
        trial.clients = len(record.cohort)
        trial.memory_bytes = sum(sum(sizes(tree).values()) for tree in self.engine.memory.values())


def _seconds(trial: Trial, *, evaluation: bool) -> float:
    return sum(taken.seconds for taken in trial.steps if (taken.step == EVALUATION_STEP) == evaluation)


class TrialSites(RunSites):
    """The sites of a trial: those that were left without images are asked for nothing, though the federation's own
    images are there for them as well."""

    def work(self, site: int, step: str) -> int:
        split = self._split(site)
        tried = site == SERVER or len(split.train) or len(split.val) or len(split.test)
        return super().work(site, step) if tried else 0


def try_round(prepared: PreparedRun) -> Trial:
    """Measure a part of a round: first of one batch at each site, which also pays for what happens once in a process,
    then of two, and of more as long as that takes a few seconds."""
    began = time.perf_counter()
    trial = _tried(_thinned(prepared, 1))
    batches = 2
    if time.perf_counter() - began > LONG:
        return trial
    while batches <= MOST_BATCHES:
        began = time.perf_counter()
        trial = _tried(_thinned(prepared, batches))
        if time.perf_counter() - began > SECONDS / 2:
            break
        batches *= 2
    return trial


def _tried(thin: PreparedRun) -> Trial:
    trial = Trial()
    sites = thin.run_sites

    def start_engine(memory: TreeStore) -> TimedEngine:
        settings = thin.config.engine
        local = LocalEngine(sites, threads=settings.threads, strict=settings.strict, memory=memory)
        return TimedEngine(local, sites, trial)

    def observers(engine: Engine) -> list[Observer]:
        assert isinstance(engine, TimedEngine)
        return [RoundWatch(engine)]

    with TemporaryDirectory(prefix="crossward-trial-") as place:
        rundir = RunDir.create(Path(place) / "trial")
        with held(rundir):
            execute(rundir, thin, start_engine, observers, images=sites.test_images)
        files = [file for file in rundir.folder.rglob("*") if file.is_file()]
        trial.files = {str(file.relative_to(rundir.folder)): file.stat().st_size for file in files}
        trial.checkpoint_seconds = _written_again(rundir)
    return trial


def _written_again(rundir: RunDir) -> float:
    """Seconds of writing the last checkpoint once more, with the memory of all clients."""
    memory = TreeStore(rundir.folder / "checkpoint" / "memory", NO_LIMIT)
    progress = read_checkpoint(rundir, memory)
    assert progress is not None
    memory.update({client: memory[client] for client in memory})  # now they are in no file
    began = time.perf_counter()
    memory.commit()
    rundir.keep(CHECKPOINT, progress.state)
    return time.perf_counter() - began


def _thinned(prepared: PreparedRun, batches: int) -> PreparedRun:
    """The run with one round, and few images at few of its sites. The folder still describes the whole federation."""
    sites = prepared.run_sites
    chosen = _tried_sites(prepared)
    least = LEAST_BATCHES[prepared.config.privacy.unit]
    federation = _with_few_images(sites.federation, chosen, batches, sites.training.batch_size, least)
    thin = TrialSites(**{each.name: getattr(sites, each.name) for each in fields(sites) if each.init})
    thin.federation = federation
    config = prepared.config.model_copy(update={"observe": ObserveSettings()})
    thin.privacy = protection(config, thin)
    plan = replace(
        prepared.plan,
        rounds=1,
        participation=1.0,
        min_clients=1,
        evaluate_every=min(1, prepared.plan.evaluate_every),
        evaluate_first=1,
    )
    return replace(prepared, config=config, run_sites=thin, plan=plan)


def _tried_sites(prepared: PreparedRun) -> list[int]:
    """A site of each of a few architectures, and the largest others: as many as the run needs in a round."""
    sites = prepared.run_sites
    settings = prepared.config.privacy
    least = settings.secure_min_sites if settings.secure_aggregation else 2
    by_size = sorted(sites.clients, key=lambda site: -sites.work(site, "train"))
    seen: dict[str, int] = {}
    for site in by_size:
        if len(seen) < MOST_ARCHITECTURES:
            seen.setdefault(sites.architecture(site), site)
    chosen = list(seen.values())
    others = [site for site in by_size[: least + len(chosen)] if site not in chosen]
    return sorted([*chosen, *others[: max(0, least - len(chosen))]])


def _with_few_images(federation: Federation, chosen: Sequence[int], batches: int, batch: int, least: int) -> Federation:
    """Every second site has half as many, so that what a step takes can be told from what an image takes."""
    few: dict[int, Split] = {}
    for place, site in enumerate(chosen):
        mine = math.ceil(batches / 2) if place % 2 else batches
        few[site] = _few(federation.sites[site], max(mine, least) * batch, mine * HELD_OUT)
    sites = tuple(
        few[number] if number in few else Split(split.name, NO_ROWS, NO_ROWS, NO_ROWS)
        for number, split in enumerate(federation.sites)
    )
    server = _few(federation.server, batches * batch, batches * HELD_OUT)
    return replace(federation, sites=sites, server=server)


def _few(split: Split, trained: int, held_out: int) -> Split:
    train, val, test = split.train, split.val, split.test
    return Split(split.name, _spread(train, trained), _spread(val, held_out), _spread(test, held_out))


def _spread(rows: Tensor, count: int) -> Tensor:
    """So many of the rows, from all of them: neighbours are often of one class."""
    if len(rows) <= count:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, count).long()]
