"""Concepts: what a language model says about each class, as a normal distribution of its embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Concepts:
    """K classes, M prompts each, embeddings of D numbers. The covariance is kept as its exact factor, since it has rank
    M - 1 at most: covariance = factor^T factor. One prompt gives a mean and no spread."""

    mean: Tensor  # (K, D)
    factor: Tensor  # (K, M, D); M = 0 when there is no spread

    @classmethod
    def of(cls, embeddings: Tensor) -> Concepts:
        """From (K, M, D) embeddings, with the unbiased covariance."""
        m = embeddings.shape[1]
        mean = embeddings.mean(1)
        if m < 2:
            return cls(mean, embeddings.new_zeros(len(mean), 0, mean.shape[1]))
        return cls(mean, (embeddings - mean[:, None]) / (m - 1) ** 0.5)

    @property
    def dim(self) -> int:
        return self.mean.shape[1]

    @property
    def variance(self) -> Tensor:
        """(K, D): the diagonal of the covariance."""
        return self.factor.square().sum(1)

    @property
    def covariance(self) -> Tensor:
        """(K, D, D)."""
        return self.factor.transpose(1, 2) @ self.factor

    def sample(self, classes: Tensor, jitter: float, rng: torch.Generator) -> Tensor:
        """(B, D) draws from N(mean, covariance + jitter I) of each class; chance comes from a CPU generator."""
        _, m, d = self.factor.shape
        within = torch.randn(len(classes), 1, m, generator=rng).to(self.mean.device)
        around = torch.randn(len(classes), d, generator=rng).to(self.mean.device)
        embeddings: Tensor = self.mean[classes] + (within @ self.factor[classes])[:, 0] + jitter**0.5 * around
        return embeddings
