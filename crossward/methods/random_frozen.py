"""Random (Freezing): a classifier that keeps its random initial weights, the same at every site; the body is federated.
An ablation in FedBM: Stealing Knowledge from Pre-trained Language Models for Heterogeneous Federated Learning.
Zhu, Yang, Gao, Yuan, Liu, 2025, https://arxiv.org/abs/2502.16832, Table VIII.

    paper   here                        lives
    W_fe    the body of state["model"]  server
    W_fc    the head of state["model"]  server, never changed
    W_fe^c  the body of site.model      client, within a round
    N_c     reply["n"]                  sent

Departures: bodies are averaged by N_c as in the authors' code, where the paper prints a plain mean. The head is sent
every round although it never changes: it is small, and a site may join late. In segmentation, which the paper does
not do, the head is the last, 1 x 1, convolution: it plays the classifier's part for every pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

from crossward.core import select
from crossward.core.method import Method
from crossward.core.select import Select
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights


@dataclass(frozen=True)
class RandomFrozen(Method):
    @property
    def returns(self) -> Select:
        return super().returns & select.body

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        site.fit(params=select.body)
        return {"model": Weights.of(site.model, self.returns), "n": site.size}
