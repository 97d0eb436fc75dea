"""Tackling Data Heterogeneity in Federated Learning with Class Prototypes.
Dai, Chen, Li, Heinecke, Sun, Xu, AAAI 2023, https://arxiv.org/abs/2212.02758, Algorithm 1 (FedNH);
https://github.com/Yutong-Dai/FedNH

    paper        here                                 lives
    theta        state["model"], all but W            server
    W            state["model"]["head.prototypes"]    server; sent, never trained by gradient, never sent back
    s            head.scale                           server, averaged with theta
    mu_{k,c}     reply["prototypes"] / n_{k,c}        sent
    n_{k,c}      reply["counts"]                      sent
    rho          rho

Departures:
- Clients are averaged without weights, a server step of 1, as in the authors' code; prototypes are weighted by n_{k,c}.
- Every sample of a class weighs alike in mu_{k,c}. The code can weigh it by the probability it is given, and clients by
  exp(W_c mu_{k,c}) in place of n_{k,c} (adv_prototype_agg, off by default); neither is an option here.
- A class that no participant holds keeps W_c to the bit, as does one whose prototypes cancel out; the code divides by
  1e-12 there and renormalises.
- With more classes than features W cannot be orthonormal; its rows are then brought to length 1, as the loss assumes.
- Prototypes come from training images as they are, without augmentation, and in eval mode.
- With privacy, sums of features and counts are released with noise; a class whose count is within the noise counts as
  absent. s must be a number then: a scale is no layer, whose gradients could be told apart by image.
- BatchNorm statistics follow `buffers`. The code clips gradients at 10: `train.clip`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core import select
from crossward.core.disclosure import CLASS_COUNTS, CLASS_PROTOTYPES, WEIGHTS, Disclosure
from crossward.core.method import Method, RoundContext
from crossward.core.net import Net, NetSpec
from crossward.core.noisy_statistics import CLASS_SUMS
from crossward.core.select import Select
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights, means
from crossward.nets.parts.unit_norm import UnitNorm
from crossward.statistics import class_means, site_class_sums

W = "head.prototypes"


def orthonormal_rows(classes: int, width: int) -> Tensor:
    """(K, D) unit rows, orthonormal where K <= D; otherwise the rows of a matrix with orthonormal columns, brought to
    length 1."""
    return F.normalize(nn.init.orthogonal_(torch.empty(classes, width)), dim=1)


class PrototypeHead(nn.Module):
    """Unit features z (B, D) -> logits s z W^T (B, K). The prototypes W are a parameter so that they travel with the
    weights; they are never trained. The scale s is learnt from 1 unless a number fixes it."""

    scale: nn.Parameter | float

    def __init__(self, classes: int, width: int, scale: float | None = None) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(orthonormal_rows(classes, width), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(())) if scale is None else scale

    def forward(self, z: Tensor) -> Tensor:
        return self.scale * (z @ self.prototypes.T)


@dataclass(frozen=True)
class FedNH(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "model": WEIGHTS,
        "prototypes": CLASS_PROTOTYPES,
        "counts": CLASS_COUNTS,
    }
    server_needs: ClassVar[str] = ""

    rho: Annotated[float, Ge(0), Le(1)] = 0.9  # how much of the old prototypes stays
    scale: Annotated[float, Gt(0)] | None = None  # s: learnt from 1, or fixed (the authors' other choice is 30)

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        return {CLASS_SUMS: rounds}

    @property
    def returns(self) -> Select:
        return super().returns & ~select.under(W)

    def build(self, net: Net, spec: NetSpec) -> Net:
        head = PrototypeHead(spec.classes, net.width, self.scale)
        return Net(nn.Sequential(net.body, UnitNorm()), head, net.width)  # logits: s z W^T with ||z|| = 1

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        site.fit()  # theta and s; W is fixed
        sums, n = site_class_sums(site, longest=1.0)  # features have length 1
        mu = F.normalize(class_means(sums, n), dim=1)  # (K, D)
        return {"model": Weights.of(site.model, self.returns), "prototypes": n[:, None] * mu, "counts": n}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        rows = ((r["model"], Weights({"mu": r["prototypes"], "n": r["counts"]})) for r in replies.values())
        theta, classes = means(rows)  # in one pass: the replies of a large cohort are on disk
        mu = F.normalize(class_means(classes["mu"], classes["n"]), dim=1)  # sum n mu / sum n, (K, D)
        return state | {"model": Weights({**state["model"], **theta, W: self._moved(state["model"][W], mu)})}

    def _moved(self, w: Tensor, mu: Tensor) -> Tensor:
        """W_c <- rho W_c + (1 - rho) mu_c, brought to length 1; where mu_c is zero there is nothing to move to."""
        mu = mu.to(w.device)
        return torch.where(mu.any(1, keepdim=True), F.normalize(self.rho * w + (1 - self.rho) * mu, dim=1), w)
