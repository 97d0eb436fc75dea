"""SimplexHead: a fixed classifier whose class vectors are all equally far apart, a simplex equiangular tight frame."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from crossward.errors import ConfigError


def simplex(classes: int) -> Tensor:
    """M (K, K), a class in each column: sqrt(K / (K - 1)) P (I - 1 1^T / K) with P random orthonormal. Columns have
    length 1 and cosine -1 / (K - 1) to each other."""
    if classes < 2:
        raise ConfigError(f"a simplex has at least two classes, not {classes}")
    p = nn.init.orthogonal_(torch.empty(classes, classes))
    return math.sqrt(classes / (classes - 1)) * p @ (torch.eye(classes) - 1 / classes)


class SimplexHead(nn.Module):
    """Unit features v (B, K) -> logits s v M (B, K). The frame M is a parameter so that it travels with the weights;
    it is never trained, the scale s is."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.frame = nn.Parameter(simplex(classes), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, v: Tensor) -> Tensor:
        return self.scale * (v @ self.frame)
