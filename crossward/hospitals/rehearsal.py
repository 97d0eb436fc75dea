"""What a reply must look like: learnt by letting the method run with images of noise at the coordinator, before any
hospital is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from crossward.core.engine import Job, Outcome, Payload
from crossward.core.evaluation import EvaluatedSites
from crossward.core.inspection import Expected, Limits, Scalar, Signature, faults
from crossward.core.run import Plan, run
from crossward.core.store import TreeStore
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.data.collection import Collection
from crossward.data.federation import NOBODY, Federation, Split
from crossward.engines.local import LocalEngine
from crossward.runs.sites import RunSites

EACH = 2  # images of every class
ROUNDS = 2  # so that what is sent from the second round on is seen, too
JUDGED = Signature({"metrics": Scalar("str")})  # how a site says how well it does
SILENT = Signature({})


@dataclass
class Inspector:
    """Holds every reply against what the method declares and against the rehearsal."""

    run_sites: RunSites
    expected: Expected
    limits: Limits = Limits()

    def __call__(self, job: Job, reply: Tree) -> list[str]:
        architecture = self.run_sites.architecture(job.site)
        expected = {"judge": JUDGED, "deploy": SILENT}.get(job.step)
        declared = expected.items if expected else self.run_sites.method.discloses
        expected = expected or self._of_the_method(architecture, job.step)
        told = faults(reply, expected=expected, declared=declared, scale=self._scales[architecture], limits=self.limits)
        return told or (self._misjudged(reply["metrics"]) if job.step == "judge" else [])

    def _of_the_method(self, architecture: str, step: str) -> Signature | None:
        """What was sent in all rounds of the rehearsal need not be sent in all rounds of the run."""
        known = self.expected.of(architecture, step)
        rare = {*self.run_sites.method.sometimes}
        return known and Signature(known.items, known.optional | (known.items.keys() & rare))

    def _misjudged(self, text: str) -> list[str]:
        """What of a site's metrics could not be put beside those of the others."""
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            return ["metrics is not JSON"]
        sound = isinstance(told, dict) and all(isinstance(metrics, dict) for metrics in told.values())
        if not sound or not {*told} <= {"val", "test"}:
            return ["metrics does not hold those of val and test"]
        wrong = [part for part in told if not all(self._fits(name, value) for name, value in told[part].items())]
        return [f"the metrics of {part} are not the task's" for part in wrong]

    def _fits(self, name: str, value: Any) -> bool:
        return name in self._metrics and _alike(self._metrics[name], value, self.limits.largest)

    @cached_property
    def _metrics(self) -> dict[str, Any]:
        """The task's metrics, of a guess."""
        task, maps = self.run_sites.task, (4, 4) if self.run_sites.task.name == "segmentation" else ()
        guess = task.prediction(torch.zeros(1, len(task.classes), *maps))
        return task.metrics(guess, torch.zeros(1, *maps, dtype=torch.int64))

    @cached_property
    def _scales(self) -> dict[str, float]:
        new = self.run_sites.server(0).new_net
        return {
            architecture: float(Weights.of(new(architecture)).norm()) for architecture in self.run_sites.architectures
        }


def _alike(known: Any, value: Any, largest: float) -> bool:
    if isinstance(known, list):
        sides = isinstance(value, list) and len(value) == len(known)
        return sides and all(_alike(one, other, largest) for one, other in zip(known, value))
    types = (int,) if isinstance(known, int) else (int, float)  # counts are summed, and never absent
    return (value is None and types != (int,)) or (type(value) in types and abs(value) <= largest)


def rehearsed(run_sites: RunSites) -> Expected:
    """Of every architecture two sites train on noise, one of them without a class; nothing of that stays."""
    expected = Expected()
    training = replace(run_sites.training, epochs=1)
    pretended = replace(run_sites, federation=_noise(run_sites), training=training, away=False)
    engine = _Learning(pretended, lambda job, reply: expected.learn(run_sites.architecture(job.site), job.step, reply))
    try:
        run(_judged(pretended), engine, Plan(ROUNDS, run_sites.seed, evaluate_every=0))
    finally:
        engine.close()
    return expected


def _judged(run_sites: RunSites) -> EvaluatedSites:
    return run_sites


class _Learning:
    """An engine in this process that shows every reply."""

    def __init__(self, run_sites: RunSites, learn: Callable[[Job, Tree], None]) -> None:
        self._engine, self._learn = LocalEngine(run_sites, threads=torch.get_num_threads()), learn
        self.memory: TreeStore = self._engine.memory

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        for outcome in self._engine.perform(jobs, payload):
            if not outcome.failure:
                self._learn(outcome.job, outcome.reply)
            yield outcome

    def close(self) -> None:
        self._engine.close()


def _noise(run_sites: RunSites) -> Federation:
    held = run_sites.federation
    like, classes = held.collection, len(held.classes)
    first, n = {*run_sites.architectures.values()}, EACH * classes
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2 * n, *like.size, like.channels), generator=rng, dtype=torch.uint8)
    labels = torch.arange(2 * n) % classes
    if like.task == "segmentation":
        labels = torch.randint(0, classes, (2 * n, *like.size), generator=rng, dtype=torch.uint8)
    ids = tuple(f"noise/{i}" for i in range(2 * n))
    train, public = torch.arange(n), torch.arange(n, 2 * n)
    fewer = train[labels[:n] != classes - 1] if like.task == "classification" else train  # some sites lack a class
    if len(held.public):  # predictions on it must have as many rows as the real ones
        public = public.repeat(-(-len(held.public) // n))[: len(held.public)]
    architectures = [run_sites.architecture(i) for i in range(len(held.sites))]
    second = {
        next((i for i in range(k + 1, len(architectures)) if architectures[i] == architectures[k]), k) for k in first
    } - first
    rows = [train if i in first else fewer if i in second else NOBODY for i in range(len(architectures))]
    sites = tuple(Split(site.name, mine, mine, NOBODY) for site, mine in zip(held.sites, rows, strict=True))
    server = Split("server", NOBODY, public[: len(held.server.val)] if len(held.server.val) else NOBODY, NOBODY)
    collection = Collection("noise", like.task, like.classes, images, labels, ids, ids)
    return Federation(collection, sites, server, public if len(held.public) else NOBODY, {})
