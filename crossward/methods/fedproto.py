"""FedProto: Federated Prototype Learning across Heterogeneous Clients.
Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, AAAI 2022, https://arxiv.org/abs/2105.00243, Algorithm 1.

    paper           here                     lives
    C-bar^(j)       state["prototypes"]      server
    C_i^(j)         reply["prototypes"]      sent
    |D_{i,j}|       reply["counts"]          sent
    omega_i         site.model               client, between rounds; never sent
    j of D_i        site.memory["held"]      client, between rounds; never sent: the classes it has
    lambda          weight

Departures:
- Eq. 8 measures how far a client's prototypes are from the global ones; as in the authors' code it is the mean squared
  distance of single features, over those whose class has a global prototype (the code counts the others as 0).
- Eq. 6 weights clients by |D_{i,j}| (weighting = "samples", without its second factor 1/|N_j|, which would shrink every
  prototype); the code takes the plain mean over the clients that hold the class, and so does the default.
- Local prototypes are those of the trained network in eval mode on images as they are; the code gathers them while
  it trains, during the last epoch.
- A class that no participant holds in a round keeps its global prototype.
- With privacy, sums of features and counts are released with noise, and prototypes are their quotients; a class whose
  count is within the noise counts as absent. The distance is then a mean over all images, as in the code.
- For its own patients a site that has taken part predicts among its own classes, as in the authors' code, though a
  prototype of others may be nearer (Eq. 4 takes all); for patients from anywhere among all classes with a prototype.
- The paper classifies images. In segmentation a sample is a pixel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from crossward.core import select
from crossward.core.disclosure import CLASS_COUNTS, CLASS_PROTOTYPES, Disclosure
from crossward.core.method import Method, Need, RoundContext, View
from crossward.core.net import Net
from crossward.core.noisy_statistics import CLASS_SUMS
from crossward.core.select import Select
from crossward.core.site import Out, Predictor, Site
from crossward.core.tree import Tree
from crossward.errors import ConfigError
from crossward.statistics import class_means, site_class_sums

FAR = -1e30  # the logit of a class without a prototype: no distance is as large, and softmax can take it


@dataclass(frozen=True)
class FedProto(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    shared: ClassVar[Select] = select.nothing
    needs: ClassVar[frozenset[Need]] = frozenset()
    two_views: ClassVar[bool] = True
    discloses: ClassVar[Mapping[str, Disclosure]] = {"prototypes": CLASS_PROTOTYPES, "counts": CLASS_COUNTS}
    server_needs: ClassVar[str] = ""

    weight: Annotated[float, Ge(0)] = 1.0  # lambda, Eq. 7; the authors take 1 for MNIST, 0.1 for CIFAR-10
    weighting: Literal["uniform", "samples"] = "uniform"  # of the clients in a class's mean, Eq. 6

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        return {CLASS_SUMS: rounds}

    def check_nets(self, nets: Mapping[str, Net]) -> None:
        """Networks may differ, the number of their features may not."""
        widths = {name: net.width for name, net in nets.items()}
        if len({*widths.values()}) > 1:
            raise ConfigError(
                "FedProto averages features, and these networks give different numbers of them",
                details=[f"{name}: {width}" for name, width in widths.items()],
                hint="Choose networks of the same feature width; the rest of them may differ.",
            )

    def start(self, ctx: RoundContext) -> Tree:
        none = torch.zeros(ctx.num_classes, dtype=torch.bool)
        return {"prototypes": torch.zeros(ctx.num_classes, ctx.server.new_net().width), "known": none}

    def train(self, site: Site, down: Tree) -> Tree:
        c, known = _global_prototypes(site, down)

        def distance(out: Out) -> Tensor:  # Eq. 8
            z, y = site.task.vectors(out.z, out.y)  # (N, D), (N,)
            held: Tensor = known[y]
            many = held.sum().clamp_min(1) if site.privacy is None else len(y)  # with privacy a mean over all
            return torch.where(held, (z - c[y]).square().mean(1), 0).sum() / many

        site.fit(lambda out: site.loss(out.logits, out.y) + self.weight * distance(out))  # Eq. 7
        sums, counts = site_class_sums(site)
        site.memory["held"] = counts > 0
        return {"prototypes": class_means(sums, counts), "counts": counts}  # Eq. 3

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        old = state["prototypes"]
        c_i, counts = (
            torch.stack([reply[name] for reply in replies.values()]).to(old.device)  # (m, K, D), (m, K)
            for name in ("prototypes", "counts")
        )
        share = counts if self.weighting == "samples" else (counts > 0).to(counts)
        total = share.sum(0)
        c = class_means((share[..., None] * c_i).sum(0), total)  # Eq. 6
        return {"prototypes": torch.where(total[:, None] > 0, c, old), "known": state["known"] | (total > 0)}

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        """The nearest global prototype, Eq. 4; the site's own head while there is none. Body and features are the
        site's in both views: on the federation's own set the score is the mean over sites of their own networks."""
        c, known = _global_prototypes(site, down)
        if not bool(known.any()):
            return site.model
        own = known & site.memory["held"].to(known.device) if "held" in site.memory else known
        if view == "local" and bool(own.any()):
            known = own

        def nearest(x: Tensor) -> Tensor:
            z: Tensor = site.model.features(x)
            return torch.where(known.view(-1, *(1,) * (z.ndim - 2)), -distances(z, c), FAR)

        return nearest


def distances(z: Tensor, c: Tensor) -> Tensor:
    """(B, K) or (B, K, H, W) squared distances of features (B, D) or (B, D, H, W) to prototypes (K, D)."""
    every = c.view(*c.shape, *(1,) * (z.ndim - 2))  # (K, D) or (K, D, 1, 1)
    return torch.stack([(z - one).square().sum(1) for one in every], 1)  # class by class: K times the memory otherwise


def _global_prototypes(site: Site, down: Tree) -> tuple[Tensor, Tensor]:
    """(K, D) global prototypes, and (K,) which of them there are."""
    return down["prototypes"].to(site.device), down["known"].to(site.device)
