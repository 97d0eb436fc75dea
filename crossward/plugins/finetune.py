"""Fine-tuning: before it predicts, each site fine-tunes a copy of what it was sent on its own training data.

As in the papers' +FT rows: the whole network, at the training rate; the copy is never sent or kept. It is tuned with
the supervised loss and the plugins of training, but for those that tie a fit to the federation (prox): these find
TUNING in site.scratch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from crossward.core.plugin import Plugin
from crossward.core.site import Site

TUNING = "ft"  # in site.scratch while a copy is tuned


@dataclass(frozen=True)
class Finetune(Plugin):
    personalises: ClassVar[bool] = True

    epochs: Annotated[int, Ge(1)] = 5

    def before_predict(self, site: Site) -> None:
        if site.size:
            site.scratch[TUNING] = True
            site.fit(epochs=self.epochs)
            del site.scratch[TUNING]
