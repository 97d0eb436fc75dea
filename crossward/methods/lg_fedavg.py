"""Think Locally, Act Globally: Federated Learning with Local and Global Representations.
Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, 2020, https://arxiv.org/abs/2001.01523, Algorithm 1
(LG-FedAvg); https://github.com/pliang279/LG-FedAvg

    paper                 here                       lives
    theta_g               state["model"]             server: the head alone
    theta_l^m             the body of site.model     client, between rounds: the representation
    theta_g^m             the head of site.model     client, within a round; sent
    the FedAvg checkpoint state["body"], ["start"]   server: the body while FedAvg warms up, and what came of it
    N_m                   reply["n"]                 sent to warm up, and with weighting = "samples"

The opposite of FedRep: bodies stay, and the head, which classifies what they all represent, is averaged. Both are
trained at once. The authors start from a model that FedAvg has trained: the first rounds, a share `warmup` of all, are
FedAvg's to the bit, and bodies travel as the item "body". Thereafter a site is sent what came of it, as "start", the
first time it takes part, and goes on from there by itself. With warmup = 0 no body ever leaves its site, all start from
weights of their own, and networks may differ in all but the head.

Departures:
- The paper weights heads by N_m, the code averages them plainly, and so does the default. FedAvg's rounds are those of
  this package, weighted by N_m (the code: plainly).
- The code starts from the round of a longer FedAvg run that did best on its test set; the warm-up is a part of the
  budget of rounds here, at least one, and its last model is the start.
- The code shares the last two or three of its few layers; here it is the net's head.
- Representations are learnt by the supervised loss. The paper's auxiliary losses (self-supervised, adversarial) and its
  ensemble of all sites' networks for a new site are left out: such a site predicts with its start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from crossward.core import select
from crossward.core.disclosure import SAMPLE_COUNT, WEIGHTS, Disclosure
from crossward.core.method import Clients, Method, Need, RoundContext, View
from crossward.core.net import Net
from crossward.core.select import Select
from crossward.core.site import Predictor, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights, mean, means
from crossward.errors import ConfigError


@dataclass(frozen=True)
class LGFedAvg(Method):
    needs: ClassVar[frozenset[Need]] = frozenset()
    discloses: ClassVar[Mapping[str, Disclosure]] = {"model": WEIGHTS, "body": WEIGHTS, "n": SAMPLE_COUNT}
    server_needs: ClassVar[str] = "it weighs heads and bodies differently, and a sum has one weight for each site"
    sometimes: ClassVar[tuple[str, ...]] = ("body", "n")
    personalises: ClassVar[bool] = True

    warmup: Annotated[float, Ge(0), Le(1)] = 0.1  # share of the rounds that are FedAvg's, before
    weighting: Literal["equal", "samples"] = "equal"  # of the sites in the mean of the heads

    @property
    def travels(self) -> Select:
        """A body travels in order to warm up, or never."""
        return super().travels if self.warmup else super().travels & select.head

    @property
    def returns(self) -> Select:
        return super().returns if self.warmup else super().returns & select.head

    def check_nets(self, nets: Mapping[str, Net]) -> None:
        try:
            super().check_nets(nets)
        except ConfigError as error:
            hint = "Heads must be alike, and so must bodies, which are averaged to warm up, unless method.warmup = 0."
            raise ConfigError(error.what, details=error.details, hint=hint) from None

    # server half -----------------------------------------------------------------------------------------------------
    def start(self, ctx: RoundContext) -> Tree:
        net = ctx.server.new_net()
        model = {"model": Weights.of(net, self.travels & select.head)}
        return model | ({"body": Weights.of(net, self.travels & select.body)} if self.warmup else {})

    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        started = state.get("started", {})
        everything = self.broadcast(state)
        without_start = {name: value for name, value in everything.items() if name != "start"}
        replies = clients.ask("train", lambda i: without_start if str(i) in started else everything)
        return self.aggregate(state, replies, ctx)

    def broadcast(self, state: Tree) -> Tree:
        return {name: value for name, value in state.items() if name != "started"}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        warming = "body" in state
        weighted = warming or self.weighting == "samples"
        sizes = [float(reply["n"]) for reply in replies.values()] if weighted else None
        if not warming:
            heads = mean((reply["model"] for reply in replies.values()), sizes)
            new: Tree = {"model": Weights({**state["model"], **heads})}
            if "start" in state:
                new["started"] = state["started"] | {str(i): True for i in replies}
            return state | new
        heads, bodies = means(((reply["model"], reply["body"]) for reply in replies.values()), sizes)
        model, body = Weights({**state["model"], **heads}), Weights({**state["body"], **bodies})
        if ctx.round + 1 < self.warm_rounds(ctx.rounds):
            return {"model": model, "body": body}
        return {"model": model, "start": body, "started": {}}

    def warm_rounds(self, rounds: int) -> int:
        return math.ceil(self.warmup * rounds - 1e-9)  # 0.1 * 3 is a little more than 0.3

    # client half -----------------------------------------------------------------------------------------------------
    def train(self, site: Site, down: Tree) -> Tree:
        _load(site, down)
        site.fit()
        reply: Tree = {"model": Weights.of(site.model, self.returns & select.head)}
        if "body" in down:
            return reply | {"body": Weights.of(site.model, self.returns & select.body), "n": site.size}
        if self.warmup:  # else the body is among the weights that never travel, which are kept anyway
            site.memory["body"] = Weights.of(site.model, self.travels & select.body)
        return reply | ({"n": site.size} if self.weighting == "samples" else {})

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        if "model" in down:  # else the site kept what predicts
            _load(site, down)
        return site.model


def _load(site: Site, down: Tree) -> None:
    """The head of the federation, and the body: everybody's while FedAvg warms up, then the site's own or its start."""
    body = down["body"] if "body" in down else site.memory.get("body", down.get("start"))
    if body is not None:
        body.into(site.model)
    down["model"].into(site.model)
