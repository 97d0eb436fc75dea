"""The rehearsal of a run: before round 1 the coordinator runs the method on noise, to learn what replies look like. The
replies of the hospitals are then checked against that, and against what each hospital said when it joined."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from crossward.core.bit_depth import PIXEL_TYPES
from crossward.core.engine import Job, Outcome, Payload
from crossward.core.inspection import ExpectedReplies, Limits, ScalarSpec, TreeSpec, reply_problems
from crossward.core.run import Plan, run
from crossward.core.store import TreeStore
from crossward.core.task import example_metrics
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.data.collection import Collection
from crossward.data.federation import NO_ROWS, Federation, Split
from crossward.engines.local import LocalEngine
from crossward.hospitals.plausibility import count_problems, metrics_problems
from crossward.hospitals.site_facts import Facts
from crossward.hospitals.site_sums import STEPS_BY_NAME
from crossward.hospitals.sum_directory import SITE_BYTES, secure_reply_problems
from crossward.privacy.secure_steps import SecureSteps, plain_method
from crossward.runs.sites import RunSites

IMAGES_PER_CLASS = 2
REHEARSAL_ROUNDS = 2  # methods may send other items from the second round on
METRICS_REPLY = TreeSpec({"metrics": ScalarSpec("str")})  # to the step "judge"
EMPTY_REPLY = TreeSpec({})  # to the step "deploy"
MAX_METRICS = 2**24  # characters
MAX_REPLY_BYTES = 2**31  # of a step that was not rehearsed
REPLY_GROWTH = 4  # times what the rehearsal sent
SPARE_BYTES = 2**20


@dataclass
class ReplyInspector:
    """Checks every reply against what the method declares, what the rehearsal showed, and what the site said of its
    images when it joined.

    A site whose policy does not let it say how many images it has may send no sample count either: it takes part in
    methods that count every site alike.
    """

    run_sites: RunSites
    expected: ExpectedReplies
    limits: Limits = Limits()
    facts: Mapping[int, Facts] | None = None  # of each site that has joined; None: nobody was asked

    def __call__(self, job: Job, reply: Tree) -> list[str]:
        """One line for each thing that is wrong with a reply."""
        architecture = self.run_sites.architecture(job.site)
        method = self.run_sites.method
        if isinstance(method, SecureSteps) and job.step in method.steps:
            return secure_reply_problems(method, job.step, reply, self._method_reply(architecture, "train"))
        expected: TreeSpec | None
        declared: Mapping[str, Any]
        if job.step == "judge":
            expected, declared = METRICS_REPLY, METRICS_REPLY.items
        elif job.step == "deploy":
            expected, declared = EMPTY_REPLY, EMPTY_REPLY.items
        else:
            expected, declared = self._method_reply(architecture, job.step), self.run_sites.method.discloses
        problems = reply_problems(
            reply, expected=expected, declared=declared, scale=self._net_norms[architecture], limits=self.limits
        )
        if problems:
            return problems
        facts = None if self.facts is None else self.facts.get(job.site, {})
        if job.step == "judge":
            return self._metrics_problems(reply["metrics"], facts)
        return count_problems(reply, self.run_sites.method.discloses, self.run_sites.task, facts)

    def most_bytes(self, job: Job) -> int:
        """How long the encoded reply to a job may be. One that is longer is not even decoded."""
        if job.step == "judge":
            return MAX_METRICS + SPARE_BYTES
        if job.step in STEPS_BY_NAME:
            trained = self.expected.most_bytes(self.run_sites.architecture(job.site), "train")
            shares = SITE_BYTES * len(self.run_sites.ids) + SPARE_BYTES
            return MAX_REPLY_BYTES if trained is None else REPLY_GROWTH * trained + shares
        known = self.expected.most_bytes(self.run_sites.architecture(job.site), job.step)
        return MAX_REPLY_BYTES if known is None and job.step != "deploy" else REPLY_GROWTH * (known or 0) + SPARE_BYTES

    def _method_reply(self, architecture: str, step: str) -> TreeSpec | None:
        """What the method replies to a step. Items that it sends only sometimes are optional, even if it sent them in
        all rounds of the rehearsal."""
        known = self.expected.of(architecture, step)
        if known is None:
            return None
        sometimes = {*self.run_sites.method.sometimes}
        return TreeSpec(known.items, known.optional | (known.items.keys() & sometimes))

    def _metrics_problems(self, text: str, facts: Facts | None) -> list[str]:
        """Why a site's metrics could not be compared with those of the others."""
        if len(text) > MAX_METRICS:
            return [f"metrics has {len(text)} characters, {MAX_METRICS} are allowed"]
        try:
            metrics = json.loads(text)
        except (ValueError, RecursionError):
            return ["metrics is not JSON"]
        if not isinstance(metrics, dict) or not {*metrics} <= {"val", "test"}:
            return ["metrics does not hold those of val and test"]
        if not all(isinstance(values, dict) for values in metrics.values()):
            return ["metrics does not hold those of val and test"]
        problems = []
        for part, values in metrics.items():
            if not all(self._is_metric(name, value) for name, value in values.items()):
                problems.append(f"the metrics of {part} are not the task's")
            else:
                images = (facts or {}).get("images", {})
                problems += [f"the metrics of {part}: {line}" for line in metrics_problems(values, images.get(part))]
        return problems

    def _is_metric(self, name: str, value: Any) -> bool:
        return name in self._example_metrics and _same_type(self._example_metrics[name], value, self.limits.largest)

    @cached_property
    def _example_metrics(self) -> dict[str, Any]:
        """The task's metrics for some prediction, for their names and types."""
        return example_metrics(self.run_sites.task)

    @cached_property
    def _net_norms(self) -> dict[str, float]:
        """The norm of each architecture's initial weights."""
        new_net = self.run_sites.server(0).new_net
        return {
            architecture: float(Weights.of(new_net(architecture)).norm())
            for architecture in self.run_sites.architectures
        }


