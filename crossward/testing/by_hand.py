"""Softmax regression by hand, in plain matrices: tests compare with it what some steps of a method do to toy.linear."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.weights import Weights
from crossward.runs.sites import RunSites


@dataclass(frozen=True)
class SoftmaxRegression:
    """One site's training data. Weights are one matrix w, (K, D + 1), the bias in its last column."""

    x: Tensor  # (n, D + 1), the last column 1
    y: Tensor  # (n,)

    def gradient(self, w: Tensor) -> Tensor:
        """Of the mean cross entropy over all data: (softmax(x w^T) - onehot(y))^T x / n."""
        error = (self.x @ w.T).softmax(1) - F.one_hot(self.y, len(w))
        return error.T @ self.x / len(self.y)

    @property
    def n(self) -> int:
        return len(self.y)


def regression_per_site(run_sites: RunSites) -> list[SoftmaxRegression]:
    """The training data of every site that has some."""
    regressions = []
    for i in run_sites.ids:
        site = run_sites.open(i, 0, {})
        if site.size:
            x, y = site.train.take(site.train.index)
            with_ones = torch.cat([x.flatten(1), torch.ones(len(y), 1)], 1)
            regressions.append(SoftmaxRegression(with_ones.double(), y))
    return regressions


def weight_matrix(weights: Weights) -> Tensor:
    """The weights of toy.linear, or a control variate of their shape, as one matrix."""
    return torch.cat([weights["head.weight"], weights["head.bias"][:, None]], 1).double()


def initial_matrix(run_sites: RunSites) -> Tensor:
    """The weights that the server starts with, as one matrix."""
    return weight_matrix(Weights.of(run_sites.server(0).new_net()))
