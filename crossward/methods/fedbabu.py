"""FedBABU: Towards Enhanced Representation for Federated Image Classification.
Oh, Kim, Yun, ICLR 2022, https://arxiv.org/abs/2106.06042, Algorithm 1, and the fine-tuning of its evaluation.

    paper      here                        lives
    theta_ext  the body of state["model"]  server
    theta_cls  the head of state["model"]  server, never changed
    theta^k    site.model                  client, within a round
    tau_f      finetune_epochs             F, B, H: finetune = full, body, head; its rate: finetune_lr

The federation is that of random_frozen.py: the head keeps its random initial weights, the same at every site, and the
body alone is trained and averaged. A site fine-tunes a copy of the whole on its own data before it predicts for its
own patients; the copy is never kept or sent. On the federation's own test set the global model predicts, untuned.

Departures: the head is left out of the optimiser, which is the authors' learning rate of 0 without its weight decay
and momentum. Fine-tuning runs at the rate of the round unless `finetune_lr` fixes one (a schedule that has come to its
end leaves the rate of the round too low to tune with), with the loss and the plugins of training, so that the two
compare. A site without training data has nothing to tune with and predicts with the global model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt

from crossward.core import select
from crossward.core.method import View
from crossward.core.site import Predictor, Site
from crossward.core.tree import Tree
from crossward.methods.random_frozen import RandomFrozen

TUNED = {"full": select.everything, "head": select.head, "body": select.body}


@dataclass(frozen=True)
class FedBABU(RandomFrozen):
    personalises: ClassVar[bool] = True
    two_views: ClassVar[bool] = True

    finetune_epochs: Annotated[int, Ge(1)] = 5  # tau_f, before a site predicts for its own patients
    finetune: Literal["full", "head", "body"] = "full"  # what is fine-tuned then
    finetune_lr: Annotated[float, Gt(0)] | None = None  # None: the rate of the round

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        predictor = super().predictor(site, down, view)
        if view == "local" and "model" in down and site.size:  # without "model", the site kept a copy tuned before
            site.fit(params=TUNED[self.finetune], epochs=self.finetune_epochs, lr=self._nominal_rate(site))
        return predictor

    def _nominal_rate(self, site: Site) -> float | None:
        """The rate before the schedule that makes finetune_lr the rate after it."""
        if self.finetune_lr is None:
            return None
        training = site.training
        return self.finetune_lr * training.lr / training.rate(site.round, 0)
