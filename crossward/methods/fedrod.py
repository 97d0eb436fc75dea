"""On Bridging Generic and Personalized Federated Learning for Image Classification.
Chen, Chao, ICLR 2022, https://arxiv.org/abs/2107.00778, Algorithm 1 (Fed-RoD, linear).

    paper       here               lives
    theta, psi  state["model"]     server: body and generic head
    phi_m       site.model.p_head  client, between rounds: personal head
    N_m,c       site.counts        client
    f(x)        out.z              features
    g(z)        out.logits         generic prediction, view "global"
    g(z)+h_m(z) personal(x)        personal prediction, view "local"

Departures: of the paper's two personal heads the linear one: the other sends a network that makes heads from class
counts. It starts at 0, on which the paper is silent, so that the personal prediction starts as the generic one, also
at a site that has not taken part yet. Both losses share one step of one optimiser, whose momentum, weight decay and
clipping thus cover phi_m, too. A class that a site lacks has the share 1e-9, for 0 has no logarithm. Plugins that
shift logits reach the personal loss alone: the generic one has the shift that the paper gives it. In segmentation,
which the paper does not do, heads are 1 x 1 convolutions and counts are pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

from annotated_types import Ge
from torch import Tensor, nn

from crossward.core import select
from crossward.core.method import Method, View
from crossward.core.net import Net, NetSpec
from crossward.core.noisy_statistics import CLASS_COUNTS
from crossward.core.select import Select
from crossward.core.site import Out, Predictor, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.losses import log_prior, per_class


@dataclass(frozen=True)
class FedRoD(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    shared: ClassVar[Select] = ~select.under("p_head")
    two_views: ClassVar[bool] = True

    gamma: Annotated[float, Ge(0)] = 1.0  # exponent of the class counts in the balanced softmax

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        return {CLASS_COUNTS: 1}

    def build(self, net: Net, spec: NetSpec) -> Net:
        net.p_head = deepcopy(net.head)
        Weights.of(net, select.under("p_head")).zeros().into(net)
        return net

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        p_head = cast(nn.Module, site.model.p_head)
        prior = self.gamma * log_prior(site.counts)  # (K,) log N_m,c^gamma, but for a constant

        def loss(out: Out) -> Tensor:
            generic = site.task.loss(out.logits + per_class(prior, out.logits), out.y)  # balanced softmax: theta, psi
            personal = site.loss(out.logits.detach() + p_head(out.z.detach()), out.y)  # empirical risk: phi_m alone
            return generic + personal

        site.fit(loss)
        return {"model": Weights.of(site.model, self.returns), "n": site.size}

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        generic = super().predictor(site, down, view)
        head, p_head = site.model.head, cast(nn.Module, site.model.p_head)

        def personal(x: Tensor) -> Tensor:
            z = site.model.features(x)
            return cast(Tensor, head(z) + p_head(z))

        return generic if view == "global" else personal
