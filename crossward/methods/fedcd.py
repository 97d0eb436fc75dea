"""FedCD: A Classifier Debiased Federated Learning Framework for Non-IID Data.
Long, Xue, Chu, Zhang, Wu, Zang, Du, ACM Multimedia 2023, Eqs. 1-15, Algorithms 1 and 2.

    paper           here                         lives
    theta, phi      state["model"]               server: body with projection, class vectors (head.weight, C M rows)
    P^g_{c,m}       state["prototypes"]          server, sent: (C, M, d)
    n_{c,m}         state["counts"]              server, sent: (C, M); the clients' own in reply["counts"]
    P^k_{c,m}       prototypes, a Parameter      client, learnt within a round; sent as reply["prototypes"]
    phi_k, D        site.model.head              client, within a round
    W               FineHead.pooled              logits of sub-classes to those of classes
    mu              state["mu"]                  server, sent: 1 - t / T
    M, alpha, tau, xi, gamma, lambda             subclasses, alpha, tau, xi, gamma, weight

Departures:
- Sub-classes of different clients have nothing to do with each other in round 1, on which the paper is silent: the
  server clusters the centroids it is sent (align = "kmeans"); align = "none" averages them by their numbers. So it is
  with a class that is first seen in a later round.
- I = n_{c,t} lets the prototypes outweigh any batch: importance = "balanced" shows all of them to every batch with the
  weight of its samples in all; "paper" shows each once an epoch with weight n_{c,t}; "none" leaves them out.
- t counts from 0, so that mu starts at 1 and does not reach 0. While it is 1 the contrast is no part of the loss, and
  the optimiser leaves P^k as it is, weight decay included.
- D has no bias. The teacher of Eq. 9 gives no gradient to features; temperatures of Eq. 8 are 1.
- n^k_{c,m} are counted after training, with the trained network in eval mode, by the prototypes a round began with.
- A class that nobody in a cohort has keeps its prototypes and the n_{c,m} of the last cohort that had it, on which the
  paper, where all clients take part, is silent.
- Until there are global prototypes, features are assigned to the site's own centroids. A class with fewer samples than
  M repeats some, with a little noise. Prototypes of classes that nobody had yet are no one's negatives.
- Eq. 14 takes all clients in, those without a class as well; mask_absent = true leaves these out where others have it.
- Plugins that shift logits reach the samples' part of Eq. 10 alone.
- Distillation, contrast and batch prototypes of segmentation see at most `pixels` pixels of each class in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.disclosure import CLASS_COUNTS, SAMPLE_COUNT, WEIGHTS, Disclosure, DisclosureKind, Made
from crossward.core.method import Method, RoundContext
from crossward.core.net import Net, NetSpec
from crossward.core.plugin import RunFacts
from crossward.core.seeds import stream
from crossward.core.site import Out, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.losses import decoupled_distillation
from crossward.nets.parts.projection import with_projection
from crossward.statistics import class_means, class_sums, concatenate, describe_rare_classes, kmeans, sample_per_class

PHI = "head.weight"
NOISE = 1e-3  # of what is repeated, relative to the size of a feature
NonNegative = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(1)]
Pool = Literal["sum", "mean", "logsumexp"]


class FineHead(nn.Module):
    """Features (B, D) or (B, D, H, W) -> class logits (B, C) or (B, C, H, W). Row c * M + m of the weights is the
    vector of sub-class m of class c; there is no bias."""

    def __init__(self, width: int, classes: int, subclasses: int, pool: Pool = "sum") -> None:
        super().__init__()
        self.subclasses, self.pool = subclasses, pool
        self.weight = nn.Parameter(torch.empty(classes * subclasses, width))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)  # as nn.Linear begins

    def forward(self, z: Tensor) -> Tensor:
        return self.pooled(self.fine(z))

    def fine(self, z: Tensor, weight: Tensor | None = None) -> Tensor:
        """The logits of the sub-classes, (B, C * M, ...), by these weights or others."""
        phi = self.weight if weight is None else weight
        return F.linear(z, phi) if z.ndim == 2 else F.conv2d(z, phi[:, :, None, None])

    def pooled(self, fine: Tensor) -> Tensor:
        """The logits of the classes: the product with the matrix W of FedCD where the pool is a sum."""
        each: Tensor = fine.unflatten(1, (-1, self.subclasses))
        if self.pool == "sum":
            return each.sum(2)
        return each.mean(2) if self.pool == "mean" else each.logsumexp(2)


@dataclass(frozen=True)
class FedCD(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "model": WEIGHTS,
        "n": SAMPLE_COUNT,
        "prototypes": Disclosure(DisclosureKind.PROTOTYPES, "class prototypes", by_class=True, made=Made.FITTED),
        "counts": CLASS_COUNTS,
    }
    server_needs: ClassVar[str] = "it weighs each site's class vectors by their quality, for which it must see them"

    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "batch_size": 64, "epochs": 10,
    }  # fmt: skip

    subclasses: Count = 3  # M
    projection: Annotated[int, Ge(0)] = 256  # d; 0: the features of the net as they are
    alpha: Annotated[float, Interval(ge=0, lt=1)] = 0.1  # of a class's other sub-classes as negatives, Eq. 4; below 0.5
    tau: Annotated[float, Gt(0)] = 1.0  # temperature of the contrast
    gamma: NonNegative = 0.1  # weight of the batch prototypes, Eq. 7
    weight: NonNegative = 0.1  # lambda, of the distillation, Eq. 9
    xi: NonNegative = 0.5  # of the non-target classes in it, Eq. 8; the paper's 8 for CIFAR-100 and EMNIST
    mu: Annotated[float, Interval(ge=0, le=1)] | None = None  # share of the classifier's loss; None: 1 - t / T
    contrast: bool = True  # whether prototypes are learnt by contrast (FedCD-hpc without)
    distillation: Literal["decoupled", "plain"] = "decoupled"  # FedCD/kd: plain
    aggregation: Literal["adaptive", "counts", "samples"] = "adaptive"  # of phi: Eq. 15; FedCD/cla, FedCD-acla
    mask_absent: bool = False  # whether Eq. 14 leaves out clients without a class
    importance: Literal["balanced", "paper", "none"] = "balanced"  # of the global prototypes in a batch
    align: Literal["kmeans", "none"] = "kmeans"  # how the server joins the sub-classes of round 1
    subclass_pool: Pool = "sum"  # how logits of sub-classes become those of a class
    pixels: Annotated[int, Ge(2)] = 256  # segmentation: of each class in a batch

    def cautions(self, facts: RunFacts) -> list[str]:
        cautions = []
        if self.alpha >= 0.5:
            cautions.append(
                f"alpha = {self.alpha}: from 0.5 on Eq. 4 pushes a class's sub-classes apart more than classes"
            )
        if few := describe_rare_classes(facts.counts, self.subclasses):
            cautions.append(f"subclasses = {self.subclasses}, but a class has fewer samples, in {few}")
        return cautions

    # both halves -----------------------------------------------------------------------------------------------------
    def build(self, net: Net, spec: NetSpec) -> Net:
        net = with_projection(net, self.projection)
        return Net(net.body, FineHead(net.width, spec.classes, self.subclasses, self.subclass_pool), net.width)

    # server half -----------------------------------------------------------------------------------------------------
    def start(self, ctx: RoundContext) -> Tree:
        state = super().start(ctx)
        width = state["model"][PHI].shape[1]
        shape = (ctx.num_classes, self.subclasses)
        return state | {"prototypes": torch.zeros(*shape, width), "counts": torch.zeros(shape), "mu": self._mu(ctx, 0)}

    def _mu(self, ctx: RoundContext, round: int) -> float:
        return 1 - round / ctx.rounds if self.mu is None else self.mu

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        counts = torch.stack([reply["counts"] for reply in replies.values()])  # (K, C, M)
        local = torch.stack([reply["prototypes"] for reply in replies.values()])  # (K, C, M, d)
        total = counts.sum(0)
        mean = (counts[..., None] * local).sum(0) / total.clamp_min(1)[..., None]  # Eq. 1
        prototypes = torch.where(total[..., None] > 0, mean, state["prototypes"].to(mean))
        held = total.sum(1) > 0  # (C,)
        new = held & ~state["prototypes"].to(mean).flatten(1).any(1)
        for c in new.nonzero()[:, 0] if self.align == "kmeans" else ():
            prototypes[c], total[c] = self._align(local[:, c], counts[:, c], ctx.server.rng)
        total = torch.where(held[:, None], total, state["counts"].to(total))  # the last, of a class nobody here has
        averaged = super().aggregate(state, replies, ctx)["model"]
        if self.aggregation != "samples":
            phi = torch.stack([reply["model"][PHI] for reply in replies.values()])  # (K, C M, d), Eq. 12
            share = self._share(phi, prototypes, counts)
            weighted = (share[..., None] * phi).sum(0)  # Eq. 15
            averaged = Weights({**averaged, PHI: torch.where(share.any(0)[:, None], weighted, averaged[PHI])})
        mu = self._mu(ctx, ctx.round + 1)
        return state | {"model": averaged, "prototypes": prototypes, "counts": total, "mu": mu}

    def _align(self, local: Tensor, counts: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """(M, d) and (M,): the sub-classes of one class, from what each client calls so, (K, M, d) and (K, M)."""
        held = counts.flatten() > 0
        centroids, mass = local.flatten(0, 1)[held].cpu(), counts.flatten()[held].cpu()
        centres = kmeans(*_at_least(centroids, mass, self.subclasses, rng), self.subclasses, rng)
        near = torch.cdist(centroids, centres).argmin(1)
        return centres.to(local), torch.zeros(self.subclasses).index_add_(0, near, mass).to(counts)

    def _share(self, phi: Tensor, prototypes: Tensor, counts: Tensor) -> Tensor:
        """(K, C M): how much of each client's class vector goes into the global one; columns of 0 where nobody's."""
        held = counts.flatten(1)
        if self.aggregation == "counts":
            return held / held.sum(0).clamp_min(1)
        p = torch.einsum("kid,jd->kji", phi, prototypes.flatten(0, 1)).softmax(2)  # Eq. 13: (K, j, C M)
        quality = p.diagonal(dim1=1, dim2=2)  # (K, C M): the probability of sub-class j for its own prototype
        if self.mask_absent:
            class_held = (counts.sum(2, keepdim=True) > 0).expand_as(counts).flatten(1)
            quality = quality.masked_fill(~class_held & class_held.any(0), -torch.inf)
        return quality.softmax(0)  # Eq. 14

    # client half -----------------------------------------------------------------------------------------------------
    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        initial = self._initial_prototypes(site, down)  # (C, M, d)
        local = nn.Parameter(initial.clone())
        site.fit(self.loss(site, down, initial, local), also=[local] if self.contrast else [])
        sums, counts = self._subclass_sums(site, initial)
        prototypes = local.detach() if self.contrast else class_means(sums, counts).view_as(initial)
        return {
            "model": Weights.of(site.model, self.returns),
            "n": site.size,
            "prototypes": prototypes * (counts > 0).view(*initial.shape[:2], 1),
            "counts": counts.view(initial.shape[:2]),
        }

    def _initial_prototypes(self, site: Site, down: Tree) -> Tensor:
        """The prototypes a round begins with: the global ones, or where there are none yet the site's centroids."""
        initial: Tensor = down["prototypes"].to(site.device).clone()
        lacking = ((site.counts > 0) & ~initial.flatten(1).any(1)).nonzero()[:, 0].tolist()
        if lacking:
            rng = stream(site.rng, "centroids")  # site.rng is left to the batches
            z, y = self._features(site, rng)
            for c in lacking:
                rows = z[y == c].cpu()
                initial[c] = kmeans(*_at_least(rows, torch.ones(len(rows)), self.subclasses, rng), self.subclasses, rng)
        return initial

    def _features(self, site: Site, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return concatenate(self._limit_pixels(site, rng, z, y) for z, y in site.vectors(site.train))

    def _limit_pixels(self, site: Site, rng: torch.Generator, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The rows; in segmentation at most `pixels` of each class."""
        if site.task.name == "classification":
            return z, y
        return sample_per_class(z, y, site.num_classes, self.pixels, rng)

    def _subclass_sums(self, site: Site, initial: Tensor) -> tuple[Tensor, Tensor]:
        """Sums (C M, d) and numbers (C M) of the site's features in each sub-class."""
        directions = F.normalize(initial, dim=2)
        pieces = ((z, self.assign_subclasses(z, y, directions)) for z, y in site.vectors(site.train))
        return class_sums(pieces, initial.shape[0] * initial.shape[1])

    def assign_subclasses(self, z: Tensor, y: Tensor, directions: Tensor) -> Tensor:
        """(N,) number c M + t of the sub-class of each row: the nearest of its class by angle, of these (C, M, d)."""
        m = directions.shape[1]
        near = z @ directions.flatten(0, 1).T  # (N, C M): the length of z makes no difference
        own = y[:, None] * m + torch.arange(m, device=y.device)  # (N, M)
        return y * m + near.gather(1, own).argmax(1)  # Eq. 2

    def loss(self, site: Site, down: Tree, initial: Tensor, local: nn.Parameter) -> Callable[[Out], Tensor]:
        head = cast(FineHead, site.model.head)
        mu = float(down["mu"])
        phi: Tensor = down["model"][PHI].to(site.device)
        directions = F.normalize(initial, dim=2)
        log_shares = self.log_shares(initial.any(2).flatten())
        prototypes = self._prototypes_per_batch(site, down)
        rng = stream(site.rng, "pixels")

        def objective(out: Out) -> Tensor:  # Eq. 11
            z, y = self._limit_pixels(site, rng, *site.task.vectors(out.z, out.y))
            logits = out.logits if out.logits.ndim == 2 else head(z)
            guests, sub, importance = next(prototypes)  # P^g in this batch: (G, d), (G,), (G,)
            every = torch.cat([z, guests])
            labels = torch.cat([y, sub // self.subclasses])
            scale = len(y) if self.importance == "balanced" else 1
            mass = torch.cat([importance.new_ones(len(y)), scale * importance])  # I
            total = mass.sum()
            guest_logits = head(guests)
            value = mu * (len(y) / total) * site.loss(out.logits, out.y)  # Eq. 10, of samples
            if len(sub) and mu:  # and of prototypes
                guest_losses = F.cross_entropy(guest_logits, labels[len(y) :], reduction="none")
                value = value + mu * (mass[len(y) :] * guest_losses).sum() / total
            if self.contrast and mu < 1:
                t = torch.cat([self.assign_subclasses(z.detach(), y, directions), sub])
                omega = self.log_omega(every, t, local.flatten(0, 1), log_shares)
                value = value - (1 - mu) * (mass * omega).sum() / total  # Eq. 5
            if self.gamma:
                value = value + self.gamma * self.batch_prototype_loss(head, phi, z, y)
            if self.weight:
                student = torch.cat([logits, guest_logits])
                teacher = head.pooled(head.fine(every.detach(), phi))
                gaps = self.distillation_loss(teacher, student, labels)
                value = value + self.weight * (mass * gaps).sum() / total  # Eq. 9
            return value

        return objective

    def _prototypes_per_batch(self, site: Site, down: Tree) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The global prototypes that join each batch, their sub-classes and their importance."""
        counts = down["counts"].to(site.device).flatten()
        sub = (counts * (self.importance != "none")).nonzero()[:, 0]
        z = down["prototypes"].to(site.device).flatten(0, 1)[sub]
        n = counts[sub]
        if self.importance != "paper" or not len(sub):
            while True:
                yield z, sub, n / n.sum()
        steps = site.train.batch_count(site.training.batch_size)
        rng = stream(site.rng, "prototypes")
        while True:  # an epoch: each prototype is in one of its batches
            when = torch.randint(steps, (len(sub),), generator=rng).to(site.device)
            for here in (when == step for step in range(steps)):
                yield z[here], sub[here], n[here]

    def log_omega(self, z: Tensor, t: Tensor, prototypes: Tensor, log_shares: Tensor) -> Tensor:
        """(N,) the logarithm of Eq. 4, for rows of sub-classes t among prototypes (C M, d)."""
        scores = F.normalize(z, dim=1) @ F.normalize(prototypes, dim=1).T / self.tau  # Eq. 3: log psi, (N, C M)
        return scores.gather(1, t[:, None])[:, 0] - (scores + log_shares[t]).logsumexp(1)

    def log_shares(self, alive: Tensor) -> Tensor:
        """(C M, C M): the logarithms of 1, alpha and 1 - alpha of Eq. 4, for a sub-class and each of the others; none
        but itself counts that is not alive (C M,)."""
        sub = torch.arange(len(alive), device=alive.device)
        kin = sub[:, None] // self.subclasses == sub // self.subclasses
        shares = torch.where(kin, self.alpha, 1 - self.alpha).masked_fill(~alive, 0.0)
        return shares.fill_diagonal_(1.0).log()

    def batch_prototype_loss(self, head: FineHead, phi: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """Eqs. 6 and 7: how well the global classifier knows the mean feature of each class in the batch."""
        sums, counts = class_sums([(z, y)], len(phi) // self.subclasses)
        there = (counts > 0).nonzero()[:, 0]
        means = sums[there] / counts[there, None]
        return F.cross_entropy(head.pooled(head.fine(means, phi)), there)

    def distillation_loss(self, teacher: Tensor, student: Tensor, y: Tensor) -> Tensor:
        """(N,) Eq. 8, or plain divergence."""
        if self.distillation == "plain":
            return F.kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="none", log_target=True).sum(1)
        return decoupled_distillation(teacher, student, y, others=self.xi)


def _at_least(rows: Tensor, mass: Tensor, k: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """The rows and their weights; fewer than k are repeated with a little noise, so that k centres can be found."""
    if len(rows) >= k:
        return rows, mass
    again = torch.arange(k - len(rows)) % len(rows)
    noise = torch.randn(len(again), rows.shape[1], generator=rng) * NOISE * rows.square().mean().sqrt()
    return torch.cat([rows, rows[again] + noise]), torch.cat([mass, mass[again]])
