"""DS-pFL: distillation-based semi-supervised federated learning, in which every site keeps a network of its own.
Itahara, Nishio, Koda, Morikura, Yamamoto, Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training with Non-IID Private Data (DS-FL), IEEE Transactions on Mobile Computing
2021, https://arxiv.org/abs/2008.06180; personal, as MH-pFLGB (https://arxiv.org/abs/2407.00474) compares itself with it
under the name DS-pFL, without a definition.

    paper              here                       lives
    I^o, open data     site.public                every site and the server
    o_r                rows                       drawn by the server in each round, sent
    w_k                site.model                 client, between rounds; never sent; any architecture
    local logit        reply["probabilities"]     sent; the paper's word for softmax outputs
    global logit       labels                     server, sent
    T                  temperature

Departures:
- There is no server model: a site predicts with its own network. In the paper a round is update, prediction,
  aggregation, distillation; here it ends with the next update, so that what is evaluated has seen the site's images
  last. The first update is thus before a site's first round (start_epochs), and there is one more in all.
- Distillation takes as many epochs, in batches as large, as the training on a site's own images, unless told
  otherwise; with digest_epochs = 0 it is local training.
- All who answered count alike in the mean. A site that is lost between its predictions and the labels has its say in
  them, and keeps its network as it was.
- The paper classifies images. In segmentation a pixel is labelled, at the cost of H x W times the numbers: choose a
  small `subset` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional as F

from crossward.core import select
from crossward.core.disclosure import Disclosure, DisclosureKind, Made
from crossward.core.method import Clients, Method, Need, RoundContext
from crossward.core.select import Select
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.methods.public_set import distil, draw_public_rows, public_logits, train_before_first_round


@dataclass(frozen=True)
class DSpFL(Method):
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    shared: ClassVar[Select] = select.nothing
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PUBLIC_SET})
    steps: ClassVar[tuple[str, ...]] = ("score", "train")
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "probabilities": Disclosure(DisclosureKind.LOGITS, "class probabilities on the public set", made=Made.WEIGHTS)
    }
    server_needs: ClassVar[str] = ""

    temperature: Annotated[float, Gt(0)] = 0.1  # T of the entropy reduction: the lower, the sharper
    aggregation: Literal["era", "sa"] = "era"  # entropy reduction aggregation, or the simple average
    subset: Annotated[int, Ge(1)] = 1000  # public images in a round, drawn anew; all if there are fewer
    start_epochs: Annotated[int, Ge(0)] | None = None  # before a site takes part; None: train.epochs
    digest_epochs: Annotated[int, Ge(0)] | None = None  # over the public images of a round; None: train.epochs
    digest_batch: Annotated[int, Ge(2)] | None = None  # public images in a step; None: train.batch_size

    def start(self, ctx: RoundContext) -> Tree:
        return {}

    def round(self, state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        rows = draw_public_rows(ctx.server, self.subset)
        replies = clients.ask("score", {"rows": rows})
        mean = sum(reply["probabilities"] for reply in replies.values()) / len(replies)
        clients.ask("train", {"rows": rows, "labels": self.sharpened(mean)})
        return state

    def sharpened(self, mean: Tensor) -> Tensor:
        """Entropy reduction: a softmax of probabilities, which leaves two classes a ratio of e^((p - q) / T)."""
        return (mean / self.temperature).softmax(1) if self.aggregation == "era" else mean

    def score(self, site: Site, down: Tree) -> Tree:
        train_before_first_round(site, self.start_epochs)
        return {"probabilities": public_logits(site, down["rows"]).softmax(1)}

    def train(self, site: Site, down: Tree) -> Tree:
        epochs = site.training.epochs if self.digest_epochs is None else self.digest_epochs
        batch_size = self.digest_batch or site.training.batch_size
        distil(site, down["rows"], down["labels"], F.cross_entropy, epochs, batch_size)
        site.fit()
        return {}
