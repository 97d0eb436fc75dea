"""FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction.
Gao, Fu, Li, Chen, Xu, Xu, CVPR 2022, https://arxiv.org/abs/2203.11751.

    paper     here                       lives
    w         state["model"]             server
    h_i       site.memory["drift"]       client, between rounds; never sent
    mean h_i  state["drift"]             server, over all N clients; never sent
    g_i       site.memory["gradient"]    client, between rounds; never sent
    g         state["gradient"]          server, the mean g_i of all N clients
    theta_i   site.model                 client, within a round
    K eta     reply["reach"]             how far a gradient of 1 would have moved a weight; alpha: alpha, N: num_clients

A client minimises L_i(theta) + (alpha / 2) ||theta + h_i - w||² + <theta, g - g_i>. Then its drift grows by
theta_i - w, and w becomes the mean theta_i of those asked plus the mean drift of all. It is FedDyn (h_i is
-grad L_i / alpha there) with the correction of SCAFFOLD (g_i and g are c_i and c). A client that is not asked keeps its
h_i and g_i. Those of one that is asked change by theta_i - w and by (w - theta_i) / (K eta) - g, which the server works
out by itself: a client sends its model and one number.

Departures:
- g_i and g are gradients here: the paper's are movements, divided by K eta where they are used, and of the other sign.
  The paper's g_i is the last movement; ours is freed of the correction that was in it, as in the authors' code:
  g_i - g + (w - theta_i) / (K eta). K and eta are the client's own, eta the effective step size, momentum and schedule
  counted in (with Adam the nominal rate, and g_i no gradient: it does not learn, and `cautions` says so before a run);
  the code takes the mean K and the first round's eta.
- Both terms enter as their gradient. They, drifts and g cover parameters; BatchNorm statistics are averaged plainly as
  the models are, and describe the clients' models, not w, which is beyond their mean by the mean drift.
- Weight decay, clipping and plugins move theta_i and so enter h_i and g_i; clipping comes after both terms. The authors
  clip at norm 10: `clip = 10` in [train], or the recipe, which is that of their CIFAR-10 script.
- Clients weigh alike, as in the means of the authors' code, which besides divides a client's alpha and g by its
  relative sample count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from crossward.core import select
from crossward.core.disclosure import WEIGHTS, Disclosure, DisclosureKind, Made
from crossward.core.method import Method, RoundContext
from crossward.core.plugin import RunFacts
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights, means
from crossward.losses import proximal_gradient


@dataclass(frozen=True)
class FedDC(Method):
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "model": WEIGHTS,
        "reach": Disclosure(DisclosureKind.SAMPLE_COUNT, "step count", made=Made.SIZE),
    }
    server_needs: ClassVar[str] = "it divides each site's update by that site's own number of steps"
    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "sgd", "lr": 0.1, "weight_decay": 1e-3, "batch_size": 50, "epochs": 5,
        "schedule": "round", "gamma": 0.998, "clip": 10.0,
    }  # fmt: skip

    alpha: Annotated[float, Ge(0)] = 0.01  # weight of the drift term

    def cautions(self, facts: RunFacts) -> list[str]:
        optimizer = facts.training.optimizer
        if optimizer == "sgd":
            return []
        measured = "training accuracy 0.14-0.20 on the blood phantom (4 sites, Adam, 3 seeds), fedavg 0.57-0.65"
        return [f"feddc does not learn under {optimizer}, where movement is no gradient: {measured}; use sgd"]

    def start(self, ctx: RoundContext) -> Tree:
        zero = Weights.of(ctx.server.new_net(), select.parameters & self.travels).zeros()
        return super().start(ctx) | {"drift": zero, "gradient": zero}

    def broadcast(self, state: Tree) -> Tree:
        return {"model": state["model"], "gradient": state["gradient"]}

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        g = down["gradient"]
        w = down["model"].only(g)
        h_i, g_i = (site.memory.get(name, g.zeros()) for name in ("drift", "gradient"))
        anchor: Weights = w - h_i
        correction: Weights = g - g_i

        def corrected(gradient: Weights) -> Weights:
            proximal = proximal_gradient(site.model, anchor.only(gradient), self.alpha)
            return gradient + proximal + correction.only(gradient)

        fit = site.fit(edit_gradients=corrected)
        theta_i = Weights.of(site.model, self.returns)
        moved = theta_i.only(g) - w
        reach = fit.steps * fit.lr  # 0 if every step overflowed in float16: nothing is known of the gradient
        site.memory["drift"] = h_i + moved
        site.memory["gradient"] = g_i - g - moved / reach if reach else g_i
        return {"model": theta_i, "reach": reach}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        g = state["gradient"]
        share = len(replies) / ctx.num_clients
        w = state["model"].only(g)
        averaged, gradient = means(
            (reply["model"], (w - reply["model"].only(g)) / reply["reach"] if reply["reach"] else g)
            for reply in replies.values()
        )
        theta = averaged.only(g)
        drift = state["drift"] + share * (theta - w)
        model = Weights({**state["model"], **averaged, **(theta + drift)})
        return {"model": model, "drift": drift, "gradient": g + share * (gradient - g)}
