"""BalanceFL: Addressing Class Imbalance in Long-tail Federated Learning.
Shuai, Shen, Jiang, Zhao, Yan, Xing, IPSN 2022; https://github.com/sxontheway/BalanceFL

    paper                         here                        lives
    knowledge inheritance         BalanceFL.objective         client, in the loss of its fit
      present, absent classes     present, ~present           of the batch
      global model, the teacher   teacher                     client, within a round: the model as downloaded, frozen
      T, lambda                   temperature, lambda_kd
    inter-class balancing
      balanced sampling           balanced(site)              client, its batches
      feature augmentation        Noise, deviations           client, measured before its fit; enters as head(z + noise)
      self-entropy                entropy                     client, in the loss of its fit
    n_k                           reply["n"]                  sent

The loss: cross entropy over the present classes, of noisy features; plus lambda_kd times the cross entropy between the
teacher's and the client's softmax over the absent classes; minus `entropy` times the entropy of the softmax over the
present classes. The last two have the features as they are. With every option at 0 or false it is FedAvg.

Departures:
- Written after the authors' code. So classes are present or absent in the batch, not at the client; distillation has
  no factor T^2; and the entropy is summed over the batch, so that its weight grows with batch_size, which was 64.
- The teacher, and the network whose features are measured, are in eval mode; in the code they normalise by the batch.
- The covariance is the code's: the mean over samples of that of their class, 0 for a class with one. The 500 draws of
  a fit are random mixtures of centred features, for which no matrix is decomposed, and are taken in random order.
- The net has its own head; the authors' has no bias and a factor 2. Their optional second stage, off there, is left
  out. Plugins that shift logits do not reach the loss, which balances classes by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional as F

from crossward.core.method import Method
from crossward.core.samples import Batch
from crossward.core.site import Out, Predictor, Site
from crossward.core.task import Task
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.statistics import class_means, class_sums, concatenate

DRAWS = 500  # of noise in a fit
NonNegative = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class BalanceFL(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    balanced: bool = True  # whether each class that a site has is drawn as often as any other
    noise: NonNegative = 1.0  # feature augmentation, in standard deviations within a class
    restricted: bool = True  # whether cross entropy is over the classes of the batch alone
    lambda_kd: NonNegative = 1.0  # weight of what absent classes inherit from the global model
    temperature: Annotated[float, Gt(0)] = 2.0  # T, of that
    entropy: NonNegative = 0.002  # weight of the entropy, summed over the batch

    @property
    def allows_for_prior(self) -> bool:
        return True  # batches hold all classes alike here: bsm would balance them twice

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        teacher = deepcopy(site.model).eval() if self.lambda_kd else site.model
        head = site.model.head
        noise = Noise.of(site) if self.noise and site.size else None

        def loss(out: Out) -> Tensor:
            noisy = head(out.z + self.noise * noise.drawn_for(out.y, site.rng)) if noise else out.logits
            return self.objective(site.task, out, noisy, teacher)

        site.fit(loss, batches=balanced(site) if self.balanced else None)
        return {"model": Weights.of(site.model, self.returns), "n": site.size}

    def objective(self, task: Task, out: Out, noisy: Tensor, teacher: Predictor) -> Tensor:
        """`noisy` are the logits (B, K) of the augmented features."""
        present = torch.zeros(noisy.shape[1], dtype=torch.bool, device=noisy.device).index_fill(0, out.y, True)
        place = present.cumsum(0) - 1  # (K,) of a class among those present
        value = task.loss(noisy[:, present], place[out.y]) if self.restricted else task.loss(noisy, out.y)
        if self.lambda_kd and not bool(present.all()):
            with torch.no_grad():
                soft_labels = (teacher(out.x)[:, ~present] / self.temperature).softmax(1)
            value = value + self.lambda_kd * F.cross_entropy(out.logits[:, ~present] / self.temperature, soft_labels)
        if self.entropy:
            log_p = out.logits[:, present].log_softmax(1)
            value = value + self.entropy * (log_p.exp() * log_p).sum()
        return value


@dataclass(frozen=True)
class Noise:
    """Gaussian noise for features, the more often the rarer their class is at a site."""

    draws: Tensor  # (DRAWS, D)
    chance: Tensor  # (K,) that a sample has noise: 1 - n_c / max n

    @classmethod
    def of(cls, site: Site) -> Noise:
        """As the site's network sees its training images."""
        z, y = concatenate(site.vectors(site.train))
        counts = site.counts
        return cls(deviations(z, y, site.num_classes, site.rng), 1 - counts / counts.max())

    def drawn_for(self, y: Tensor, rng: torch.Generator) -> Tensor:
        """(B, D), zero for the samples that have none."""
        has = torch.rand(len(y), generator=rng).to(y.device) < self.chance[y]
        which = torch.randint(len(self.draws), (len(y),), generator=rng).to(y.device)
        return self.draws[which] * has[:, None]


def deviations(z: Tensor, y: Tensor, classes: int, rng: torch.Generator, draws: int = DRAWS) -> Tensor:
    """(draws, D) of N(0, S), where S is the mean over samples of the covariance of their class."""
    sums, counts = class_sums([(z, y)], classes)
    share = (counts / len(z) / (counts - 1).clamp_min(1)).sqrt()  # (K,): n_c / n of 1 / (n_c - 1), in S
    rows = share[y, None] * (z - class_means(sums, counts)[y])  # (n, D), rows^T rows = S
    return torch.randn(draws, len(z), generator=rng).to(z.device) @ rows


def balanced(site: Site) -> Iterator[Batch]:
    """As many images an epoch as the site has, drawn with replacement, every class that it has as likely as another."""
    labels = site.train.labels
    rarity = 1 / site.counts.cpu()[labels].double()  # (n,)
    for epoch in range(site.training.epochs if site.size else 0):
        site.epoch = epoch
        drawn = torch.multinomial(rarity, site.size, replacement=True, generator=site.rng)
        yield from site.train.only(drawn).shuffled(site.training.batch_size, site.rng)
