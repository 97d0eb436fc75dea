"""Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-Training with Federated Features.
Shang, Lu, Huang, Wang, IJCAI 2022, https://arxiv.org/abs/2204.13399; https://github.com/shangxinyi/CReFF-FL
(CReRF in FedNPR's tables).

    paper                    here                   lives
    global model             state["model"]         server; the body that predicts, and a head of its own, as in FedAvg
    re-trained classifier    state["classifier"]    server; sent, and what predicts
    federated features       state["features"]      server: (C, features_per_class, d)
    real feature gradients   reply["gradients"]     sent: (C, d + 1) for each of reply["classes"]
    theirs and the loss      gradients, distance    server, while features are matched

Departures:
- Gradients are of images as they are (the code augments them), of the plain cross entropy, which neither label
  smoothing nor a plugin's shift of logits reaches, and in round 1 with the net's own head (the code draws another).
- A class that no site has had yet has random features, which would teach the classifier noise: it is left out of the
  re-training (the code takes it along), where its row, fresh as all others, is only pushed away from their features.
  A class that is absent from a round keeps the features it has, and these are used.
- retrain_epochs = 0 leaves the head as FedAvg averages it. The code re-trains with the clients' batch size.
- The paper holds that gradients tell nothing of a site's data and classes. They do tell which classes it has, and of a
  class with a single image its features: the gradient of a row of weights, divided by that of its bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core import select
from crossward.core.disclosure import SAMPLE_COUNT, WEIGHTS, Bound, Disclosure, DisclosureKind, Made
from crossward.core.gradient_descent import minimise
from crossward.core.method import Method, RoundContext, View
from crossward.core.net import Net, NetSpec
from crossward.core.noisy_statistics import CLASS_SUMS
from crossward.core.samples import Batch
from crossward.core.seeds import stream
from crossward.core.site import Predictor, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.statistics import class_means, class_sums, site_class_sums

TINY = 1e-6  # in the denominator of a cosine (code)
Count = Annotated[int, Ge(1)]
Steps = Annotated[int, Ge(0)]
Rate = Annotated[float, Gt(0)]


@dataclass(frozen=True)
class CReFF(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "model": WEIGHTS,
        "n": SAMPLE_COUNT,
        "gradients": Disclosure(
            DisclosureKind.GRADIENTS, "classifier gradients by class", made=Made.MEAN, bound=Bound.CLIP
        ),
        "classes": Disclosure(
            DisclosureKind.CLASS_COUNTS, "which classes are present", made=Made.MEAN, bound=Bound.ONE
        ),
    }
    server_needs: ClassVar[str] = ""

    features_per_class: Count = 100  # federated features of each class
    draws: Count = 10  # random batches of each class that a client averages its gradients over
    draw_size: Count = 32  # images in such a batch, at most
    match_steps: Steps = 100  # of SGD that match the features, in each round
    match_lr: Rate = 0.1  # of the matching
    retrain_epochs: Steps = 300  # over the features for the classifier, in each round; 0: FedAvg's head
    retrain_lr: Rate = 0.01  # of the re-training, by SGD
    retrain_batch: Count = 32  # features in a step of the re-training

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        return {CLASS_SUMS: rounds}

    def build(self, net: Net, spec: NetSpec) -> Net:
        *before, last = [m for m in net.head.modules() if not isinstance(m, nn.Sequential)] or [net.head]
        plain = all(isinstance(m, nn.modules.dropout._DropoutNd | nn.Identity) for m in before)
        if plain and type(last) is nn.Linear and last.bias is not None:
            return net
        raise ConfigError(
            "CReFF needs a net whose head is one linear layer with a bias, at most behind dropout",
            details=[f"head: {line}" for line in str(net.head).splitlines()],
            hint="Choose another net, or another method.",
        )

    # server half -----------------------------------------------------------------------------------------------------
    def start(self, ctx: RoundContext) -> Tree:
        classifier = Weights.of(ctx.server.new_net(), select.head)
        classes, width = matrix(classifier).shape
        rng = stream(ctx.server.rng, "features")  # the server's own begins anew in round 1
        features = torch.randn(classes, self.features_per_class, width - 1, generator=rng)
        seen = torch.zeros(classes, dtype=torch.bool)  # which classes some site has had
        return super().start(ctx) | {"classifier": classifier, "features": features, "seen": seen}

    def broadcast(self, state: Tree) -> Tree:
        return {"model": state["model"], "classifier": state["classifier"]}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        device = ctx.server.device
        rows = ((reply["gradients"].flatten(1), reply["classes"]) for reply in replies.values())
        sums, sites = class_sums(rows, ctx.num_classes)  # sites: how many have each class
        real = class_means(sums, sites).unflatten(1, (ctx.num_classes, -1)).to(device)  # (C, C, d + 1)
        present = sites.to(device) > 0
        features = self._matched(state["features"].to(device), matrix(state["classifier"]).to(device), real, present)
        seen = state["seen"].to(device) | present
        state = super().aggregate(state, replies, ctx) | {"features": features, "seen": seen}
        if not self.retrain_epochs:
            return state | {"classifier": state["model"].only(state["classifier"])}
        phi = self._retrained(features, seen, ctx.server.rng)
        return state | {"classifier": like(state["classifier"], phi)}

    def _matched(self, features: Tensor, phi: Tensor, real: Tensor, present: Tensor) -> Tensor:
        """The features, those of the classes at hand moved so that their gradients point where the sites' do."""
        classes = present.nonzero()[:, 0]
        v = nn.Parameter(features[classes])  # (P, features_per_class, d)
        loss = lambda: distance(gradients(phi, v, classes), real[classes])
        minimise(loss, [v], self.match_steps, lr=self.match_lr, rule="sgd", what="CReFF's matching of features")
        return features.index_copy(0, classes, v.detach())

    def _retrained(self, features: Tensor, seen: Tensor, rng: torch.Generator) -> Tensor:
        """(C, d + 1): a fresh classifier, trained on as many features of each class that was seen."""
        classes, count, width = features.shape
        drawn = torch.rand(classes, width + 1, generator=rng).to(features.device)
        phi = nn.Parameter((2 * drawn - 1) * width**-0.5)  # as nn.Linear begins
        z = F.pad(features[seen].flatten(0, 1), (0, 1), value=1.0)
        y = seen.nonzero()[:, 0].repeat_interleave(count)
        batches = _shuffled(len(y), self.retrain_batch, rng)

        def loss() -> Tensor:
            rows = next(batches).to(z.device)
            return F.cross_entropy(z[rows] @ phi.T, y[rows])

        steps = self.retrain_epochs * math.ceil(len(y) / self.retrain_batch)
        minimise(loss, [phi], steps, lr=self.retrain_lr, rule="sgd", what="CReFF's re-training of the classifier")
        return phi.detach()

    # client half -----------------------------------------------------------------------------------------------------
    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        real = self._real_gradients(site, matrix(down["classifier"]).to(site.device))
        return super().train(site, down) | real

    def _real_gradients(self, site: Site, phi: Tensor) -> Tree:
        """Gradients of each class at the site. All draws of a class are equally large, so the mean over them is the
        mean over their images. With privacy, they are means over all images of a class, made of noisy sums."""
        if site.privacy is not None:
            return self._noisy_gradients(site, phi)
        rng = stream(site.rng, "draws")  # site.rng stays as it is, so that the fit is FedAvg's
        labels = site.train.labels
        classes = labels.unique()
        by_class = []
        for c in classes:
            own = (labels == c).nonzero()[:, 0]
            picks = [torch.randperm(len(own), generator=rng)[: self.draw_size] for _ in range(self.draws)]
            needed, where = own[torch.cat(picks)].unique(return_inverse=True)
            z = torch.cat([z for z, _ in site.vectors(site.train.only(needed))])
            by_class.append(gradients(phi, z[where.to(z.device)], c))
        return {"gradients": torch.stack(by_class), "classes": classes.to(site.device)}

    def _noisy_gradients(self, site: Site, phi: Tensor) -> Tree:
        def own(z: Tensor, y: Tensor) -> Batch:
            return gradients(phi, z[:, None], y).flatten(1), y  # (B, C (d + 1)): of each image

        sums, counts = site_class_sums(site, own)
        classes = counts.nonzero()[:, 0]
        means = class_means(sums, counts)[classes]
        return {"gradients": means.unflatten(1, phi.shape), "classes": classes}

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        """The body with the re-trained classifier. What is deployed holds it in the model, perhaps fine-tuned."""
        predictor = super().predictor(site, down, view)
        if "model" in down:
            down["classifier"].into(site.model)
        return predictor


