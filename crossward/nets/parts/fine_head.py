"""FineHead: a classifier with several class vectors for each class, whose logits are pooled into the class's."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Pool = Literal["sum", "mean", "logsumexp"]


class FineHead(nn.Module):
    """Features (B, D) or (B, D, H, W) -> class logits (B, C) or (B, C, H, W). Row c * M + m of the weights is the
    vector of sub-class m of class c; there is no bias."""

    def __init__(self, width: int, classes: int, subclasses: int, pool: Pool = "sum") -> None:
        super().__init__()
        self.subclasses, self.pool = subclasses, pool
        self.weight = nn.Parameter(torch.empty(classes * subclasses, width))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)  # as nn.Linear begins

    def forward(self, z: Tensor) -> Tensor:
        return self.pooled(self.fine(z))

    def fine(self, z: Tensor, weight: Tensor | None = None) -> Tensor:
        """The logits of the sub-classes, (B, C * M, ...), by these weights or others."""
        phi = self.weight if weight is None else weight
        return F.linear(z, phi) if z.ndim == 2 else F.conv2d(z, phi[:, :, None, None])

    def pooled(self, fine: Tensor) -> Tensor:
        """The logits of the classes: the product with the matrix W of FedCD where the pool is a sum."""
        each: Tensor = fine.unflatten(1, (-1, self.subclasses))
        if self.pool == "sum":
            return each.sum(2)
        return each.mean(2) if self.pool == "mean" else each.logsumexp(2)
