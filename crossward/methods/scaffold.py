"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, https://arxiv.org/abs/1910.06378, Algorithm 1.

    paper     here                 lives
    x, c      state                server: "model", "c"
    c_i       site.memory["c"]     client, between rounds
    y_i       site.model           client, within a round
    K, eta_l  fit.steps, fit.lr    eta_g  server_lr     N  ctx.num_clients   K = 0, all float16 steps skipped: c_i stays

Departures: control variates cover parameters; BatchNorm statistics are averaged with x. eta_l is the effective step
size, momentum and schedule counted in. Option II reads gradients off the movement, which under Adam are none, and it
does not learn: "auto" is II with SGD and I otherwise, at the cost of one more pass over the images. For the same reason
clipping and weight decay, unknown to the paper, enter c_i under option II. Clipping comes after the line 10 correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt

from crossward.core import select
from crossward.core.disclosure import WEIGHTS, Disclosure
from crossward.core.method import Method, RoundContext
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights, means


@dataclass(frozen=True)
class Scaffold(Method):
    discloses: ClassVar[Mapping[str, Disclosure]] = {"dy": WEIGHTS, "dc": WEIGHTS}
    server_needs: ClassVar[str] = ""

    server_lr: Annotated[float, Gt(0)] = 1.0  # eta_g
    option: Literal["auto", "I", "II"] = "auto"  # how c_i is renewed, line 12; auto: II with SGD, I otherwise

    def start(self, ctx: RoundContext) -> Tree:
        zero = Weights.of(ctx.server.new_net(), select.parameters & self.travels).zeros()
        return super().start(ctx) | {"c": zero}

    def train(self, site: Site, down: Tree) -> Tree:
        x, c = down["model"], down["c"]
        c_i = site.memory.get("c", c.zeros())
        x.into(site.model)  # line 7
        first = self.option == "I" or (self.option == "auto" and site.training.optimizer != "sgd")
        c_new = site.gradient() if first else None  # line 12 (i): g_i(x)
        drift = c - c_i
        fit = site.fit(edit_gradients=lambda g: g + drift.only(g))  # line 10
        y_i = Weights.of(site.model, self.returns)
        c_new = c_new or (c_i - c + (x.only(c) - y_i.only(c)) / (fit.steps * fit.lr) if fit.steps else c_i)  # (ii)
        site.memory["c"] = c_new  # line 14
        return {"dy": y_i - x.only(y_i), "dc": c_new - c_i}  # line 13

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        dx, dc = means((reply["dy"], reply["dc"]) for reply in replies.values())  # line 16
        x = state["model"].only(dx) + self.server_lr * dx  # line 17
        return {"model": Weights({**state["model"], **x}), "c": state["c"] + len(replies) / ctx.num_clients * dc}
