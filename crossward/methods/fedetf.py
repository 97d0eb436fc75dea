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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from crossward.core import select
from crossward.core.brief import Brief
from crossward.core.method import Method
from crossward.core.select import Select
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.losses import log_prior
from crossward.nets.net import Net
from crossward.nets.parts.simplex import SimplexHead
from crossward.nets.parts.unit import Unit


@dataclass(frozen=True)
class FedETF(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    @property
    def allows_for_prior(self) -> bool:
        return True

    @property
    def returns(self) -> Select:
        return super().returns & ~select.under("head.frame")

    def build(self, net: nn.Module, brief: Brief) -> nn.Module:
        assert isinstance(net, Net)
        body = nn.Sequential(net.body, nn.Linear(net.width, brief.classes), Unit())  # mu = g(h) / ||g(h)||
        return Net(body, SimplexHead(brief.classes), width=brief.classes)  # logits: beta mu V_ETF

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        prior = log_prior(site.counts, least=1)  # (K,)
        site.fit(lambda out: site.task.loss(out.logits + prior, out.y))  # the balanced feature loss
        return {"model": Weights.of(site.model, self.returns), "n": site.size}
