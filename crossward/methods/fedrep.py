"""Exploiting Shared Representations for Personalized Federated Learning.
Collins, Hassani, Mokhtari, Shakkottai, ICML 2021, https://arxiv.org/abs/2102.07078, Algorithm 1 (FedRep).

    paper   here                    lives
    phi     state["model"]          server: the body alone
    phi_i   the body of site.model  client, within a round
    h_i     the head of site.model  client, between rounds
    tau     head_epochs             GRD, alpha  site.fit, Training.lr

Departures: updates are counted in epochs of mini-batches, as in the authors' code; head and body both default to
train.epochs, so that a comparison needs no second budget (the authors' CIFAR-10 runs: head_epochs = 10,
body_epochs = 1). Bodies are weighted by n_i as FedAvg weighs them, where the paper's mean is plain, for the sake of
the comparison. While the head is trained the body runs in eval mode: its BatchNorm statistics are the federation's
until its own turn comes. A site that has not taken part yet predicts with the global body and its own initial head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from crossward.core import select
from crossward.core.method import Method
from crossward.core.select import Select
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights


@dataclass(frozen=True)
class FedRep(Method):
    shared: ClassVar[Select] = select.body

    head_epochs: Annotated[int, Ge(1)] | None = None  # tau; None: as many as train.epochs
    body_epochs: Annotated[int, Ge(1)] | None = None  # None: as many as train.epochs

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)  # phi^t; h_i^t starts where this site's last round left it
        site.fit(params=select.head, epochs=self.head_epochs)  # h_i^{t,s} = GRD(f_i(h_i^{t,s-1}, phi^t), h, alpha)
        site.fit(params=select.body, epochs=self.body_epochs)  # phi_i^{t+1} = GRD(f_i(h_i^{t,tau}, phi^t), phi, alpha)
        return {"model": Weights.of(site.model, self.returns), "n": site.size}