def _same_type(example: Any, value: Any, largest: float) -> bool:
    """Whether a metric has the type of the example, and no huge number in it."""
    if isinstance(example, list):
        if not isinstance(value, list) or len(value) != len(example):
            return False
        return all(_same_type(inner, other, largest) for inner, other in zip(example, value))
    if isinstance(example, int):  # counts are summed, and never absent
        return type(value) is int and abs(value) <= largest
    return value is None or (type(value) is float and abs(value) <= largest)


def rehearse(run_sites: RunSites) -> ExpectedReplies:
    """What the method's replies look like. Two sites of every architecture train on noise, one of them without a class;
    nothing of the rehearsal stays in `run_sites`. Of a secure sum, the method without it is rehearsed."""
    expected = ExpectedReplies()
    training = replace(run_sites.training, epochs=1)
    method = plain_method(run_sites.method)
    rehearsal = replace(
        run_sites, method=method, federation=_noise_federation(run_sites), training=training, remote=False
    )
    engine = _RecordingEngine(
        rehearsal, lambda job, reply: expected.learn(run_sites.architecture(job.site), job.step, reply)
    )
    try:
        run(rehearsal, engine, Plan(REHEARSAL_ROUNDS, run_sites.seed, evaluate_every=0))
    finally:
        engine.close()
    return expected


class _RecordingEngine:
    """A local engine that passes every reply to `record`."""

    def __init__(self, run_sites: RunSites, record: Callable[[Job, Tree], None]) -> None:
        self._engine = LocalEngine(run_sites, threads=torch.get_num_threads())
        self._record = record
        self.memory: TreeStore = self._engine.memory

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        for outcome in self._engine.perform(jobs, payload):
            if not outcome.failure:
                self._record(outcome.job, outcome.reply)
            yield outcome

    def close(self) -> None:
        self._engine.close()


def _noise_federation(run_sites: RunSites) -> Federation:
    """A federation of noise with the sites, classes and image size of the real one."""
    real = run_sites.federation
    task = real.collection.task
    num_classes = len(real.classes)
    half = IMAGES_PER_CLASS * num_classes  # the first half of the images is for training, the second is public
    count = 2 * half
    rng = torch.Generator().manual_seed(0)
    size = real.collection.size
    shape = (count, *size, real.collection.channels)
    depth = real.collection.depth
    images = torch.randint(0, 2**depth, shape, generator=rng, dtype=PIXEL_TYPES[depth])
    if task == "segmentation":
        targets = torch.randint(0, num_classes, (count, *size), generator=rng, dtype=torch.uint8)
    elif task == "multi-label":
        targets = torch.randint(0, 2, (count, num_classes), generator=rng, dtype=torch.uint8)
    else:
        targets = torch.arange(count) % num_classes
    ids = tuple(f"noise/{i}" for i in range(count))
    train = torch.arange(half)
    lacking_a_class = train[targets[:half] != num_classes - 1] if task == "classification" else train
    first_sites = {*run_sites.architectures.values()}
    second_sites = _second_sites(run_sites)
    sites = []
    for number, site in enumerate(real.sites):
        rows = NO_ROWS
        if number in first_sites:
            rows = train
        elif number in second_sites:
            rows = lacking_a_class
        sites.append(Split(site.name, rows, rows, NO_ROWS))
    public = torch.arange(half, count)
    if len(real.public):  # predictions on it must have as many rows as the real ones
        public = public.repeat(-(-len(real.public) // half))[: len(real.public)]
    server_val = public[: len(real.server.val)] if len(real.server.val) else NO_ROWS
    collection = Collection("noise", task, real.collection.classes, images, targets, ids, ids)
    server = Split("server", NO_ROWS, server_val, NO_ROWS)
    return Federation(collection, tuple(sites), server, public if len(real.public) else NO_ROWS, {})


def _second_sites(run_sites: RunSites) -> set[int]:
    """For each architecture the second site that has it, if there is one."""
    architectures = [run_sites.architecture(site) for site in range(len(run_sites.federation.sites))]
    second_sites = set()
    for architecture in run_sites.architectures:
        sites = [site for site, other in enumerate(architectures) if other == architecture]
        if len(sites) > 1:
            second_sites.add(sites[1])
    return second_sites
