"""Whether the items of a reply are made as the method declares: a sum over images is the sum of its sums over parts of
them, and so is a number of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from crossward.core.disclosure import SAMPLE_COUNT, Disclosure, DisclosureKind, Made
from crossward.core.engine import Job, Outcome, Payload
from crossward.core.method import answer
from crossward.core.net import Net
from crossward.core.run import Plan, run
from crossward.core.samples import Samples
from crossward.core.tree import Tree
from crossward.engines.local import LocalEngine
from crossward.runs.sites import RunSites
from crossward.testing.cases import SIZES, TRAINING, Case
from crossward.testing.engine_wrappers import EngineWrapper
from crossward.testing.toy import CLASSES, Toy

SITE = 1
STILL = replace(TRAINING, lr=1e-12, momentum=0.0, keep_state=False)  # the network stays where it is


class PayloadKeeper(EngineWrapper):
    """Keeps the first payload of each step that one site was sent, with its job."""

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__(engine)
        self.asked: dict[str, tuple[Job, Tree]] = {}

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        for job in jobs:
            if job.site == SITE and job.step not in self.asked:
                self.asked[job.step] = (job, payload(SITE) if callable(payload) else payload)
        yield from self.engine.perform(jobs, payload)


def check_declared_items(case: Case) -> None:
    """What is declared to be a sum or a number of images is additive over a split of them."""
    declared = {item: about for item, about in case.method.discloses.items() if _is_additive(about)}
    if not declared or case.method.pooled:
        return
    run_sites = _still_sites(case)
    keeper = PayloadKeeper(LocalEngine(run_sites))
    run(run_sites, keeper, Plan(1, evaluate_every=0))
    for step in case.method.steps:
        if step in keeper.asked:
            _is_the_sum_of_its_parts(case, run_sites, *keeper.asked[step], declared)


def _is_the_sum_of_its_parts(
    case: Case, run_sites: RunSites, job: Job, down: Tree, declared: dict[str, Disclosure]
) -> None:
    whole, first, second = (_reply(case, run_sites, job, down, part) for part in (slice(None), 0, 1))
    for item, about in declared.items():
        if item in whole:
            total = _by_class(about, whole[item])
            parts = _by_class(about, first[item]) + _by_class(about, second[item])
            assert torch.allclose(total, parts, rtol=1e-4, atol=1e-4), f"{job.step}: {item} is no sum over images"


def _reply(case: Case, run_sites: RunSites, job: Job, down: Tree, part: slice | int) -> Tree:
    """The reply of the site with all of its images, or with every second one."""
    site = run_sites.open(SITE, job.round, {}, fresh=True)
    chosen = part if isinstance(part, slice) else slice(part, None, 2)
    site.train, site.val = _some(site.train, chosen), _some(site.val, chosen)
    return answer(case.method, site, job.step, down, job.seed)


def _some(samples: Samples, chosen: slice) -> Samples:
    return samples.only(torch.arange(len(samples))[chosen])


def _is_additive(about: Disclosure) -> bool:
    return about.made is Made.SUM or about == SAMPLE_COUNT


def _by_class(about: Disclosure, value: Tensor | float) -> Tensor:
    """Numbers that add up; counts of sub-classes do so class by class, as a site draws its own sub-classes."""
    numbers = torch.as_tensor(value).double()
    if about.kind is DisclosureKind.CLASS_COUNTS and numbers.dim() > 1:
        return numbers.flatten(1).sum(1)
    return numbers


def _still_sites(case: Case) -> RunSites:
    """The case's sites, with a network that has no BatchNorm, whose statistics would move, and does not train."""
    toy = Toy(case.task, SIZES, common=0, public=4)
    net = _segmenter if case.task == "segmentation" else _classifier
    return toy.run_sites(case.method, case.plugins, STILL, net)


def _classifier() -> Net:
    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return Net(body, nn.Linear(16, len(CLASSES)), width=16)


def _segmenter() -> Net:
    return Net(nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), nn.Tanh()), nn.Conv2d(5, len(CLASSES), 1), width=5)
