"""FedSM: Closing the Generalization Gap of Cross-silo Federated Medical Image Segmentation.
Xu, Li, Guo, Yang, Roth, Hatamizadeh, Zhao, Xu, Huang, Xu, CVPR 2022, https://arxiv.org/abs/2203.10144; the authors'
code: https://github.com/NVIDIA/NVFlare/tree/main/research/fed-sm

    paper              here                                lives
    w_g                state["model"]                      server; trained and averaged exactly as in FedAvg
    w_{p,k}            state["personal"][k]                server; sent to site k to train, to all sites to predict
    w_s                state["selector"], model.selector   server; scores for each site how likely an image is its own
    SoftPull           pulled                              server
    lambda, gamma      keep, gamma
    super model        predictor                           the selector chooses, image by image, who predicts

A site trains w_g, then w_{p,k} from the same batches in the same order, with optimisers of their own.

Departures:
- A selector that a site trains by itself learns to answer "mine" to all images, and the average of such selectors is
  little better than chance. The code lets each site take one full-batch step of Adam in a round and averages the
  moments, too. Here sites send the gradient over all their images, and the server takes the step of Adam along the
  mean, which is the step for the images of all sites together; `selector_steps` in each round (code: 1, at 5e-4).
- The selector is a small network without BatchNorm (`new_selector`); the authors' is a VGG-11 without it.
- The paper's clients take part in all rounds. A client that is absent keeps its personalised model, and those who are
  there are pulled towards each other (code). One that comes late starts at the initial weights, as all do. The models
  of sites that have never taken part are not used: where the selector chooses such a site, the global one predicts.
- Clients are weighted by their samples, as FedAvg weighs them; in the code by their batches. SoftPull has no weights.
- BatchNorm statistics are pulled as the weights are. With buffers = "local" a site has statistics of its own for the
  global model and for personalised models, whosesoever they are.
- `ft` tunes the global model alone: a personalised one, whosesoever it is, predicts as it was sent.
- keep and gamma are those of the code. The paper segments; images of any task have a site.
- What it costs in privacy is more than in FedAvg: every site gets the model of every other, and a network that tells
  whose an image is. The gradient of the selector at a site with very few images tells of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, cast

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.disclosure import SAMPLE_COUNT, WEIGHTS, Disclosure, DisclosureKind, Made
from crossward.core.method import PERSONAL, Clients, Method, RoundContext, View
from crossward.core.net import Net, NetSpec
from crossward.core.seeds import seeded
from crossward.core.select import Select, under
from crossward.core.site import Out, Predictor, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights, mean
from crossward.errors import ConfigError

WIDTHS = (16, 32, 64)  # channels of the selector's convolutions, each of which halves the image
HIDDEN = 128  # numbers in its hidden layer
NETWORK = ~under("selector")  # the network for the task
BETAS, TINY = (0.9, 0.999), 1e-8  # of Adam
GLOBAL = -1  # in place of a site, where the global model predicts


def new_selector(channels: int, sites: int) -> Net:
    """A network that tells which site an image comes from, for images of any size. It has no BatchNorm: a site has
    batches of its own images alone, and what they have in common, which tells sites apart, would be normalised away."""
    layers: list[nn.Module] = []
    for before, after in zip((channels, *WIDTHS), WIDTHS):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.ReLU(inplace=True)]
    head = nn.Sequential(nn.Linear(WIDTHS[-1], HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, sites))
    net = Net(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), head, WIDTHS[-1])
    for module in net.modules():  # without BatchNorm the usual initial weights would let the signal fade
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return net


@dataclass(frozen=True)
class FedSM(Method):
    steps: ClassVar[tuple[str, ...]] = ("train", "recognise")
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "model": WEIGHTS,
        "personal": Disclosure(
            DisclosureKind.PERSONAL_WEIGHTS, "weights of the site's own model, for all sites", made=Made.WEIGHTS
        ),
        "gradient": Disclosure(
            DisclosureKind.GRADIENTS, "gradient of a network that tells whose an image is", made=Made.MEAN
        ),
        "n": SAMPLE_COUNT,
    }
    server_needs: ClassVar[str] = "it keeps a personalised network of each site"
    recipe: ClassVar[Mapping[str, Any]] = {"optimizer": "adam", "lr": 1e-3, "epochs": 1, "keep_state": True}

    keep: Annotated[float, Interval(ge=0, le=1)] = 0.7  # lambda: how much of its own model a site keeps in SoftPull
    gamma: Annotated[float, Ge(0)] = 0.9  # how sure the selector must be for a personalised model; above 1: never
    selector_steps: Annotated[int, Ge(1)] = 5  # of Adam, in each round
    selector_lr: Annotated[float, Gt(0)] = 3e-3  # of Adam

    # both halves -----------------------------------------------------------------------------------------------------
    def build(self, net: Net, spec: NetSpec) -> Net:
        if not spec.sites:
            raise ConfigError("FedSM must know how many sites there are, and was not told")
        net.selector = new_selector(spec.channels, spec.sites)
        return net

    @property
    def sent(self) -> Select:
        """Which weights of a model for the task a client is sent."""
        return self.travels & NETWORK

    # server half -----------------------------------------------------------------------------------------------------
    def start(self, ctx: RoundContext) -> Tree:
        net = ctx.server.new_net()
        w_s = Weights.of(selector_of(net))
        moments = {"first": w_s.zeros(), "second": w_s.zeros(), "steps": 0}
        return {"model": Weights.of(net, self.sent), "personal": {}, "selector": w_s, "moments": moments}

    def broadcast(self, state: Tree) -> Tree:
        return {name: state[name] for name in ("model", "personal", "selector")}

    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        for _ in range(self.selector_steps):
            replies = clients.ask("recognise", {"selector": state["selector"]})
            sizes = [float(reply["n"]) for reply in replies.values()]
            gradient = mean((reply["gradient"] for reply in replies.values()), sizes)
            state = state | stepped(state["selector"], gradient, state["moments"], self.selector_lr)
        w_0 = Weights.of(ctx.server.new_net(), self.sent)
        own: Mapping[str, Weights] = state["personal"]
        replies = clients.ask("train", lambda k: {"model": state["model"], "personal": own.get(str(k), w_0)})
        started = {str(k): own.get(str(k), w_0) for k in replies}
        return self.aggregate(state | {"personal": {**own, **started}}, replies, ctx)

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        state = super().aggregate(state, replies, ctx)
        new = pulled({str(k): reply["personal"] for k, reply in replies.items()}, self.keep)
        personal = {k: Weights({**state["personal"][k], **w_k}) for k, w_k in new.items()}
        return state | {"personal": state["personal"] | personal}

    # client half -----------------------------------------------------------------------------------------------------
    def train(self, site: Site, down: Tree) -> Tree:
        statistics = Weights.of(site.model, ~self.travels)
        down["model"].into(site.model)
        site.fit(params=NETWORK)
        reply = {"model": Weights.of(site.model, self.returns & NETWORK), "n": site.size}
        stays = Weights.of(site.model, ~self.travels)
        with separate_training(site, "personal"):
            down["personal"].into(site.model)
            site.memory.get(PERSONAL, statistics).into(site.model)
            site.fit(params=NETWORK)
            reply["personal"] = Weights.of(site.model, self.returns & NETWORK)
            if stays:
                site.memory[PERSONAL] = Weights.of(site.model, ~self.travels)
        stays.into(site.model)
        return reply

    def recognise(self, site: Site, down: Tree) -> Tree:
        """The gradient of the mean cross entropy over the site's images, which all have its number for a label."""
        whole, site.model = site.model, selector_of(site.model)
        down["selector"].into(site.model)
        images = max(2, site.size)  # in an epoch: one that is alone comes twice
        total: Weights = down["selector"].zeros()

        def add(gradients: Weights) -> Weights:
            nonlocal total
            total = total + gradients
            return gradients

        def loss(out: Out) -> Tensor:
            return F.cross_entropy(out.logits, out.y, reduction="sum") / images

        mine = ((x, torch.full((len(x),), site.id, device=x.device)) for x, _ in site.batches(epochs=1))
        with separate_training(site, "selector"):
            site.fit(loss, batches=mine, lr=0.0, edit_gradients=add, plugins=False)
        site.model = whole
        return {"gradient": total, "n": site.size}

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        """The super model, the same at all sites."""
        super().predictor(site, down, view)
        if "model" in down:
            down["selector"].into(selector_of(site.model))
        personal: Mapping[str, Weights] = down["personal"]
        known = torch.tensor([int(k) for k in personal], dtype=torch.int64, device=site.device)
        spare = deepcopy(site.model).eval()
        statistics = site.memory.get("personal", {}).get(PERSONAL, Weights({}))

        def network(k: int) -> Net:
            if k == GLOBAL:
                return site.model
            personal[str(k)].into(spare)
            statistics.into(spare)
            return spare

        def predict(x: Tensor) -> Tensor:
            scores = cast(Tensor, selector_of(site.model)(x)).softmax(1)
            return by_group(x, chosen(scores, known, self.gamma), network)

        return predict


