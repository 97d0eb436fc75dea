"""Model-Contrastive Federated Learning.
Li, He, Song, CVPR 2021, https://arxiv.org/abs/2103.16257, Algorithm 1 (MOON); https://github.com/QinbinLi/MOON

    paper      here                       lives
    w^t        state["model"]             server; at a site frozen within a round
    w_i^{t-1}  site.memory["previous"]    client, between rounds; never sent
    w_i^t      site.model                 client, within a round
    z          out.z                      client: body and projection, R_w(x)
    z_glob     glob.features(x)           client
    z_prev     previous.features(x)       client
    mu, tau    mu, tau
    |D^i|      reply["n"]                 sent

Departures:
- At a site's first round there is no previous model, and the term is left out. The global model in its place would
  make the term the constant log 2; in the authors' code, where the list of earlier models is still empty, it is 0.
  Neither has a gradient. A site that joins later is at its first round, too; in the code it would be pushed off its
  random initial weights.
- The frozen models run in eval mode, as in the code, on the very batch that the local model sees in training mode.
  The previous model has the BatchNorm statistics that the site ended its last round with.
- The code can keep several previous models (model_buffer_size); this is its default, one.
- Every net gets the projection w -> w -> 256 of the paper's nets; projection = 0 contrasts the net's own features.
- The paper classifies images. In segmentation layers are 1 x 1 convolutions, and what is contrasted is an image's
  feature map averaged over its pixels.
- Plugins that shift logits reach the supervised loss alone. BatchNorm statistics follow `buffers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional as F

from crossward.core.method import Method
from crossward.core.net import Net, NetSpec
from crossward.core.site import Out, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.nets.parts.projection import with_projection

PREVIOUS = "previous"


@dataclass(frozen=True)
class Moon(Method):
    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "batch_size": 64, "epochs": 10,
    }  # fmt: skip

    mu: Annotated[float, Ge(0)] = 1.0  # weight of the contrast; the authors take 5 for CIFAR-10, 1 for CIFAR-100
    tau: Annotated[float, Gt(0)] = 0.5  # temperature
    projection: Annotated[int, Ge(0)] = 256  # numbers that the features are projected to; 0: no projection

    def build(self, net: Net, spec: NetSpec) -> Net:
        return with_projection(net, self.projection)

    def train(self, site: Site, down: Tree) -> Tree:
        if not self.mu:
            return super().train(site, down)
        down["model"].into(site.model)
        site.fit(self._loss(site) if PREVIOUS in site.memory else None)
        site.memory[PREVIOUS] = Weights.of(site.model)
        return {"model": Weights.of(site.model, self.returns), "n": site.size}

    def _loss(self, site: Site) -> Callable[[Out], Tensor]:
        """Of a site whose model is, as yet, the global one."""
        glob, previous = (deepcopy(site.model).eval() for _ in range(2))
        site.memory[PREVIOUS].into(previous)

        def loss(out: Out) -> Tensor:
            with torch.no_grad():
                z_glob, z_prev = (net.features(out.x) for net in (glob, previous))
            return site.loss(out.logits, out.y) + self.mu * contrast(out.z, z_glob, z_prev, self.tau)  # Eq. 4

        return loss


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """Eq. 3, the mean over images: -log(e^a / (e^a + e^b)) = log(1 + e^(b - a)) with a and b the cosines over tau."""
    z, z_glob, z_prev = (t.mean((2, 3)) if t.ndim > 2 else t for t in (z, z_glob, z_prev))  # (B, D)
    return F.softplus((F.cosine_similarity(z, z_prev) - F.cosine_similarity(z, z_glob)) / tau).mean()
