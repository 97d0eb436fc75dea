"""pFedDF: FedDF for sites that each predict with a network of their own. It is compared with in MH-pFLGB (MICCAI 2024,
https://arxiv.org/abs/2407.00474) and the papers it follows, none of which defines it: this is our reading.

    FedDF                     here                        lives
    x_t^p, the fused model    state["model"]              server; what a site is sent
    x^_t^k                    site.memory["own"]          client, between rounds; sent as FedDF sends it. It predicts

Rounds are those of feddf.py to the bit. FedDF is evaluated right after the fusion, pFedDF after local training: a site
predicts with the network that it ended its training with, which started from the fusion of the round before.

Departures: as those of feddf.py. A site that is absent from a round predicts with the network of its last; one that has
not taken part yet, with the fused model. On the federation's own test set, too, each site's own network predicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from crossward.core.method import View
from crossward.core.site import Predictor, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.methods.feddf import FedDF

OWN = "own"


@dataclass(frozen=True)
class PFedDF(FedDF):
    personalises: ClassVar[bool] = True

    def train(self, site: Site, down: Tree) -> Tree:
        reply = super().train(site, down)
        site.memory[OWN] = Weights.of(site.model)
        return reply

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        predictor = super().predictor(site, down, view)
        if "model" in down and OWN in site.memory:  # without "model", the site kept what predicts
            site.memory[OWN].into(site.model)
        return predictor
