"""What a reply must look like: learnt by letting the method run with images of noise at the coordinator, before any
hospital is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from crossward.core.engine import Job, Outcome, Payload
from crossward.core.evaluation import Judged
from crossward.core.inspection import Expected, Limits, faults
from crossward.core.run import Plan, run
from crossward.core.store import TreeStore
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.data.collection import Collection
from crossward.data.federation import NOBODY, Federation, Split
from crossward.engines.local import LocalEngine
from crossward.experiment.hospitals import Hospitals

EACH = 2  # images of every class
ROUNDS = 2  # so that what is sent from the second round on is seen, too
ITEMS: Mapping[str, tuple[str, ...]] = {"judge": ("metrics",), "deploy": ()}  # of replies that are no method's


@dataclass
class Inspector:
    """Holds every reply against what the method declares and against the rehearsal."""

    hospitals: Hospitals
    expected: Expected
    limits: Limits = Limits()

    def __call__(self, job: Job, reply: Tree) -> list[str]:
        declared = ITEMS.get(job.step, tuple(self.hospitals.method.discloses))
        kind = self.hospitals.kind(job.site)
        return faults(
            reply,
            expected=self.expected.of(kind, job.step),
            declared=declared,
            scale=self._scales[kind],
            limits=self.limits,
        )

    @cached_property
    def _scales(self) -> dict[str, float]:
        new = self.hospitals.server(0).new_net
        return {kind: float(Weights.of(new(kind)).norm()) for kind in self.hospitals.kinds}


def rehearsed(hospitals: Hospitals) -> Expected:
    """Of every architecture two sites train on noise, one of them without a class; nothing of that stays."""
    expected = Expected()
    training = replace(hospitals.training, epochs=1)
    pretended = replace(hospitals, federation=_noise(hospitals), training=training, away=False)
    engine = _Learning(pretended, lambda job, reply: expected.learn(hospitals.kind(job.site), job.step, reply))
    try:
        run(_judged(pretended), engine, Plan(ROUNDS, hospitals.seed, evaluate_every=0))
    finally:
        engine.close()
    return expected


def _judged(hospitals: Hospitals) -> Judged:
    return hospitals


class _Learning:
    """An engine in this process that shows every reply."""

    def __init__(self, hospitals: Hospitals, learn: Callable[[Job, Tree], None]) -> None:
        self._engine, self._learn = LocalEngine(hospitals, threads=torch.get_num_threads()), learn
        self.memory: TreeStore = self._engine.memory

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        for outcome in self._engine.perform(jobs, payload):
            if not outcome.failure:
                self._learn(outcome.job, outcome.reply)
            yield outcome

    def close(self) -> None:
        self._engine.close()


def _noise(hospitals: Hospitals) -> Federation:
    held = hospitals.federation
    like, classes = held.collection, len(held.classes)
    first, n = {*hospitals.kinds.values()}, EACH * classes
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
    kinds = [hospitals.kind(i) for i in range(len(held.sites))]
    second = {next((i for i in range(k + 1, len(kinds)) if kinds[i] == kinds[k]), k) for k in first} - first
    rows = [train if i in first else fewer if i in second else NOBODY for i in range(len(kinds))]
    sites = tuple(Split(site.name, mine, mine, NOBODY) for site, mine in zip(held.sites, rows, strict=True))
    server = Split("server", NOBODY, public[: len(held.server.val)] if len(held.server.val) else NOBODY, NOBODY)
    collection = Collection("noise", like.task, like.classes, images, labels, ids, ids)
    return Federation(collection, sites, server, public if len(held.public) else NOBODY, {})
