"""Federated Learning Based on Dynamic Regularization (FedDyn).
Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, ICLR 2021, https://arxiv.org/abs/2111.04263, Algorithm 1.

    paper             here                       lives
    theta^t           state["model"]             server
    h^t               state["h"]                 server, never sent
    grad L_k(theta_k) site.memory["gradient"]    client, between rounds; never sent
    theta_k           site.model                 client, within a round
    m                 ctx.num_clients            alpha: alpha

A client minimises L_k(theta) - <grad L_k, theta> + (alpha / 2) ||theta - theta^t||²; grad L_k, at first 0, is what the
gradient there would be had it come to the minimum. h is the mean of grad L_k over all m clients, since that of a client
changes only when it takes part, by what the server can read off its reply: the model is all that travels.

Departures:
- Both terms enter as their gradient. They, grad L_k and h cover parameters; BatchNorm statistics are averaged plainly
  as the models are, and describe the clients' models, not theta^t, which is beyond their mean by -h / alpha.
- The local epochs stand for the minimum. Momentum, weight decay, clipping and plugins move theta_k and so enter
  grad L_k; clipping comes after both terms.
- It diverges easily, and the authors clip gradients at norm 10. That is `clip = 10` in [train], or its recipe.
- Clients weigh alike, as in the paper; the authors' code divides a client's alpha by its relative sample count.
- theta^t predicts. The authors' code scores the mean of the clients' models, without -h / alpha.
- The recipe is that of the authors' CIFAR-10 script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Gt

from crossward.core import select
from crossward.core.disclosure import WEIGHTS, Disclosure
from crossward.core.method import Method, RoundContext
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights, mean
from crossward.losses import proximal_gradient


@dataclass(frozen=True)
class FedDyn(Method):
    discloses: ClassVar[Mapping[str, Disclosure]] = {"model": WEIGHTS}
    server_needs: ClassVar[str] = ""
    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "sgd", "lr": 0.1, "weight_decay": 1e-3, "batch_size": 50, "epochs": 5, "clip": 10.0,
    }  # fmt: skip

    alpha: Annotated[float, Gt(0)] = 0.01  # weight of the quadratic term

    def start(self, ctx: RoundContext) -> Tree:
        zero = Weights.of(ctx.server.new_net(), select.parameters & self.travels).zeros()
        return super().start(ctx) | {"h": zero}

    def broadcast(self, state: Tree) -> Tree:
        return {"model": state["model"]}

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        theta = Weights.of(site.model, select.parameters & self.travels)
        gradient: Weights = site.memory.get("gradient", theta.zeros())

        def regularised(g: Weights) -> Weights:
            return g - gradient.only(g) + proximal_gradient(site.model, theta.only(g), self.alpha)

        site.fit(edit_gradients=regularised)
        theta_k = Weights.of(site.model, self.returns)
        site.memory["gradient"] = gradient - self.alpha * (theta_k.only(theta) - theta)
        return {"model": theta_k}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        averaged = mean(reply["model"] for reply in replies.values())
        theta_k, theta = averaged.only(state["h"]), state["model"].only(state["h"])
        h = state["h"] - self.alpha * len(replies) / ctx.num_clients * (theta_k - theta)
        new = theta_k - h / self.alpha
        return {"model": Weights({**state["model"], **averaged, **new}), "h": h}
