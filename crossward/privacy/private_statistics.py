"""Sums over a site's images with Gaussian noise: counts and features of each class, and what is made of them.

One unit (an image, or a patient with all of his images) adds at most 1 to the counts and at most the clip to the sums,
in norm: the images of a patient share his weight of 1, and the pixels of an image share the image's. Noise is stated as
a multiple of that, as for gradients, so that each noisy sum is one release without sampling.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from crossward.privacy.noise import clip_factors, gaussian_like

ABSENT_BELOW = 2.0  # a noisy count below so many standard deviations of its noise tells of no class


def noisy_counts(counts: Tensor, *, noise: float, rng: torch.Generator) -> Tensor:
    """Counts that one unit changes by at most 1 in norm, with noise."""
    exact = counts.to(torch.float32)
    return exact + gaussian_like(exact, noise, rng)


def noisy_sum(total: Tensor, *, clip: float, noise: float, rng: torch.Generator) -> Tensor:
    """A sum of vectors that `clipped_rows` has bounded, with noise."""
    return total + gaussian_like(total, noise * clip, rng)


def noisy_class_sums(
    pieces: Iterable[tuple[Tensor, Tensor, Tensor]], classes: int, *, clip: float, noise: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(K, D) sums and (K,) counts with noise: two releases. Pieces are as for `bounded_class_sums`."""
    sums, counts = bounded_class_sums(pieces, classes, clip=clip)
    return noisy_sum(sums, clip=clip, noise=noise, rng=rng), noisy_counts(counts, noise=noise, rng=rng)


def bounded_class_sums(
    pieces: Iterable[tuple[Tensor, Tensor, Tensor]], classes: int, *, clip: float
) -> tuple[Tensor, Tensor]:
    """(K, D) sums and (K,) counts over pieces of (z, y, weights), of which there must be at least one: z (B P, D) and
    y (B P,) are P rows of each image, image by image, weights (B,) what each image counts. What one image adds to the
    sums is clipped as a whole."""
    sums = torch.zeros(())
    counts = torch.zeros(classes)
    for z, y, weights in pieces:
        own_sums, own_counts = _class_sums_of_images(z, y, len(weights), classes)
        flat = clipped_rows(own_sums.flatten(1), clip)
        sums = sums.to(z.device) + (weights.to(z) @ flat).view(classes, -1)
        counts = counts.to(z.device) + weights.to(z) @ own_counts
    return sums, counts


def clipped_rows(rows: Tensor, clip: float) -> Tensor:
    """(B, D) rows, those scaled down whose norm is above `clip`."""
    return rows * clip_factors(torch.linalg.vector_norm(rows, dim=1), clip)[:, None]


def is_present(counts: Tensor, noise: float) -> Tensor:
    """(K,) whether a class is there, by its noisy count."""
    return counts >= ABSENT_BELOW * noise


def unit_weights(patients: Tensor | None, images: int) -> Tensor:
    """(n,) what each image counts: 1, or its share of a patient. `patients` (n,) is a number for each image."""
    if patients is None:
        return torch.ones(images)
    _, codes, counts = torch.unique(patients, return_inverse=True, return_counts=True)
    shares: Tensor = 1 / counts[codes].to(torch.float32)
    return shares


def _class_sums_of_images(z: Tensor, y: Tensor, images: int, classes: int) -> tuple[Tensor, Tensor]:
    """(B, K, D) and (B, K): what each image adds; its rows share its weight of 1."""
    share = images / len(z)  # 1 / P
    of = torch.arange(images, device=z.device).repeat_interleave(len(z) // images)
    place = of * classes + y
    sums = z.new_zeros(images * classes, z.shape[1]).index_add_(0, place, z) * share
    counts = z.new_zeros(images * classes).index_add_(0, place, z.new_ones(len(z))) * share
    return sums.view(images, classes, -1), counts.view(images, classes)
