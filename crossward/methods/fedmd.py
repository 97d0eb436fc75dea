"""FedMD: Heterogenous Federated Learning via Model Distillation.
Li, Wang, NeurIPS 2019 workshop on federated learning, https://arxiv.org/abs/1910.03581, Algorithm 1;
https://github.com/diogenes0319/FedMD_clean

    paper          here                      lives
    D_0            site.public               every site and the server
    d_j            rows                      drawn by the server in each round, sent
    f_k            site.model                client, between rounds; never sent; any architecture
    f_k(x_i^0)     reply["logits"]           sent
    f~(x_i^0)      consensus                 server, sent

Departures:
- Transfer learning: the public set has no labels here, so a site begins with its own images alone, in its first round.
  The code trains for up to 25 epochs there, and stops early by the accuracy on the test set; here it is start_epochs,
  and nobody looks at a test set.
- How networks approach the consensus is not said; as in the code it is by the mean absolute error of the logits, and
  for train.epochs a site then revisits its own images. digest_epochs = 0 is local training. The code's batches of 256
  (or 128) of 5,000 public images are smaller where there are fewer images, which would else be a step or two.
- All who answered count alike in the consensus, which needs no one to be there in every round. A site that is lost
  between its scores and the consensus has its say in it, and keeps its network as it was.
- The paper classifies images. In segmentation class scores are maps, of H x W times as many numbers: choose a small
  `subset` there (100 images of 256 x 256 pixels and 2 classes are 52 MB, each way, for each site and round).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge
from torch.nn import functional as F

from crossward.core import select
from crossward.core.disclosure import Disclosure, DisclosureKind, Made
from crossward.core.method import Clients, Method, Need, RoundContext
from crossward.core.select import Select
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.methods.public_set import (
    default_batch_size,
    distil,
    draw_public_rows,
    public_logits,
    train_before_first_round,
)

DISTANCES = {"mae": F.l1_loss, "mse": F.mse_loss}


@dataclass(frozen=True)
class FedMD(Method):
    shared: ClassVar[Select] = select.nothing
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PUBLIC_SET})
    steps: ClassVar[tuple[str, ...]] = ("score", "train")
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "logits": Disclosure(DisclosureKind.LOGITS, "logits on the public set", made=Made.WEIGHTS)
    }
    server_needs: ClassVar[str] = ""
    recipe: ClassVar[Mapping[str, Any]] = {"optimizer": "adam", "lr": 1e-3, "batch_size": 5, "epochs": 4}

    subset: Annotated[int, Ge(1)] = 5000  # public images in a round, drawn anew; all if there are fewer
    start_epochs: Annotated[int, Ge(0)] = 25  # on its own images, before a site takes part
    digest_epochs: Annotated[int, Ge(0)] = 1  # over the public images of a round
    digest_batch: Annotated[int, Ge(2)] | None = None  # public images in a step; None: a twentieth, from 8 to 256
    distance: Literal["mae", "mse"] = "mae"  # of a site's logits from the consensus

    def start(self, ctx: RoundContext) -> Tree:
        return {}

    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        rows = draw_public_rows(ctx.server, self.subset)
        replies = clients.ask("score", {"rows": rows})  # Communicate
        consensus = sum(reply["logits"] for reply in replies.values()) / len(replies)  # Aggregate
        clients.ask("train", {"rows": rows, "logits": consensus})  # Distribute
        return state

    def score(self, site: Site, down: Tree) -> Tree:
        train_before_first_round(site, self.start_epochs)  # Transfer learning
        return {"logits": public_logits(site, down["rows"])}

    def train(self, site: Site, down: Tree) -> Tree:
        rows = down["rows"]
        batch_size = self.digest_batch or default_batch_size(rows)
        distil(site, rows, down["logits"], DISTANCES[self.distance], self.digest_epochs, batch_size)  # Digest
        site.fit()  # Revisit
        return {}
