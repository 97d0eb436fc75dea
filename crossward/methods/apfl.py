"""Adaptive Personalized Federated Learning.
Deng, Kamani, Mahdavi, 2020, https://arxiv.org/abs/2003.13461, Algorithm 1 (APFL); https://github.com/MLOPTPSU/FedTorch

    paper    here                       lives
    w        state["model"]             server
    w_i      site.model but for its v   client, within a round; sent
    v_i      site.model.v               client, between rounds; never sent
    alpha_i  site.memory["alpha"]       client, between rounds; never sent
    v-bar_i  mixture(site.model, alpha) client: alpha_i v_i + (1 - alpha_i) w_i. It predicts, with w for w_i
    eta      Training.lr

In a step, on one batch,    w_i <- w_i - eta grad f(w_i),    v_i <- v_i - eta alpha_i grad f(v-bar_i),
v-bar_i being the mixture before the step. So v_i is a second copy of the network inside the first: one fit whose loss
is f(w_i) + f(v-bar_i) takes both gradients at the same weights and on the same batch, one optimiser steps both, and
what it remembers of each is kept by name. In the mixture w_i is a constant, so that w_i moves as FedAvg's does to the
bit; v_i gets grad f(v-bar_i) whole, which alpha_i then scales and is adapted by, even when it is 0. A fit of w_i and
then one of v_i would mix v_i with a w_i that is epochs ahead.

adaptive: alpha_i <- clip(alpha_i - eta <v_i - w_i, grad f(v-bar_i)>, 0, 1), once in a communication round, and there at
its first step, as in the code. In a site's first round v_i - w_i is 0 then, and alpha_i stays.

Departures:
- v_i starts as the w that a site is sent when it first takes part, and before that w predicts.
- What predicts mixes v_i with the w of the federation, as the paper's objective does; the code scores v_i with the
  site's own w_i, before the average. The code mixes the two networks' outputs, where the paper mixes weights, takes
  grad f(v-bar_i) after the step of w_i, and draws alpha_i towards 0 a little.
- Clients are weighted by their samples as FedAvg weighs them; the paper's mean is plain.
- v_i alone never sees an image: its BatchNorm statistics are those of v-bar_i in training, and are mixed as weights
  are. Momentum and weight decay, unknown to the paper, treat w_i and v_i alike, and so does Adam, which is blind to the
  factor alpha_i. Clipping, of both gradients as one vector, and dropout, which draws for both in turn, are where w_i
  departs from FedAvg's.
- Plugins that shift logits reach both losses, those that add a term of their own reach f(w_i) alone.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.func import functional_call

from crossward.core.method import Method, View
from crossward.core.net import Net, NetSpec
from crossward.core.select import Select, under
from crossward.core.site import Out, Predictor, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights

LOCAL = under("v")
ALPHA = "alpha"


@dataclass(frozen=True)
class APFL(Method):
    shared: ClassVar[Select] = ~LOCAL

    alpha: Annotated[float, Ge(0), Le(1)] = 0.5  # the share of a site's own model; 0: FedAvg, 1: local training
    adaptive: bool = False  # whether each site learns an alpha of its own, starting from that

    def build(self, net: Net, spec: NetSpec) -> Net:
        net.v = deepcopy(net)
        return net

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        v = _v(site)
        if ALPHA not in site.memory:
            Weights.of(site.model, self.shared).into(v)
        step = Step(site, site.memory.get(ALPHA, self.alpha), self.adaptive)

        def loss(out: Out) -> Tensor:
            logits = functional_call(v, mixture(site.model, step.alpha), (out.x,))
            return site.loss(out.logits, out.y) + site.loss(logits, out.y)

        site.fit(loss, edit_gradients=step.scaled)
        site.memory[ALPHA] = step.alpha
        return {"model": Weights.of(site.model, self.returns), "n": site.size}

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        predictor = super().predictor(site, down, view)
        if "model" in down and ALPHA in site.memory:  # without "model", the site kept the mixture
            alpha: float = site.memory[ALPHA]
            v_bar = alpha * Weights.of(_v(site)) + (1 - alpha) * Weights.of(site.model, self.shared)
            v_bar.into(site.model)
        return predictor


@dataclass
class Step:
    """What becomes of the gradients of a step: those of v, scaled by alpha; and alpha itself, if it is to adapt."""

    site: Site
    alpha: float
    adapts: bool

    def scaled(self, gradients: Weights) -> Weights:
        of_v = Weights({n: g for n, g in gradients.items() if n.startswith("v.")})  # grad f(v-bar)
        alpha = self.alpha
        if self.adapts:
            self._adapt(of_v)
        return Weights({**gradients, **(alpha * of_v)})

    def _adapt(self, of_v: Weights) -> None:
        present = dict(self.site.model.named_parameters())
        apart = Weights({n: present[n].detach() - present[n.removeprefix("v.")].detach() for n in of_v})
        slope = float(apart.dot(of_v))
        if math.isfinite(slope):  # in mixed precision the first steps may overflow, and are not taken
            eta = self.site.training.rate(self.site.round, 0)
            self.alpha, self.adapts = min(1.0, max(0.0, self.alpha - eta * slope)), False


def mixture(net: nn.Module, alpha: float) -> dict[str, Tensor]:
    """alpha v + (1 - alpha) w by name; a gradient at it reaches v whole, and w not at all."""
    w = dict(net.named_parameters())
    v = cast(nn.Module, net.v).named_parameters()
    return {name: own + (1 - alpha) * (w[name].detach() - own.detach()) for name, own in v}


def _v(site: Site) -> nn.Module:
    return cast(nn.Module, site.model.v)