def selector_of(net: Net) -> Net:
    """The selector of a network."""
    return cast(Net, net.selector)


@contextmanager
def separate_training(site: Site, name: str) -> Iterator[None]:
    """Inside, another model is trained as if it were the only one of the step: with the step's seeds, and a memory of
    its own within the site's."""
    outer, site.memory = site.memory, dict(site.memory.get(name, {}))
    site.scratch.clear()
    site.rng.manual_seed(site.rng.initial_seed())
    with seeded(site.rng.initial_seed()):
        yield
    site.memory = outer | ({name: site.memory} if site.memory else {})


def pulled(models: Mapping[str, Weights], keep: float) -> dict[str, Weights]:
    """SoftPull: lambda w_k + (1 - lambda) / (N - 1) sum_{j != k} w_j. A model that is alone stays."""
    if len(models) < 2:
        return dict(models)
    total, share = mean(models.values()) * len(models), (1 - keep) / (len(models) - 1)
    return {k: keep * w_k + share * (total - w_k) for k, w_k in models.items()}


def stepped(w: Weights, g: Weights, moments: Tree, lr: float) -> Tree:
    """The selector and its moments after a step of Adam along the gradient g."""
    a, b = BETAS
    t = moments["steps"] + 1
    m = a * moments["first"] + (1 - a) * g
    v = b * moments["second"] + (1 - b) * g.map(torch.square)
    move = m.map(lambda first, second: first / (1 - a**t) / ((second / (1 - b**t)).sqrt() + TINY), v)
    return {"selector": w - lr * move, "moments": {"first": m, "second": v, "steps": t}}


def chosen(scores: Tensor, known: Tensor, gamma: float) -> Tensor:
    """(B,) the site whose model predicts an image, by the scores (B, N) of the sites; GLOBAL unless the highest is
    above gamma and the site is among the known."""
    sure, site = scores.max(1)
    return torch.where((sure > gamma) & torch.isin(site, known), site, GLOBAL)


def by_group(x: Tensor, groups: Tensor, network: Callable[[int], nn.Module]) -> Tensor:
    """Logits of images, each by the network of its group."""
    logits: Tensor | None = None
    for k in groups.unique().tolist():
        rows = (groups == k).nonzero()[:, 0]
        part: Tensor = network(k)(x if len(rows) == len(x) else x[rows])
        if logits is None:
            logits = part.new_empty(len(x), *part.shape[1:])
        logits[rows] = part
    assert logits is not None
    return logits
