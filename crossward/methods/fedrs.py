"""FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data.
Li, Zhan, KDD 2021, https://doi.org/10.1145/3447548.3467254

    paper                 here                              lives
    observed classes      site.counts >= least              client, never sent
    alpha                 alpha
    restricted softmax    softmax of scale * out.logits     client, in the loss of its fit; predictions have scale 1
    n_k                   reply["n"]                        sent

Departures:
- The factor covers the whole logit, bias included; the classifier of the first author's code (lxcnju/FedRepo) has none.
  That code also grades the factor by n_c / max n, and anew at every step, so that it tends to 1; here it is alpha or 1.
- A class counts as missing below `least` samples: 1 is the paper's; the fluke library takes 3.
- The paper classifies images. In segmentation counts, and so `least`, are pixels.
- Plugins that shift logits see them restricted. With bsm it is FedAvg with bsm but for rounding: that shifts a missing
  class by -20.7, so that its factor makes no difference any more. `cautions` says so before a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Interval

from crossward.core.method import Method
from crossward.core.noisy_statistics import CLASS_COUNTS
from crossward.core.plugin import RunFacts
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.losses import per_class
from crossward.plugins.bsm import Bsm

DECISIVE = 0.5  # strength of bsm from which a missing class, shifted by -10 or more, has no part in the softmax


@dataclass(frozen=True)
class FedRS(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    alpha: Annotated[float, Interval(ge=0, le=1)] = 0.5  # of the logits of missing classes; 1 is FedAvg
    least: Annotated[int, Ge(1)] = 1  # samples (or pixels) that a class needs in order not to be missing

    def cautions(self, facts: RunFacts) -> list[str]:
        shifted = any(isinstance(plugin, Bsm) and plugin.strength >= DECISIVE for plugin in facts.plugins)
        if not shifted or self.alpha == 1 or self.least > 1:
            return []
        return ["fedrs with bsm trains as fedavg with bsm does: bsm alone leaves missing classes no part in softmax"]

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        return {CLASS_COUNTS: 1}

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        scale = torch.where(site.counts < self.least, self.alpha, 1.0)  # (K,)
        site.fit(lambda out: site.loss(out.logits * per_class(scale, out.logits), out.y))
        return {"model": Weights.of(site.model, self.returns), "n": site.size}
