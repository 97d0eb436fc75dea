"""Federated Optimization in Heterogeneous Networks.
Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, https://arxiv.org/abs/1812.06127, Algorithm 2.

    paper   here                  lives
    w^t     down["model"]         sent to the client
    w       site.model            client, within a round
    mu      mu

Departures: the proximal term enters as its gradient mu (w - w^t), which is the same and cheaper than a loss term;
it covers parameters, not BatchNorm statistics; the inexactness gamma is the number of local epochs;
clients are weighted by n_k as in FedAvg, where the paper samples them so and averages plainly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from crossward.core.method import Method
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.losses import proximal_gradient


@dataclass(frozen=True)
class FedProx(Method):
    mu: Annotated[float, Ge(0)] = 0.01  # weight of the proximal term

    def train(self, site: Site, down: Tree) -> Tree:
        w_t = down["model"]
        w_t.into(site.model)
        site.fit(edit_gradients=lambda g: g + proximal_gradient(site.model, w_t.only(g), self.mu))  # Eq. 2
        return {"model": Weights.of(site.model, self.returns), "n": site.size}
