"""Balanced softmax on any method: the logits of the supervised loss are shifted by how often a site sees each class.

Balanced Meta-Softmax for Long-Tailed Visual Recognition, Ren et al., NeurIPS 2020, https://arxiv.org/abs/2007.10740;
as FedNPR uses it (Eq. 4): softmax(g(f(x)) + log pi), pi being the site's class shares. Prediction has no shift.

Departures: FedNPR prints "+ pi"; its code, and this, add log(pi + 1e-9), so that a class the site lacks is shifted by
-20.7. Shares are those of the site's own training samples (pixels in segmentation), whatever else a method mixes in.
A method whose loss has such a shift of its own is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from crossward.core.noisy_statistics import CLASS_COUNTS
from crossward.core.plugin import Plugin
from crossward.core.site import Site
from crossward.losses import log_prior, per_class


@dataclass(frozen=True)
class Bsm(Plugin):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    allows_for_prior: ClassVar[bool] = True

    strength: Annotated[float, Ge(0)] = 1.0  # exponent of the shares; 0 is plain softmax

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        return {CLASS_COUNTS: int(self.strength > 0)}

    def shift(self, site: Site, logits: Tensor) -> Tensor:
        if not self.strength:
            return logits
        if "bsm" not in site.scratch:
            site.scratch["bsm"] = self.strength * log_prior(site.counts)  # (K,)
        return logits + per_class(site.scratch["bsm"], logits)  # Eq. 4
