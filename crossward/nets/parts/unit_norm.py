"""Features scaled to unit length."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-12  # keeps the direction of a zero vector defined


class UnitNorm(nn.Module):
    """(B, D) -> (B, D), every row of length 1."""

    def forward(self, z: Tensor) -> Tensor:
        return F.normalize(z, dim=1, eps=EPS)
