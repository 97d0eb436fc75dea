"""Canaries: images planted into one site, each trained on or not by the toss of a coin; who can tell which from what
leaves the site refutes an epsilon (canary_bound.py).

One training run with many canaries is enough. The other way, many runs with and without one canary, would take a
hundred runs for a bound of about 3 at 95 %.

The attacker is the coordinator: he sees the network that the site was sent and the one that it sends back, round by
round (with secure aggregation, only the network of all sites together), and knows every canary. The score of a canary
is how much the loss on it falls in the direction of these updates, summed over rounds, beyond that of its class. Images
share most of what a network learns of them, so this finds little unless it learns them by heart; spots and a linear
network are the exception. gradient_canaries.py has the sharper test of noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from crossward.audits.finding import NotMeasured
from crossward.audits.site_loss import SiteLoss, site_loss, with_classifier
from crossward.comparison.weighted_metrics import Array
from crossward.core.bit_depth import widened
from crossward.core.engine import Engine, Job, Outcome, Payload
from crossward.core.evaluation import EvaluatedSites
from crossward.core.net import Net
from crossward.core.run import Observer, Plan, Progress, RoundRecord
from crossward.core.run import run as run_rounds
from crossward.core.seeds import derive
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.data.collection import Collection
from crossward.data.federation import Federation, Split
from crossward.engines.local import LocalEngine
from crossward.runs.build import PreparedRun

CanaryKind = Literal["auto", "gradients", "mislabelled", "spots"]
GREY = 128
WHITE = 255
STEP = 1e-3  # of the difference quotient, as a share of an update; in double precision
AT_ONCE = 64  # images in a forward pass


@dataclass(frozen=True)
class Planted:
    """A federation with canaries at one site."""

    federation: Federation
    site: int
    rows: Tensor  # (m,) of the collection: all canaries
    included: Array  # (m,) whether the site trains on it


@dataclass(frozen=True)
class CanaryRun:
    """What a run with canaries let out."""

    scores: Array  # (m,) higher: rather trained on
    included: Array
    epsilon: float | None  # that the site's protection claims; None: it has none
    delta: float
    seen: str  # what the scores were computed from


# planting -------------------------------------------------------------------------------------------------------------
def plant(federation: Federation, site: int, count: int, kind: CanaryKind, seed: int) -> Planted:
    """Add canaries to the collection, and those that the coin chooses to what the site trains on."""
    rng = torch.Generator().manual_seed(derive(seed, "canaries"))
    collection = federation.collection
    if collection.task != "classification":
        raise NotMeasured(f"canaries are images with a wrong class, and this is {collection.task}")
    if kind == "spots":
        images, labels = spots(collection, count, rng)
        used: Tensor = torch.empty(0, dtype=torch.int64)
    else:
        images, labels, used = mislabelled(federation, count, rng)
    included = torch.rand(count, generator=rng) < 0.5
    rows = torch.arange(len(collection), len(collection) + count)
    sites = [_without(split, used) for split in federation.sites]
    sites[site] = replace(sites[site], train=torch.cat([sites[site].train, rows[included]]))
    changed = replace(
        federation,
        collection=_extended(collection, images, labels, federation.sites[site].name),
        sites=tuple(sites),
        server=_without(federation.server, used),
    )
    return Planted(changed, site, rows, included.numpy())


def spots(collection: Collection, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Grey images, each with one bright pixel at a place of its own, and classes by chance."""
    height, width = collection.size
    if count > height * width:
        raise NotMeasured(f"images of {height} x {width} pixels have places for {height * width} spots, not {count}")
    images = torch.full((count, height * width, collection.channels), GREY, dtype=torch.uint8)
    places = torch.randperm(height * width, generator=rng)[:count]
    images[torch.arange(count), places] = WHITE
    images = widened(images, collection.depth)
    labels = torch.randint(len(collection.classes), (count,), generator=rng)
    return images.view(count, height, width, collection.channels), labels


