"""Federated Learning with Label Distribution Skew via Logits Calibration.
Zhang, Li, Li, Xu, Wu, Ding, Wu, ICML 2022, https://arxiv.org/abs/2209.00189 (FedLC)

    paper           here                        lives
    f_c(x)          out.logits                  client, within a step
    n_c             site.counts                 client, never sent
    tau             tau
    tau n_c^(-1/4)  margin                      client, in the loss of its fit; predictions are made without it

Subtracted from the logits, the margins keep class y apart from class c by tau (n_y^(-1/4) - n_c^(-1/4)): more, the
rarer y is at the site.

Departures:
- The paper prints the denominator of its calibrated loss as a sum over c != y. Ours keeps y in it, as cross entropy and
  re-implementations do: without y the loss has no lower bound.
- A class that a site lacks would have an infinite margin. It counts as 1e-8 samples, as in re-implementations, so that
  its margin is 100 tau and, unless tau is small, it has no part in the softmax.
- The loss is the task's on calibrated logits. Plugins that shift logits do not reach it: it has its own allowance for
  the class counts.
- The paper classifies images with cross entropy. In segmentation counts are pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from crossward.core.method import Method
from crossward.core.noisy_statistics import CLASS_COUNTS
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.losses import per_class

LEAST = 1e-8  # samples of a class that has none


@dataclass(frozen=True)
class FedLC(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    tau: Annotated[float, Ge(0)] = 1.0  # 0 is FedAvg

    @property
    def allows_for_prior(self) -> bool:
        return True  # logits are calibrated by class counts here: bsm would count them twice

    def noisy_statistics(self, rounds: int) -> Mapping[str, int]:
        return {CLASS_COUNTS: 1}

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)
        margin = self.tau * margins(site.counts)  # (K,)
        site.fit(lambda out: site.task.loss(out.logits - per_class(margin, out.logits), out.y))
        return {"model": Weights.of(site.model, self.returns), "n": site.size}


def margins(counts: Tensor) -> Tensor:
    """(K,) n^(-1/4): 1 for a class with one sample, 100 for one without."""
    return counts.float().clamp_min(LEAST) ** -0.25
