"""Ditto: Fair and Robust Federated Learning Through Personalization.
Li, Hu, Beirami, Smith, ICML 2021, https://arxiv.org/abs/2012.04221, Algorithm 1; https://github.com/litian96/ditto

    paper            here                             lives
    w^t              down["model"]                    server; sent
    w_k              site.model, first fit            client, within a round; sent
    v_k              site.memory["v"]                 client, between rounds; never sent. It predicts
    h_k(v_k; w^t)    f_k(v) + (lambda/2) ||v - w^t||² minimised by the second fit
    lambda           weight                           s  personal_epochs

w_k is trained first and exactly as FedAvg trains it, from the same batches: the federation is FedAvg's to the bit. Only
then v_k, with an optimiser and BatchNorm statistics of its own, is trained for this site alone.

Departures:
- v_k starts as the w^t that a site is sent when it first takes part, and before that w^t predicts; in the code v_k
  starts as w^0 everywhere.
- s counts epochs, as many as those of w_k unless said otherwise; in the code w_k and v_k take the same few batches.
- The proximal term enters as its gradient lambda (v - w^t). It covers parameters, not BatchNorm statistics. A step of
  it is stable while lr * lambda < 2.
- Clients are weighted by n_k as FedAvg weighs them; the code draws them in proportion to n_k and averages plainly.
- lambda is one number for all sites; the paper can also choose one for each site by its validation set.
- Plugins act in both fits; a plugin that prepares itself once in a client step (npr) does so with w^t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from crossward.core.method import Method, View
from crossward.core.site import Predictor, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.losses import proximal_gradient

V = "v"


@dataclass(frozen=True)
class Ditto(Method):
    personalises: ClassVar[bool] = True

    weight: Annotated[float, Ge(0)] = 1.0  # lambda, of the proximal term; the authors try 0.05, 0.1, 1 and 2
    personal_epochs: Annotated[int, Ge(1)] | None = None  # s, of the personal model; None: as many as train.epochs

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        w_t = Weights.of(site.model)  # with the statistics that a site keeps to itself under buffers = "local"
        reply = super().train(site, down)  # w_k
        stays = Weights.of(site.model, ~self.travels)
        site.memory.get(V, w_t).into(site.model)
        site.fit(
            epochs=self.personal_epochs,
            edit_gradients=lambda g: g + proximal_gradient(site.model, w_t.only(g), self.weight),  # of h_k
        )
        site.memory[V] = Weights.of(site.model)
        stays.into(site.model)
        return reply

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        predictor = super().predictor(site, down, view)
        if "model" in down and V in site.memory:  # without "model", the site kept what predicts
            site.memory[V].into(site.model)
        return predictor