def matrix(classifier: Weights) -> Tensor:
    """(C, d + 1): the weights and, in the last column, the bias."""
    weight, bias = classifier.values()
    return torch.cat([weight, bias[:, None]], 1)


def like(classifier: Weights, phi: Tensor) -> Weights:
    """A matrix under the names of a classifier."""
    return Weights(dict(zip(classifier, (phi[:, :-1].contiguous(), phi[:, -1].contiguous()), strict=True)))


def gradients(phi: Tensor, z: Tensor, c: Tensor) -> Tensor:
    """(..., C, d + 1): of the mean cross entropy over n rows z (..., n, d) of one class c (...), with respect to the
    classifier phi (C, d + 1): (softmax - onehot)^T z / n. Differentiable in z."""
    z = F.pad(z, (0, 1), value=1.0)  # the bias is the weight of a feature that is 1
    error = (z @ phi.T).softmax(-1) - F.one_hot(c, len(phi)).to(z)[..., None, :]  # (..., n, C)
    return error.mT @ z / z.shape[-2]


def distance(a: Tensor, b: Tensor) -> Tensor:
    """1 - cosine, summed over classes and, in each, over the rows of the weights; the bias is one more row."""
    total = a.new_zeros(())
    for x, y in ((a[..., :-1], b[..., :-1]), (a[..., -1], b[..., -1])):
        lengths = torch.linalg.vector_norm(x, dim=-1) * torch.linalg.vector_norm(y, dim=-1)
        total = total + (1 - (x * y).sum(-1) / (lengths + TINY)).sum()
    return total


def _shuffled(n: int, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Batches of rows, epoch after epoch, for ever."""
    while True:
        yield from torch.randperm(n, generator=rng).split(size)
