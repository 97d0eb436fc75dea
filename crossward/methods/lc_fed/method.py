"""LC-Fed: Personalizing Federated Medical Image Segmentation via Local Calibration.
Wang, Jin, Wang, ECCV 2022, https://arxiv.org/abs/2207.04655; the authors' code: https://github.com/jcwang123/FedLC

    paper                              here                                  lives
    shared network                     state["model"]                        server; averaged with equal weights
    segmentation head of site k        model.head, state["heads"][k]         client; the server keeps and tells the last
    calibration head                   model.calibration                     client, between rounds; never sent
    raw site embedding, a one-hot      selection_of(model).site              client
    personalised channel selection     ChannelSelection                      part of the shared network
    disagreement-aware map             disagreement, peaks, gaussian_spots   client
    contrastive term, alpha            ChannelSelection.contrast, contrast   client

Not to be confused with FedLC, which calibrates logits. In each epoch the first `head_steps` batches train the heads and
the others train all but the segmentation head (code). The calibration head learns in both, from features and maps that
pass no gradient on, and its output is the prediction.

Departures:
- The gates are at the end of the encoder, as in the paper, in nets that have one (unet, unetpp, resunet). In others
  they act on the features before the head. They have at least 4 hidden numbers.
- Probabilities are those of a softmax, where the code has a sigmoid for each class. There is a map for every class but
  the background. Nets have BatchNorm, where the code has instance norm; while heads alone are trained it rests.
- A site compares the head it has now with the last that the server got of each other site; in the code all are as of
  the beginning of the round, its own, too. In round 1 no head is known and nothing is uncertain; in the code, random
  heads disagree. One site alone has no such map, either.
- In the code bells around uncertain points add up without bound, and predictions are summed under the same bell, which
  multiplies features by more than 200. Here the former are at most 1, and the latter a weighted mean.
- Where an epoch has fewer than 2 * head_steps batches, half of it trains the heads: with 10 of 10 the body would never
  be trained. Where it has one batch, and with head_steps = 0, everything is trained at once.
- Both losses are added up and share a step of the optimiser, where the code takes two. Each part of each epoch has an
  optimiser of its own (the authors' rounds are one epoch).
- The contrastive term compares the gates of one forward pass; the code has two other versions, with a weight of 0.
- A site that has not taken part yet predicts with the shared network and initial heads of its own.
- The plugin ft tunes what leads to the segmentation head, and not the calibration head.
- What it costs in privacy is more than in FedRep: every site gets the segmentation head of every other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, ClassVar, cast

from annotated_types import Ge, Interval
from torch import Tensor, nn

from crossward.core import select
from crossward.core.disclosure import WEIGHTS, Disclosure, DisclosureKind, Made
from crossward.core.method import Method, RoundContext, View
from crossward.core.net import Net, NetSpec
from crossward.core.samples import Batch
from crossward.core.select import Select
from crossward.core.site import Out, Predictor, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights, mean
from crossward.errors import ConfigError
from crossward.methods.lc_fed.calibration import (
    ChannelSelection,
    frozen_head,
    record_input,
    selection_of,
    with_calibration,
)

SITE_VECTOR = Select(lambda e: isinstance(e.owner, ChannelSelection) and not e.is_parameter, "site vector")
HEADS = select.head | select.under("calibration")


@dataclass(frozen=True)
class LCFed(Method):
    shared: ClassVar[Select] = ~(HEADS | SITE_VECTOR)
    tasks: ClassVar[tuple[str, ...]] = ("segmentation",)
    discloses: ClassVar[Mapping[str, Disclosure]] = {
        "model": WEIGHTS,
        "head": Disclosure(
            DisclosureKind.PERSONAL_WEIGHTS,
            "weights of the site's own segmentation head, for all sites",
            made=Made.WEIGHTS,
        ),
    }
    server_needs: ClassVar[str] = "it hands the head of each site to the others"
    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "adam", "lr": 1e-3, "batch_size": 6, "epochs": 1, "keep_state": True,
    }  # fmt: skip

    head_steps: Annotated[int, Ge(0)] = 10  # batches of an epoch that train the heads alone, but at most half of it
    contrast: Annotated[float, Ge(0)] = 0.0  # alpha: how strongly the gates of sites are kept apart
    radius: Annotated[int, Ge(1)] = 15  # pixels: an uncertain point is the highest in a square of 2 radius + 1
    threshold: Annotated[float, Interval(ge=0, lt=1)] = 0.2  # of the highest disagreement in an image; less is none

    # both halves -----------------------------------------------------------------------------------------------------
    def build(self, net: Net, spec: NetSpec) -> Net:
        if not spec.sites:
            raise ConfigError("LC-Fed must know how many sites there are, and was not told")
        return with_calibration(net, spec, radius=self.radius, threshold=self.threshold)

    # server half -----------------------------------------------------------------------------------------------------
    def start(self, ctx: RoundContext) -> Tree:
        return super().start(ctx) | {"heads": {}}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        averaged = mean(reply["model"] for reply in replies.values())
        heads = {str(k): reply["head"] for k, reply in replies.items()}
        return {"model": Weights({**state["model"], **averaged}), "heads": state["heads"] | heads}

    # client half -----------------------------------------------------------------------------------------------------
    def train(self, site: Site, down: Tree) -> Tree:
        others = self._load(site, down)
        with record_input(selection_of(site.model)) as inputs:
            self._alternate(site, self._loss(site, others, inputs))
        head = Weights.of(site.model.head, select.parameters)
        return {"model": Weights.of(site.model, self.returns), "head": head}

    def predictor(self, site: Site, down: Tree, view: View = "local") -> Predictor:
        others = self._load(site, down)

        def predict(x: Tensor) -> Tensor:
            z = site.model.features(x)
            return calibrated_logits(site.model, z, site.model.head(z), others)

        return predict

    def _load(self, site: Site, down: Tree) -> list[nn.Module]:
        """Write what was sent into the network, and return the heads of the other sites."""
        selection = selection_of(site.model)
        if "model" in down:  # without, the site kept a network that has its site set
            down["model"].into(site.model)
            selection.set_site(site.id)
        others = [w for k, w in down["heads"].items() if k != str(selection.site_number)]
        return [frozen_head(site.model.head, w) for w in others]

    def _loss(self, site: Site, others: list[nn.Module], inputs: list[Tensor]) -> Callable[[Out], Tensor]:
        def loss(out: Out) -> Tensor:
            logits = calibrated_logits(site.model, out.z.detach(), out.logits.detach(), others)
            value = site.loss(out.logits, out.y) + site.loss(logits, out.y)
            if self.contrast:
                value = value - self.contrast * selection_of(site.model).contrast(inputs[0])
            return value

        return loss

    def _alternate(self, site: Site, loss: Callable[[Out], Tensor]) -> None:
        steps = min(self.head_steps, site.train.batch_count(site.training.batch_size) // 2)
        if steps < 1:
            site.fit(loss)
            return
        for epoch in range(site.training.epochs):
            batches_left = epoch_batches(site, epoch)
            site.fit(loss, params=HEADS, batches=islice(batches_left, steps))
            site.fit(loss, params=~select.head, batches=batches_left)


def calibrated_logits(model: nn.Module, z: Tensor, logits: Tensor, others: list[nn.Module]) -> Tensor:
    """What the calibration head makes of the features, of the logits of the site's own head, and of other heads."""
    calibration = cast(nn.Module, model.calibration)
    return cast(Tensor, calibration(z, logits, (head(z) for head in others)))


def epoch_batches(site: Site, epoch: int) -> Iterator[Batch]:
    """The batches of one epoch, at its learning rate."""
    for batch in site.batches(epochs=1):
        site.epoch = epoch
        yield batch
