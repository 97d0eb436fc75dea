"""Gradient canaries ("dirac canaries"): units that a private site draws, clips and noises like its images, and whose
gradient is the clip in one coordinate of the weights. Each has a coordinate of its own, so that nothing but noise hides
whether it took part: no canary tests the promise of DP-SGD more sharply, whatever the network.

A canary is one more image, or one more patient with one image, for the sampling; it is never seen by the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor, nn

from crossward.audits.canaries import CanaryRun, claim_of, watch_run
from crossward.audits.finding import DoesNotApply
from crossward.core.seeds import derive
from crossward.core.site import Site
from crossward.core.weights import Weights
from crossward.privacy.dp_sgd import DPSGD, NoisySums
from crossward.privacy.method_support import planned_statistics, private_epochs
from crossward.privacy.run_privacy import RunPrivacy, plan_privacy
from crossward.runs.build import PreparedRun


@dataclass(frozen=True)
class Coordinate:
    """One number among the weights."""

    name: str  # of the tensor
    place: int  # in it, flattened


@dataclass(frozen=True)
class CanaryDPSGD(DPSGD):
    """DP-SGD in which the positions behind the site's images are canaries."""

    images: int = 0  # that the site has
    canaries: Sequence[Coordinate] = ()
    drawn: list[Coordinate] = field(default_factory=list)  # into the step that is prepared

    def draw(self, rng: torch.Generator) -> Tensor:
        positions = super().draw(rng)
        planted = positions[positions >= self.images] - self.images
        self.drawn[:] = [self.canaries[number] for number in planted.tolist()]
        return positions[positions < self.images]

    @contextmanager
    def recording(self, site: Site, trained: dict[str, nn.Parameter]) -> Iterator[NoisySums]:
        with super().recording(site, trained) as sums:
            yield CanarySums(sums.examples, sums.trained, self, sums.rng)


@dataclass(frozen=True)
class CanarySums(NoisySums):
    """Noisy sums to which every canary of the step has added its clipped gradient."""

    def noisy(self, size: int) -> dict[str, Tensor]:
        sums = super().noisy(size)
        assert isinstance(self.privacy, CanaryDPSGD)
        for canary in self.privacy.drawn:
            if canary.name in sums:  # a fit may train a part of the network
                sums[canary.name].view(-1)[canary.place] += self.privacy.clip / self.privacy.batch_size
        return sums


@dataclass(frozen=True)
class CanaryPrivacy(RunPrivacy):
    """The protection of a run, with canaries at one site."""

    planted_at: str = ""
    images: int = 0
    canaries: Sequence[Coordinate] = ()

    def attach(self, site: Site) -> None:
        super().attach(site)
        if site.name == self.planted_at and isinstance(site.privacy, DPSGD):
            plain = {each.name: getattr(site.privacy, each.name) for each in fields(DPSGD)}
            site.privacy = CanaryDPSGD(**plain, images=self.images, canaries=self.canaries)


class CoordinateScores:
    """How far each canary's coordinate has gone down, over all updates that were seen."""

    def __init__(self, canaries: Sequence[Coordinate]) -> None:
        self.canaries = canaries
        self.total = torch.zeros(len(canaries), dtype=torch.float64)
        self.updates = 0

    def add(self, before: Weights, after: Weights) -> None:
        moved = [self._value(before, canary) - self._value(after, canary) for canary in self.canaries]
        self.total += torch.tensor(moved, dtype=torch.float64)
        self.updates += 1

    def _value(self, weights: Weights, canary: Coordinate) -> float:
        return float(weights[canary.name].reshape(-1)[canary.place]) if canary.name in weights else 0.0


def run_with_gradient_canaries(prepared: PreparedRun, site: int, count: int, seed: int) -> CanaryRun:
    """Run to the last round with canaries at one site, and score every one of them."""
    run_sites = prepared.run_sites
    privacy = run_sites.privacy
    if privacy is None or privacy.settings.unit not in ("image", "patient"):
        raise DoesNotApply("gradient canaries test the noise on gradients, and the run has none.")
    rng = torch.Generator().manual_seed(derive(seed, "gradient canaries"))
    net = run_sites.server(0).new_net(run_sites.architecture(site))
    canaries = choose_coordinates(dict(net.named_parameters()), count, rng)
    included = torch.rand(len(canaries), generator=rng) < 0.5
    planted = [canary for canary, chosen in zip(canaries, included.tolist(), strict=True) if chosen]
    run_sites.privacy = _with_canaries(prepared, privacy, site, planted)
    scores = CoordinateScores(canaries)
    try:
        seen = watch_run(prepared, site, scores)
        epsilon, delta = claim_of(prepared, site)
    finally:
        run_sites.privacy = privacy
    return CanaryRun(scores.total.numpy(), included.numpy(), epsilon, delta, seen)


def choose_coordinates(
    parameters: Mapping[str, nn.Parameter], count: int, rng: torch.Generator
) -> tuple[Coordinate, ...]:
    """Different coordinates by chance, of the parameters that are trained."""
    trained = {name: parameter.numel() for name, parameter in parameters.items() if parameter.requires_grad}
    total = sum(trained.values())
    places = torch.randperm(total, generator=rng)[:count].sort().values.tolist()
    chosen = []
    start = 0
    for name, size in trained.items():
        chosen += [Coordinate(name, place - start) for place in places if start <= place < start + size]
        start += size
    return tuple(chosen)


def _with_canaries(
    prepared: PreparedRun, privacy: RunPrivacy, site: int, planted: Sequence[Coordinate]
) -> CanaryPrivacy:
    """The same protection, in which the site has more units to draw from."""
    run_sites, config = prepared.run_sites, prepared.config
    name = run_sites.name(site)
    split = run_sites.federation.sites[site]
    groups = run_sites.federation.collection.groups or ()
    own = [groups[row] for row in split.train.tolist()] if groups else []
    replanned = plan_privacy(
        privacy.settings,
        {name: len(split.train) + len(planted)},
        lambda _: [*own, *(f"canary {number}" for number in range(len(planted)))],
        batch_size=config.train.batch_size,
        epochs=private_epochs(run_sites.method, config.train),
        rounds=config.run.rounds,
        statistics=planned_statistics(run_sites.method, run_sites.carried, config.run.rounds),
    )
    sites = {**privacy.sites, **replanned.sites}
    plain = {each.name: getattr(replace(privacy, sites=sites), each.name) for each in fields(RunPrivacy)}
    return CanaryPrivacy(**plain, planted_at=name, images=len(split.train), canaries=planted)