def mislabelled(federation: Federation, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Held-out images with a wrong class, and their rows, which are held out no more."""
    held_out = torch.cat([part for split in (*federation.sites, federation.server) for part in (split.val, split.test)])
    if count > len(held_out):
        raise NotMeasured(f"there are {len(held_out)} held-out images to make canaries of, not {count}")
    used = held_out[torch.randperm(len(held_out), generator=rng)[:count]]
    collection = federation.collection
    classes = len(collection.classes)
    others = torch.randint(1, classes, (count,), generator=rng)
    return collection.images[used], (collection.targets[used].long() + others) % classes, used


def _without(split: Split, rows: Tensor) -> Split:
    kept = {part: getattr(split, part) for part in ("val", "test")}
    return replace(split, **{part: held[~torch.isin(held, rows)] for part, held in kept.items()})


def _extended(collection: Collection, images: Tensor, labels: Tensor, site: str) -> Collection:
    names = tuple(f"canary/{number}" for number in range(len(images)))

    def column(values: tuple[str, ...] | None, more: Sequence[str]) -> tuple[str, ...] | None:
        return None if values is None else (*values, *more)

    return replace(
        collection,
        images=torch.cat([collection.images, images]),
        targets=torch.cat([collection.targets, labels.to(collection.targets.dtype)]),
        ids=(*collection.ids, *names),
        hashes=(*collection.hashes, *names),
        groups=column(collection.groups, names),
        sites=column(collection.sites, [site] * len(names)),
        splits=column(collection.splits, ["train"] * len(names)),
        file=None,
    )


# the run --------------------------------------------------------------------------------------------------------------
def run_with_canaries(prepared: PreparedRun, planted: Planted) -> CanaryRun:
    """Run to the last round, without evaluation and without a run directory, and score every canary."""
    run_sites = prepared.run_sites
    samples = run_sites.open(planted.site, 0, {}).train
    x, y = samples.take(planted.rows)
    net = run_sites.server(0).new_net(run_sites.architecture(planted.site))
    with_classifier(net, run_sites.method, prepared.start)
    scores = UpdateScores(net, site_loss(run_sites.method, run_sites.task), x, y)
    seen = watch_run(prepared, planted.site, scores)
    epsilon, delta = claim_of(prepared, planted.site)
    return CanaryRun(_centred(scores.total, y.cpu()).numpy(), planted.included, epsilon, delta, seen)


def watch_run(prepared: PreparedRun, site: int, scores: UpdateWatcher) -> str:
    """Run to the last round, and show the updates to `scores`; returns whose updates they were."""
    run_sites = prepared.run_sites
    engine = WatchedEngine(LocalEngine(run_sites, threads=prepared.config.engine.threads), site, scores.add)
    server_view = ServerView(scores)
    plan = replace(prepared.plan, evaluate_every=0)
    try:
        run_rounds(run_sites, engine, plan, [server_view], Progress(prepared.start))
    finally:
        engine.close()
    if not scores.updates:
        raise NotMeasured(f"{prepared.config.method.name} sends no weights, from which canaries could be read")
    return "the network of all sites, round by round" if server_view.needed else "the site's update of every round"


def _centred(scores: Tensor, labels: Tensor) -> Tensor:
    """Without what canaries of one class have in common, which tells nothing of a single one."""
    centred = scores.clone()
    for label in labels.unique():
        same = labels == label
        centred[same] -= scores[same].mean()
    return centred


def claim_of(prepared: PreparedRun, site: int) -> tuple[float | None, float]:
    """The epsilon that the site's noise promises for the whole run, and its delta."""
    privacy = prepared.run_sites.privacy
    settings = prepared.config.privacy
    if privacy is None:
        return None, settings.delta
    facts = privacy.facts()["sites"][prepared.run_sites.name(site)]
    return float(facts["planned_epsilon"]), settings.delta


class UpdateWatcher(Protocol):
    updates: int  # that were shown

    def add(self, before: Weights, after: Weights) -> None:
        """The weights before and after a round."""
        ...


class UpdateScores:
    """Of each canary, how much the loss falls in the direction of the updates that were seen."""

    def __init__(self, net: Net, loss: SiteLoss, x: Tensor, y: Tensor) -> None:
        self.net = deepcopy(net).double().eval()
        self.loss, self.x, self.y = loss, x.double(), y
        self.total = torch.zeros(len(x), dtype=torch.float64)
        self.updates = 0

    def add(self, before: Weights, after: Weights) -> None:
        start = before.only(after).map(Tensor.double)
        update = after.map(Tensor.double) - start
        ahead, behind = (self._losses(start + update * step) for step in (STEP, -STEP))
        self.total += (behind - ahead) / (2 * STEP)
        self.updates += 1

    def _losses(self, weights: Weights) -> Tensor:
        """(m,)"""
        weights.into(self.net)
        losses = []
        with torch.no_grad():
            for x, y in zip(self.x.split(AT_ONCE), self.y.split(AT_ONCE), strict=True):
                z = self.net.features(x)
                losses += [self.loss(self.net, z[i : i + 1], y[i : i + 1]) for i in range(len(y))]
        return torch.stack(losses).cpu()


class WatchedEngine:
    """Passes everything on, and shows the weights that went to one site and came back from it."""

    def __init__(self, engine: Engine, site: int, watch: Callable[[Weights, Weights], None]) -> None:
        self.engine, self.memory, self.site, self.watch = engine, engine.memory, site, watch

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        for outcome in self.engine.perform(jobs, payload):
            if outcome.job.site == self.site and not outcome.failure:
                down: Tree = payload(self.site) if callable(payload) else payload
                before, after = down.get("model"), outcome.reply.get("model")
                if isinstance(before, Weights) and isinstance(after, Weights):
                    self.watch(before, after)
            yield outcome

    def close(self) -> None:
        self.engine.close()


class ServerView(Observer):
    """The network of all sites together, which the server has where it sees no site's own."""

    def __init__(self, scores: UpdateWatcher) -> None:
        self.scores = scores
        self.needed = False
        self.last: Weights | None = None

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None:
        self.last = _model(progress.state)

    def on_round(self, record: RoundRecord) -> None:
        model = _model(record.progress.state)
        self.needed = self.needed or not self.scores.updates
        if self.needed and self.last is not None and model is not None:
            self.scores.add(self.last, model)
        self.last = model


def _model(state: Tree) -> Weights | None:
    model = state.get("model")
    return model if isinstance(model, Weights) else None


def largest_site(federation: Federation) -> int:
    return int(np.argmax([len(split.train) for split in federation.sites]))
