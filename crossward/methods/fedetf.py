"""No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and Fixed Classifier.
Li, Shang, He, Lin, Wu, ICCV 2023, https://arxiv.org/abs/2303.10058 (FedETF); https://github.com/ZexiLee/ICCV-2023-FedETF

    paper        here                              lives
    V_ETF        state["model"]["head.frame"]      server, drawn once; sent, never trained, never sent back
    mu           out.z, unit length                client: body, projection, normalisation
    beta         head.scale, learnt from 1         server, averaged with the weights
    n_{k,c}      site.counts                       client, never sent
    n_k          reply["n"]                        sent

Departures:
- The paper's second stage, which fine-tunes V_ETF and the projection in turn for each client, is left out: this is its
  generic model. `fedetf+ft` fine-tunes all but V_ETF.
- Features are projected to K numbers, as in the authors' code, so that V_ETF is K x K.
- The prior is the share n_{k,c} / n_k, where the code takes counts: softmax cannot tell. As in the code a class that
  the client lacks counts as one sample, so that its logit is not pushed down without end.
- V_ETF travels with the weights every round (K x K numbers), so that a client that joins late needs nothing else.
- BatchNorm statistics follow `buffers`. Plugins that shift logits change nothing: the loss has its own shift.
- balanced = False is the ablation with plain cross entropy, which shows what the fixed classifier is worth by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from crossward.core import select
from crossward.core.method import Method
from crossward.core.net import Net, NetSpec
from crossward.core.noisy_statistics import CLASS_COUNTS
from crossward.core.select import Select
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.losses import log_prior
from crossward.nets.parts.unit_norm import UnitNorm


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

    each_alone: ClassVar[bool] = True  # a row of logits depends on its own features: so do per-example gradients

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.frame = nn.Parameter(simplex(classes), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, v: Tensor) -> Tensor:
        return self.scale * (v @ self.frame)


@dataclass(frozen=True)
class FedETF(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    balanced: bool = True  # the balanced feature loss; False: plain cross entropy

    @property
    def allows_for_prior(self) -> bool:
        return self.balanced

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        return {CLASS_COUNTS: int(self.balanced)}

    @property
    def returns(self) -> Select:
        return super().returns & ~select.under("head.frame")

    def build(self, net: Net, spec: NetSpec) -> Net:
        body = nn.Sequential(net.body, nn.Linear(net.width, spec.classes), UnitNorm())  # mu = g(h) / ||g(h)||
        return Net(body, SimplexHead(spec.classes), width=spec.classes)  # logits: beta mu V_ETF

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        if self.balanced:
            prior = log_prior(site.counts, least=1)  # (K,)
            site.fit(lambda out: site.task.loss(out.logits + prior, out.y))  # the balanced feature loss
        else:
            site.fit()
        return {"model": Weights.of(site.model, self.returns), "n": site.size}
