"""DP-SGD within a site's fits (Abadi et al., CCS 2016): batches by Poisson sampling, the gradient of each example
clipped, Gaussian noise on their sum, and the sum divided by the expected size of a batch.

The unit is an image, or a patient: then patients are drawn, and each one that is drawn shows one of his images, chosen
by chance. In either case one unit adds at most one clipped gradient to a step, so that the clip is what it can change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from crossward.core.samples import Batch
from crossward.core.seeds import stream
from crossward.core.site import Site
from crossward.errors import ConfigError
from crossward.privacy.accounting import Release, Spend
from crossward.privacy.example_gradients import ExampleGradients, recording
from crossward.privacy.noise import clip_factors, gaussian_like, secret_generator
from crossward.privacy.settings import Unit
from crossward.privacy.site_statistics import SiteStatistics


@dataclass(frozen=True)
class PatientRows:
    """Which of a site's training images belong to which patient."""

    order: Tensor  # (n,) positions among the training images, patient by patient
    starts: Tensor  # (P,) where each patient's begin in `order`
    counts: Tensor  # (P,)

    @classmethod
    def of(cls, patients: Tensor) -> PatientRows:
        """`patients` (n,) is a number for each image, the same for images of one patient."""
        _, codes, counts = torch.unique(patients, return_inverse=True, return_counts=True)
        return cls(torch.argsort(codes, stable=True), counts.cumsum(0) - counts, counts)

    @property
    def weights(self) -> Tensor:
        """(n,) what each image counts in a sum: its share of its patient."""
        shares = torch.repeat_interleave(1 / self.counts.float(), self.counts)
        return torch.empty_like(shares).index_copy_(0, self.order, shares)

    def draw(self, patients: Tensor, rng: torch.Generator) -> Tensor:
        """The position of one image, by chance, of each of these patients."""
        counts = self.counts[patients]
        chosen = (torch.rand(len(patients), generator=rng) * counts).long().minimum(counts - 1)
        return self.order[self.starts[patients] + chosen]


@dataclass(frozen=True)
class DPSGD:
    """How the fits of one site protect its images or patients."""

    unit: Unit
    clip: float
    sensitivity: float  # what one unit can change, at least the clip
    noise: float  # standard deviation of the noise on a sum of gradients, over the sensitivity
    batch_size: int  # units that a step draws, in expectation
    units: int  # images or patients that the site trains on
    spend: Spend
    patients: PatientRows | None = None
    secret: bool = True  # noise that nobody can repeat; False, for simulations: from the seeds of the run
    feature_clip: float = 1.0  # of what an image adds to a sum of features
    statistics_noise: Mapping[str, float] = field(default_factory=dict)  # kind of statistic -> noise of one release

    def __post_init__(self) -> None:
        if self.sensitivity < self.clip:
            raise ConfigError(f"a sensitivity of {self.sensitivity} is smaller than the clip of {self.clip}")

    @property
    def statistics(self) -> SiteStatistics:
        weights = torch.ones(self.units) if self.patients is None else self.patients.weights
        return SiteStatistics(
            self.statistics_noise, self.spend, weights, self.units, clip=self.feature_clip, secret=self.secret
        )

    @property
    def rate(self) -> float:
        """At which each unit is drawn into a step."""
        return min(1.0, self.batch_size / self.units)

    def steps(self, epochs: int) -> int:
        """Of a fit of so many epochs."""
        return epochs * -(-self.units // self.batch_size)

    def release(self, epochs: int) -> Release:
        """What a fit of so many epochs gives away."""
        return Release(self.noise, self.rate, self.steps(epochs))

    def batches(self, site: Site, epochs: int) -> Iterator[Batch]:
        """Batches by Poisson sampling; the steps are counted before the first is drawn."""
        self.spend(self.release(epochs), f"fit {len(site.fits)}")
        rng = self._generator(site, "sampling")
        for epoch in range(epochs):
            site.epoch = epoch
            for _ in range(self.steps(1)):
                yield self._batch(site, rng)

    def _batch(self, site: Site, rng: torch.Generator) -> Batch:
        positions = self.draw(rng)
        train = site.train
        if not len(positions):
            x, y = train.take(train.index[:1])
            return x[:0], y[:0]
        x, y = train.take(train.index[positions])
        return train.augment(x, y, rng) if train.augment else (x, y)

    def draw(self, rng: torch.Generator) -> Tensor:
        """Positions among the training images, for one step."""
        drawn = torch.nonzero(torch.rand(self.units, generator=rng, dtype=torch.float64) < self.rate)[:, 0]
        return drawn if self.patients is None else self.patients.draw(drawn, rng)

    @contextmanager
    def recording(self, site: Site, trained: dict[str, nn.Parameter]) -> Iterator[NoisySums]:
        """Inside, the layers of the site's network record what noisy gradients are made of."""
        with recording(site.model, trained) as examples:
            yield NoisySums(examples, trained, self, self._generator(site, "noise"))

    def _generator(self, site: Site, purpose: str) -> torch.Generator:
        return secret_generator() if self.secret else stream(site.rng, f"privacy {purpose} {len(site.fits)}")


@dataclass(frozen=True)
class NoisySums:
    """The clipped gradients of a batch, summed and noised."""

    examples: ExampleGradients
    trained: Mapping[str, nn.Parameter]
    privacy: DPSGD
    rng: torch.Generator

    def clear(self) -> None:
        self.examples.clear()

    def noisy(self, size: int) -> dict[str, Tensor]:
        privacy = self.privacy
        sums = self._clipped_sums(size) if size else {name: torch.zeros_like(p) for name, p in self.trained.items()}
        deviation = privacy.noise * privacy.sensitivity
        for total in sums.values():
            total.add_(gaussian_like(total, deviation, self.rng)).div_(privacy.batch_size)
        return sums

    def exact(self, size: int) -> dict[str, Tensor]:
        return self.examples.weighted_sums(torch.ones(size, device=next(iter(self.trained.values())).device))

    def _clipped_sums(self, size: int) -> dict[str, Tensor]:
        """Recorded are gradients of the mean over the batch: an image's own is `size` times as long."""
        norms = self.examples.norms(size) * size
        if not bool(torch.isfinite(norms).all()):
            raise ConfigError("a gradient became NaN or infinite, which no clip bounds", hint="Lower train.lr.")
        return self.examples.weighted_sums(clip_factors(norms, self.privacy.clip) * size)
