"""FedProc: Prototypical Contrastive Federated Learning on Non-IID Data.
Mu, Shen, Cheng, Geng, Fu, Zhang, Zhang, Future Generation Computer Systems 143, 2023, https://arxiv.org/abs/2109.12273;
https://github.com/MuXutong/FedProc

    paper               here                                   lives
    global model        state["model"]                         server
    c_j                 state["prototypes"], state["known"]    server; sent: (C, D), and which classes have one
    alpha = t / T       down["alpha"]                          sent: t the round from 0, T all rounds
    z                   out.z                                  client: body and projection
    sum of z, class j   reply["prototypes"]                    sent
    samples, class j    reply["counts"]                        sent
    L_gpc               contrast                               client

The loss is alpha CE + (1 - alpha) L_gpc, in the first round CE alone: contrast early, classifier late.

Departures:
- L_gpc is the authors' code's: centres are brought to length 1, z is not, and there is no temperature. There alpha is
  t / 100, whatever T.
- Centres are those of the trained local models in eval mode on images as they are; the code takes them in training
  mode, which moves BatchNorm's statistics once more, and augments.
- A class that nobody in a round's cohort has keeps its centre. One that nobody has had yet has none: it is no rival in
  L_gpc, and its samples, at a site that brings it in, learn from CE alone. In the code its centre is 0, a rival still.
- Clients are weighted by their samples among those that answered; the code divides by the samples of all clients.
- The paper classifies images. In segmentation samples are pixels, and layers 1 x 1 convolutions.
- Plugins that shift logits reach CE alone. BatchNorm statistics follow `buffers`.
- With privacy, sums and counts are released with noise, and L_gpc is a mean over all images of a batch.
- Class counts leave the site, and of a class with a single image its features: their sum is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional as F

from crossward.core.disclosure import CLASS_COUNTS, SAMPLE_COUNT, WEIGHTS, Bound, Disclosure, DisclosureKind, Made
from crossward.core.method import Clients, Method, RoundContext
from crossward.core.net import Net, NetSpec
from crossward.core.noisy_statistics import CLASS_SUMS
from crossward.core.site import Out, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.nets.parts.projection import with_projection
from crossward.statistics import class_means, site_class_sums

FAR = -1e30  # the score of a class without a centre: softmax makes it 0
SKIPPED = -100  # the label of a sample that does not count


@dataclass(frozen=True)
class FedProc(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "model": WEIGHTS,
        "n": SAMPLE_COUNT,
        "prototypes": Disclosure(
            DisclosureKind.PROTOTYPES, "feature sums by class", by_class=True, made=Made.SUM, bound=Bound.CLIP
        ),
        "counts": CLASS_COUNTS,
    }
    server_needs: ClassVar[str] = ""
    round_items: ClassVar[tuple[str, ...]] = ("prototypes", "known", "alpha")
    recipe: ClassVar[Mapping[str, Any]] = {  # the defaults of the code
        "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-5, "batch_size": 64, "epochs": 10,
    }  # fmt: skip

    alpha: Annotated[float, Ge(0), Le(1)] | None = None  # weight of CE after the first round; None: grows as t / T
    projection: Annotated[int, Ge(0)] = 256  # numbers that the features are projected to; 0: no projection

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        return {CLASS_SUMS: rounds}

    def build(self, net: Net, spec: NetSpec) -> Net:
        return with_projection(net, self.projection)

    # server half -----------------------------------------------------------------------------------------------------
    def start(self, ctx: RoundContext) -> Tree:
        none = torch.zeros(ctx.num_classes, dtype=torch.bool)
        return super().start(ctx) | {"prototypes": torch.zeros(len(none), ctx.server.new_net().width), "known": none}

    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        alpha = ctx.round / ctx.rounds if self.alpha is None else self.alpha
        down = state | {"alpha": alpha if ctx.round else 1.0}
        return self.aggregate(state, clients.ask("train", down), ctx)

    def broadcast(self, state: Tree) -> Tree:
        """What predicts: centres are for training."""
        return {"model": state["model"]}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        old, known = state["prototypes"], state["known"]
        sums, counts = torch.zeros_like(old), old.new_zeros(len(old))
        for reply in replies.values():
            sums += reply["prototypes"].to(old.device)
            counts += reply["counts"].to(old.device)
        c = torch.where(counts[:, None] > 0, class_means(sums, counts), old)
        return super().aggregate(state, replies, ctx) | {"prototypes": c, "known": known | (counts > 0)}

    # client half -----------------------------------------------------------------------------------------------------
    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        alpha: float = down["alpha"]
        c, known = F.normalize(down["prototypes"].to(site.device), dim=1), down["known"].to(site.device)

        def loss(out: Out) -> Tensor:
            z, y = site.task.vectors(out.z, out.y)  # (N, D), (N,)
            attraction = contrast(z, y, c, known, whole=site.privacy is not None)
            return alpha * site.loss(out.logits, out.y) + (1 - alpha) * attraction

        site.fit(None if alpha == 1 else loss)
        sums, counts = site_class_sums(site)
        model = Weights.of(site.model, self.returns)
        return {"model": model, "n": site.size, "prototypes": sums, "counts": counts}


def contrast(z: Tensor, y: Tensor, c: Tensor, known: Tensor, whole: bool = False) -> Tensor:
    """L_gpc: -log softmax_j(z . c_j) at the true class, for rows z (N, D) and unit centres c (C, D); the softmax is
    over the known classes, the mean over the samples of these, or over the whole batch."""
    held = known[y]
    scores = (z @ c.T).float().masked_fill(~known, FAR)  # (N, C)
    total = F.cross_entropy(scores, y.masked_fill(~held, SKIPPED), ignore_index=SKIPPED, reduction="sum")
    return total / (len(y) if whole else held.sum().clamp_min(1))
