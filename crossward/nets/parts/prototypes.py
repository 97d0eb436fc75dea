"""PrototypeHead: a classifier whose weights are class prototypes on the sphere, moved by the server alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def spread(classes: int, width: int) -> Tensor:
    """(K, D) unit rows, orthonormal where K <= D; otherwise the rows of a matrix with orthonormal columns, brought to
    length 1."""
    return F.normalize(nn.init.orthogonal_(torch.empty(classes, width)), dim=1)


class PrototypeHead(nn.Module):
    """Unit features z (B, D) -> logits s z W^T (B, K). The prototypes W are a parameter so that they travel with the
    weights; they are never trained. The scale s is learnt from 1 unless a number fixes it."""

    scale: nn.Parameter | float

    def __init__(self, classes: int, width: int, scale: float | None = None) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(spread(classes, width), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(())) if scale is None else scale

    def forward(self, z: Tensor) -> Tensor:
        return self.scale * (z @ self.prototypes.T)
