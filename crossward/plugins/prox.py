"""FedProx's proximal term on any method: (weight / 2) ||w - w^t||², w^t being the weights a fit starts from.

Li et al., MLSys 2020, Eq. 2. `fedavg+prox` is FedProx, and `fedavg+prox+ft` is FedProx with fine-tuning: the term acts
in the method's fits, not in that of ft. It enters as its gradient, and covers parameters only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from crossward.core import select
from crossward.core.plugin import Plugin
from crossward.core.site import Site
from crossward.core.weights import Weights
from crossward.losses import proximal_gradient
from crossward.plugins.finetune import TUNING


@dataclass(frozen=True)
class Prox(Plugin):
    weight: Annotated[float, Ge(0)] = 0.01  # mu

    def before_fit(self, site: Site) -> None:
        site.scratch["prox"] = None if TUNING in site.scratch else Weights.of(site.model, select.parameters)

    def edit_gradients(self, site: Site, gradients: Weights) -> Weights:
        anchor: Weights | None = site.scratch["prox"]
        if anchor is None:
            return gradients
        return gradients + proximal_gradient(site.model, anchor.only(gradients), self.weight)
