"""SiteStatistics: the noisy statistics of one site, each counted in the ledger before it is computed.

Why a fit that uses them stays private: what they return is the output of a Gaussian mechanism that the ledger counts.
A loss which depends on them and on the image at hand alone leaves each gradient bounded by the clip, as DP-SGD needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from crossward.core.noisy_statistics import CLASS_COUNTS, NoisyClassSums
from crossward.core.samples import Batch
from crossward.core.seeds import stream
from crossward.core.site import Site
from crossward.errors import ConfigError
from crossward.privacy.accounting import Release, Spend
from crossward.privacy.noise import secret_generator
from crossward.privacy.private_statistics import bounded_class_sums, clipped_rows, noisy_counts, noisy_sum

COUNTS_KEY = "_class_counts"  # where a site's memory keeps the counts of a run
LEAST_COUNT = 0.5  # of a class after noise: priors take logarithms, and a count below 0 is none
BOTH = math.sqrt(2.0)  # sums and counts, each with so much more noise, are together one release of the planned noise


@dataclass(frozen=True)
class SiteStatistics:
    noise: Mapping[str, float]  # kind -> noise multiplier of one release
    spend: Spend
    weights: Tensor  # (n,) what each training image counts: 1, or its share of a patient
    units: int
    secret: bool = True  # noise that nobody can repeat; False, for simulations: from the seeds of the run
    clip: float = 1.0  # of features, where a method does not know how long they are

    def class_counts(self, site: Site) -> Tensor:
        if COUNTS_KEY not in site.memory:
            site.memory[COUNTS_KEY] = self._released_counts(site)
        return site.memory[COUNTS_KEY].to(site.device)  # type: ignore[no-any-return]

    def _released_counts(self, site: Site) -> Tensor:
        """An image adds its own counts over the most that they can be: at most 1 in norm."""
        noise, rng = self._release(site, CLASS_COUNTS)
        labels = site.train.labels
        most = math.sqrt(site.num_classes) if site.task.name == "multi-label" else labels[:1].numel()
        rows = torch.stack([site.task.counts(labels[i : i + 1].long()).float() / most for i in range(len(labels))])
        counts = noisy_counts(self.weights @ clipped_rows(rows, 1.0), noise=noise, rng=rng)
        per_unit = len(labels) / self.units  # images: a patient is counted as so many
        return (counts * most * per_unit).clamp_min(LEAST_COUNT)

    def class_sums(
        self, site: Site, kind: str, pieces: Iterable[Batch], classes: int, *, clip: float | None = None
    ) -> NoisyClassSums:
        noise, rng = self._release(site, kind)
        clip = self.clip if clip is None else clip
        sums, counts = bounded_class_sums(self._weighted(site, pieces), classes, clip=clip)
        _require_finite(sums)
        return NoisyClassSums(
            noisy_sum(sums, clip=clip, noise=noise * BOTH, rng=rng),
            noisy_counts(counts, noise=noise * BOTH, rng=rng),
            noise * BOTH,
        )

    def _weighted(self, site: Site, pieces: Iterable[Batch]) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """Each piece with the weights of its images; in segmentation an image has many rows."""
        rows = 1
        if site.task.name == "segmentation":
            rows = len(next(site.vectors(site.train.only(torch.arange(1))))[1])
        start = 0
        for z, y in pieces:
            images = len(z) // rows
            yield z, y, self.weights[start : start + images]
            start += images
        if start != len(self.weights):
            raise ValueError(f"{start} images in a sum over {len(self.weights)}")

    def mean(self, site: Site, kind: str, pieces: Iterable[Tensor], *, clip: float) -> Tensor:
        noise, rng = self._release(site, kind)
        parts = []
        start = 0
        for rows in pieces:
            parts.append(self.weights[start : start + len(rows)].to(rows) @ clipped_rows(rows, clip))
            start += len(rows)
        total = torch.stack(parts).sum(0)
        _require_finite(total)
        return noisy_sum(total, clip=clip, noise=noise, rng=rng) / self.units

    def _release(self, site: Site, kind: str) -> tuple[float, torch.Generator]:
        """The noise of one release, which is counted here."""
        if kind not in self.noise:
            raise ConfigError(
                f"[privacy] has planned no noise for {kind}, which this method takes from the site's images",
                hint="Train without [privacy], or with another method.",
            )
        self.spend(Release(self.noise[kind], 1.0, 1, sampled=False), kind)
        site.released.append(kind)
        rng = secret_generator() if self.secret else stream(site.rng, f"privacy {kind}")
        return self.noise[kind], rng


def _require_finite(total: Tensor) -> None:
    if not bool(torch.isfinite(total).all()):
        raise ConfigError("a feature became NaN or infinite, which no clip bounds", hint="Lower train.lr.")
