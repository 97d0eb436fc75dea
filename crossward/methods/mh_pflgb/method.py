"""MH-pFLGB: Model Heterogeneous personalized Federated Learning via Global Bypass for Medical Image Analysis.
Xie, Lin, Xu, Luan, Zeng, Qian, Li, Fang, Shen, Wu, MICCAI 2024, https://arxiv.org/abs/2407.00474, Eqs. 1-6.

    paper              here                              lives
    B_i, H_i           body and head of site.model       client, between rounds; any architecture
    B_g, H_g           model.bypass.body, bypass.head    server: state["model"]; all that travels
    f_{g->l}, f_{l->g} model.to_local, model.to_global   client, between rounds
    x_l, x_g, a, b     fusion.py                         client
    x_lf, y^l          out.z, out.logits                 client
    y^g                model.global_logits(out.z)        client
    lambda^l_loc, lambda^g_glob    weight; the others are 1 - weight
    |D_i|              reply["n"]                        sent

Departures:
- The layers of the bypass are in a supplement that is not public: three convolutions that halve the image, and two
  fully connected layers, or a small decoder, come to the parameters that the paper counts.
- Who trains the adapters f is not said: the local stage does. They stay at their site.
- Frozen parts run in eval mode: neither their weights nor their BatchNorm statistics change.
- Where body and head part in segmentation is not said. Ours part where the network does: the body is all but the last
  1 x 1 convolution, decoder and skip connections included, so that the fused features are the maps which that layer
  sees, and those of the bypass, whose body is an encoder as in the paper, are enlarged to their size.
- In segmentation the weights a, b are computed from feature maps averaged over their pixels, one for each channel.
- Of the train.epochs of a round (paper: 5) bypass_epochs train the bypass, and the others, but at least one, the
  site's network. The rate of the bypass is a tenth of train.lr, as the paper's 1e-5 and 1e-4. Its optimiser is not
  said; ours is Adam (`[train] recipe = "paper"`).
- "w/o features weighted fusion" is fusion = "add". Without the global head (head = false) the terms of y^g are left
  out, and without the global body (body = false) x_lf is x_l.
- norm = "group" gives the bypass group norm for BatchNorm, with groups of 8 channels, so that it can be trained with
  differential privacy for images and patients; both stages then count, since the second learns from the first.
- A site that has not taken part yet predicts with its initial network and the bypass of the federation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Interval
from torch import Tensor

from crossward.core.method import Method, Need
from crossward.core.net import Net, NetSpec
from crossward.core.select import Select, under
from crossward.core.site import Out, Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.methods.mh_pflgb.bypass import Norm
from crossward.methods.mh_pflgb.fusion import FusedNet, Rule, with_bypass

BYPASS = under("bypass")


@dataclass(frozen=True)
class MHpFLGB(Method):
    shared: ClassVar[Select] = BYPASS
    needs: ClassVar[frozenset[Need]] = frozenset()
    recipe: ClassVar[Mapping[str, Any]] = {"optimizer": "adam", "lr": 1e-4, "batch_size": 8, "epochs": 5}

    weight: Annotated[float, Interval(ge=0, le=1)] = 0.9  # of the network that a stage trains; the other has the rest
    bypass_epochs: Annotated[int, Ge(0)] = 1  # of train.epochs; 0: the bypass stays as it is
    bypass_lr: Annotated[float, Gt(0)] | None = None  # None: a tenth of train.lr
    fusion: Rule = "weighted"  # or "add": local and global features are only added
    body: bool = True  # whether the bypass has a body, whose features are fused
    head: bool = True  # whether the bypass has a head, which learns from the fused features
    norm: Norm = "batch"  # of the bypass; "group" mixes no images, as privacy needs

    def __post_init__(self) -> None:
        if not (self.body or self.head):
            raise ConfigError("mh-pflgb without body and head has no bypass", hint='The method "local" is that.')

    def build(self, net: Net, spec: NetSpec) -> Net:
        sizes = (spec.channels, spec.classes, spec.square_side("MH-pFLGB"))
        return with_bypass(net, *sizes, rule=self.fusion, body=self.body, head=self.head, norm=self.norm)

    def train(self, site: Site, down: Tree) -> Tree:
        down["model"].into(site.model)  # stage c of the last round: B_g, H_g of the federation
        local, bypass = self.losses(site)
        # stage a: B_g and H_g are frozen
        site.fit(local, params=~BYPASS, epochs=max(1, site.training.epochs - self.bypass_epochs))
        # stage b: B_i, H_i and the adapters are frozen
        if self.bypass_epochs:
            site.fit(bypass, params=BYPASS, epochs=self.bypass_epochs, lr=self.bypass_lr or site.training.lr / 10)
        return {"model": Weights.of(site.model, self.returns), "n": site.size}

    @property
    def joining(self) -> MHpFLGB:
        return replace(self, bypass_epochs=0)

    def losses(self, site: Site) -> tuple[Callable[[Out], Tensor], Callable[[Out], Tensor]]:
        """Of the two stages."""
        model = site.model
        assert isinstance(model, FusedNet)

        def on_local(out: Out) -> Tensor:
            return site.loss(out.logits, out.y)

        def on_global(out: Out) -> Tensor:
            return site.loss(model.global_logits(out.z), out.y)

        if not self.head:
            return on_local, on_local
        w = self.weight
        loss_loc = lambda out: w * on_local(out) + (1 - w) * on_global(out)  # Eq. 1
        loss_glob = lambda out: w * on_global(out) + (1 - w) * on_local(out)  # Eq. 2
        return loss_loc, loss_glob
