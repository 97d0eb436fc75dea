"""By hand: softmax regression with plain matrices, an oracle for what a few steps of a method do to toy.linear."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.weights import Weights
from crossward.runs.sites import RunSites


@dataclass(frozen=True)
class Regression:
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


def regressions(run_sites: RunSites) -> list[Regression]:
    """The training data of every site that has some."""
    found = []
    for i in run_sites.ids:
        site = run_sites.open(i, 0, {})
        if site.size:
            x, y = site.train.take(site.train.index)
            found.append(Regression(torch.cat([x.flatten(1), torch.ones(len(y), 1)], 1).double(), y))
    return found


def matrix(weights: Weights) -> Tensor:
    """The weights of toy.linear, or a control variate of their shape, as one matrix."""
    return torch.cat([weights["head.weight"], weights["head.bias"][:, None]], 1).double()


def start(run_sites: RunSites) -> Tensor:
    """What the server begins with."""
    return matrix(Weights.of(run_sites.server(0).new_net()))
