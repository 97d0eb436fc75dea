"""Non-parametric regularisation on any method: features are drawn to the nearest of several prototypes of their class.

FedNPR, Eqs. 1-3 and 5 (`crossward methods fednpr`): per class and site, features are clustered by optimal transport to
clusters of equal mass, and the cross entropy of the nearest prototypes is added to the method's loss.

    paper     here                          lives
    z         unit rows of out.z            client
    P_i^c     site.memory["npr"]            client, between rounds; never sent
    Q^c       sinkhorn(...)                 client, before a fit
    K, eps    k, epsilon                    lambda: weight

Departures:
- Eq. 1 prints diag(alpha) Z P / eps diag(beta): exp is missing, and the number of iterations. Ours: exp(Z P / eps), 3
  Sinkhorn iterations, then each sample goes whole to the cluster it mostly belongs to. So the soft masses of clusters
  are nearly equal, and the numbers of samples that are assigned to them need not be. The code runs another solver with
  the sign of the cost turned round, and draws the assignment by chance.
- Eq. 2 prints Z^T Q^T, for Z^T Q; prototypes are the clusters' mean directions, without momentum. A cluster that gets
  no sample keeps its last prototype. The first prototypes are random directions (in the code, random and shorter).
- Prototypes are made once in a client step, from the downloaded network in eval mode and images as they are; the code
  augments them, and trains BatchNorm on them in round 1.
- The code normalises the scores of Eq. 3 over the classes (LayerNorm without parameters), which works as a
  temperature: layernorm = true, our default, too; false is as printed.
- The code adds lambda where Eq. 5 multiplies by it; we multiply. The loss shares the forward pass of the method's.
- A class of which the site has one sample or none keeps its random prototypes, rivals of the other classes', as in the
  code (missing = "keep"); missing = "mask" leaves it out of Eq. 3. A class of fewer than k samples gets one for each.
- k = "auto" is ours: (n / 2)^(1/3) clusters for n samples, at most 8: 2 for 16 samples, 4 for 128, 8 from 1,024.
- samples = 64, say, makes the prototypes of a sample, where the pass over all images costs too much.
- In segmentation rows are pixels, of each class at most `pixels` in a batch, and as many in all for the prototypes.
- With privacy, prototypes come from noisy sums: each feature, of length 1, joins the nearest of the prototypes that its
  class had before (random ones at first), and not the cluster that optimal transport over all images would give it. So
  the place of an image depends on that image and on what was released before. Sums and counts of all clusters are one
  release, made every `private_cycle` rounds and not in each, because each needs the noise that pays for all of them. A
  cluster whose count is within twice the deviation of its noise keeps its prototype. Classification only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn import functional as F

from crossward.core.noisy_statistics import CLASS_COUNTS, PROTOTYPES
from crossward.core.plugin import Plugin, RunFacts
from crossward.core.samples import Batch
from crossward.core.seeds import stream
from crossward.core.site import Out, Site
from crossward.core.tree import Tree
from crossward.statistics import concatenate, describe_rare_classes, sample_per_class, sinkhorn

MOST = 8  # clusters of a class with k = "auto"
PRIVATE_KEY = "npr_private"  # where a site's memory keeps released prototypes
CERTAIN = 2.0  # deviations of its noise above which a count tells of a cluster


@dataclass(frozen=True)
class Clusters:
    prototypes: Tensor  # (C, K, D) of unit length
    alive: Tensor  # (C, K) those in use
    whole: bool  # whether all are
    rng: torch.Generator  # of what is drawn while they are in use; the site's own is left to the batches

    def nearest(self, z: Tensor) -> Tensor:
        """(N, C) max_k <z, p_c,k> for unit rows z (N, D)."""
        scores = (z @ self.prototypes.flatten(0, 1).T).view(-1, *self.alive.shape)
        return (scores if self.whole else scores.masked_fill(~self.alive, -torch.inf)).amax(2)


@dataclass(frozen=True)
class Npr(Plugin):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    private_tasks: ClassVar[tuple[str, ...]] = ("classification",)  # pixels of a batch are taken by their class
    k: Annotated[int, Ge(1)] | Literal["auto"] = 4  # sub-clusters of a class; auto: more where it has more samples
    weight: Annotated[float, Ge(0)] = 0.1  # lambda
    epsilon: Annotated[float, Ge(1e-4)] = 0.05  # entropy of the assignment; below 1e-4 single precision cannot tell
    iterations: Annotated[int, Ge(1)] = 3  # of Sinkhorn
    layernorm: bool = True  # whether the scores of the classes are normalised before the cross entropy
    missing: Literal["keep", "mask"] = "keep"  # what becomes of a class without samples in the loss
    samples: Annotated[int, Ge(2)] | None = None  # most images of a class that make its prototypes; None: all
    pixels: Annotated[int, Ge(2)] = 256  # segmentation: of each class, in a batch and for the prototypes
    private_cycle: Annotated[int, Ge(1)] = 10  # with privacy: rounds between two releases of prototypes

    @property
    def room(self) -> int:
        """Prototypes that a class may have."""
        return MOST if self.k == "auto" else self.k

    def cautions(self, facts: RunFacts) -> list[str]:
        if self.k == "auto" or not self.weight:
            return []
        few = describe_rare_classes(facts.counts, self.k)
        return [f"npr.k = {self.k} is more than a class has samples, in {few}"] if few else []

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        if not self.weight:
            return {}
        return {PROTOTYPES: -(-rounds // self.private_cycle), CLASS_COUNTS: int(self.k == "auto")}

    def before_fit(self, site: Site) -> None:
        if self.weight and site.size and "npr" not in site.scratch:  # later fits of a step start from other weights
            site.scratch["npr"] = self.clustered(site) if site.privacy is None else self.private_clusters(site)

    def loss(self, site: Site, out: Out) -> Tensor | None:
        if "npr" not in site.scratch:
            return None
        clusters: Clusters = site.scratch["npr"]
        z, y = site.task.vectors(out.z, out.y)
        if site.task.name == "segmentation":
            z, y = sample_per_class(z, y, site.num_classes, self.pixels, clusters.rng)
        best = clusters.nearest(F.normalize(z.float(), dim=1))
        if self.missing == "mask":
            best, y = _present(best, y, clusters.alive.any(1))
        if not len(y):
            return None
        if self.layernorm:
            best = F.layer_norm(best, best.shape[1:])
        if site.privacy is None:
            return self.weight * F.cross_entropy(best, y)  # Eqs. 3 and 5
        # a mean over all images: over those present alone, what an image adds would depend on the others
        return self.weight * F.cross_entropy(best, y, reduction="sum") / len(out.y)

    def clustered(self, site: Site) -> Clusters:
        rng = stream(site.rng, "npr")
        z, y = self._rows(site, rng)
        z = F.normalize(z.float(), dim=1)
        prototypes = self._remembered(site, z.shape[1], rng)
        counts = torch.bincount(y, minlength=site.num_classes).tolist()
        alive = torch.zeros(prototypes.shape[:2], dtype=torch.bool, device=z.device)
        for c, n in enumerate(counts):
            if n > 1:
                k = self.clusters(n)
                prototypes[c, :k] = self.updated(z[y == c], prototypes[c, :k])
                alive[c, :k] = True
            elif self.missing == "keep":
                alive[c] = True
        site.memory["npr"] = prototypes
        return Clusters(prototypes, alive, bool(alive.all()), rng)

    def private_clusters(self, site: Site) -> Clusters:
        """From noisy sums over all training images, or those of an earlier round."""
        assert site.privacy is not None
        rng = stream(site.rng, "npr")
        kept: Tree | None = site.memory.get(PRIVATE_KEY)
        if kept is None or site.round - kept["round"] >= self.private_cycle:
            kept = self._released(site, rng)
            site.memory[PRIVATE_KEY] = kept
        alive = kept["alive"]
        return Clusters(kept["prototypes"], alive, bool(alive.all()), rng)

    def _released(self, site: Site, rng: torch.Generator) -> Tree:
        """Why it is private: an image adds one row of length 1 to the sums and 1 to the counts, in a cluster that its
        own label and features choose among prototypes which were released before, or are random."""
        privacy = site.privacy
        assert privacy is not None
        kept: Tree | None = site.memory.get(PRIVATE_KEY)
        width = next(site.vectors(site.train.only(torch.arange(1))))[0].shape[1]
        shape = (site.num_classes, self.room)
        drawn = F.normalize(torch.randn(*shape, width, generator=rng), dim=2).to(site.device)
        prototypes = drawn if kept is None else kept["prototypes"]
        used = self._used(site, shape)

        def clustered() -> Iterator[Batch]:
            for z, y in site.vectors(site.train):
                unit = F.normalize(z.float(), dim=1)
                scores = torch.einsum("nd,nkd->nk", unit, prototypes[y]).masked_fill(~used[y], -torch.inf)
                yield unit, y * self.room + scores.argmax(1)

        noisy = privacy.statistics.class_sums(site, PROTOTYPES, clustered(), shape[0] * shape[1], clip=1.0)
        present = (noisy.counts > CERTAIN * noisy.deviation).view(shape).to(site.device)
        means = F.normalize(noisy.sums.view(prototypes.shape).to(prototypes), dim=2)
        in_all = noisy.counts.view(shape).sum(1).to(site.device) > CERTAIN * noisy.deviation * self.room**0.5
        alive = used & (in_all[:, None] | (self.missing == "keep"))
        return {
            "prototypes": torch.where(present[:, :, None], means, prototypes),
            "alive": alive,
            "round": site.round,
        }

    def _used(self, site: Site, shape: tuple[int, int]) -> Tensor:
        """(C, K) the clusters that each class may have, by noisy counts where k = "auto"."""
        if self.k != "auto":
            return torch.ones(shape, dtype=torch.bool, device=site.device)
        ks = torch.tensor([self.clusters(max(1, round(n))) for n in site.counts.tolist()], device=site.device)
        return torch.arange(shape[1], device=site.device) < ks[:, None]

    def clusters(self, n: int) -> int:
        """Sub-clusters of a class of n samples."""
        wanted = min(MOST, max(1, round((n / 2) ** (1 / 3)))) if self.k == "auto" else self.k
        return min(wanted, n)

    def updated(self, z: Tensor, prototypes: Tensor) -> Tensor:
        """(K, D) the mean directions of the clusters of z (N, D); the old prototype where a cluster is empty."""
        q = sinkhorn(z @ prototypes.T / self.epsilon, self.iterations)  # Eq. 1
        member = F.one_hot(q.argmax(1), len(prototypes)).to(z)  # (N, K)
        means = F.normalize(member.T @ z, dim=1)  # Eq. 2: dividing by N_k first would change nothing
        return torch.where(member.any(0)[:, None], means, prototypes)

    def _rows(self, site: Site, rng: torch.Generator) -> Batch:
        """The features that prototypes are made of: of all training images, or of some of each class."""
        few = partial(sample_per_class, classes=site.num_classes, rng=rng)
        if site.task.name == "segmentation":
            pieces = (few(z, y, limit=self.pixels) for z, y in site.vectors(site.train))
            return few(*concatenate(pieces), limit=self.pixels)
        if self.samples is None:
            return concatenate(site.vectors(site.train))
        some, _ = few(torch.arange(site.size), site.train.labels, limit=self.samples)
        return concatenate(site.vectors(site.train.only(some)))

    def _remembered(self, site: Site, width: int, rng: torch.Generator) -> Tensor:
        known: Tensor | None = site.memory.get("npr")
        if known is not None:
            return known.clone()
        shape = (site.num_classes, self.room, width)
        return F.normalize(torch.randn(shape, generator=rng), dim=2).to(site.device)


def _present(scores: Tensor, y: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """The scores of the classes that are present, of the rows whose class is, with classes counted anew."""
    rows = present[y]
    number = present.cumsum(0) - 1  # (C,) each class's place among those present
    return scores[rows][:, present], number[y[rows]]
