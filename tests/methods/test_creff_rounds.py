"""CReFF: three rounds in plain torch, with classes that a round, or the federation so far, lacks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.seeds import derive
from crossward.methods.creff import CReFF
from crossward.testing.plain_rounds import PlainFedAvg, Values, check_three_rounds, floats
from crossward.testing.toy import CLASSES, Toy

FEATURES, DRAWS, DRAW_SIZE, MATCHES, EPOCHS, BATCH = 5, 3, 2, 3, 2, 4
MATCH_LR, RETRAIN_LR = 0.4, 0.3
METHOD = CReFF(
    features_per_class=FEATURES,
    draws=DRAWS,
    draw_size=DRAW_SIZE,
    match_steps=MATCHES,
    match_lr=MATCH_LR,
    retrain_epochs=EPOCHS,
    retrain_lr=RETRAIN_LR,
    retrain_batch=BATCH,
)
TOYS = {
    "nobody has class 2 before round 2": Toy(sizes=((6, 0, 0), (2, 0, 0), (8, 0, 0)), common=0),
    "nobody has class 2 in round 2": Toy(sizes=((6, 0, 0), (2, 0, 1), (2, 0, 0)), common=0, absent=False),
}
SEED = 0  # of both


class PlainCReFF(PlainFedAvg):
    """FedAvg; beside it features whose gradients are those of real ones, and a classifier trained on them alone."""

    def begin(self) -> None:
        classes, width = self.net.head.weight.shape
        rng = torch.Generator().manual_seed(derive(derive(SEED, "server", 0), "features"))
        self.v = torch.randn(classes, FEATURES, width, generator=rng)
        self.seen: set[int] = set()
        self.weight, self.bias = self.net.head.weight.detach().clone(), self.net.head.bias.detach().clone()
        self.real: dict[int, dict[int, list[Tensor]]] = {}

    def classifier_gradients(self, z: Tensor, c: int) -> list[Tensor]:
        """By autograd, and differentiable in z: of the weights, and of the bias, of the re-trained classifier."""
        held = [self.weight.clone().requires_grad_(), self.bias.clone().requires_grad_()]
        value = F.cross_entropy(F.linear(z, *held), torch.full((len(z),), c))
        return list(torch.autograd.grad(value, held, create_graph=True))

    # client ----------------------------------------------------------------------------------------------------------
    def client(self, i: int) -> Values:
        self.real[i] = self.real_gradients(i)
        return super().client(i)

    def real_gradients(self, i: int) -> dict[int, list[Tensor]]:
        """Of each class at the site, the mean over random batches; with the body that was sent, at rest."""
        rng = torch.Generator().manual_seed(derive(derive(SEED, "train", self.round, 0, i), "draws"))
        x, y = self.data[i]
        with torch.no_grad():
            z = self.loaded(self.w).eval().features(x)
        means = {}
        for c in y.unique().tolist():
            own = z[y == c]
            drawn = [own[torch.randperm(len(own), generator=rng)[:DRAW_SIZE]] for _ in range(DRAWS)]
            each = [self.classifier_gradients(some, c) for some in drawn]
            means[c] = [torch.stack(layer).mean(0).detach() for layer in zip(*each, strict=True)]
        return means

    # server ----------------------------------------------------------------------------------------------------------
    def aggregate(self, ends: Mapping[int, Values]) -> None:
        super().aggregate(ends)
        present = {c for i in ends for c in self.real[i]}
        self.v = torch.stack([self.matched(c, [*ends]) if c in present else self.v[c] for c in range(len(CLASSES))])
        self.seen |= present
        self.retrain()

    def matched(self, c: int, cohort: list[int]) -> Tensor:
        """The features of a class after steps towards the gradients of the sites that have it."""
        each = [self.real[i][c] for i in cohort if c in self.real[i]]
        of_weight, of_bias = (torch.stack(layer).mean(0) for layer in zip(*each, strict=True))
        v = self.v[c].clone()
        for _ in range(MATCHES):
            v.requires_grad_()
            rows, bias = self.classifier_gradients(v, c)
            pairs = [*zip(rows, of_weight, strict=True), (bias, of_bias)]
            apart = torch.stack([1 - (a @ b) / (a.norm() * b.norm() + 1e-6) for a, b in pairs]).sum()
            v = v.detach() - MATCH_LR * torch.autograd.grad(apart, v)[0]
        return v

    def retrain(self) -> None:
        """A fresh linear layer on the features of the classes seen so far."""
        rng = torch.Generator().manual_seed(derive(SEED, "server", self.round))
        classes, width = self.weight.shape
        bound = width**-0.5
        fresh = bound * (2 * torch.rand(classes, width + 1, generator=rng) - 1)
        layer = nn.Linear(width, classes)
        layer.load_state_dict({"weight": fresh[:, :-1], "bias": fresh[:, -1]})
        optimiser = torch.optim.SGD(layer.parameters(), lr=RETRAIN_LR)
        rows = [(self.v[c, k], c) for c in sorted(self.seen) for k in range(FEATURES)]
        for _ in range(EPOCHS):
            for some in torch.randperm(len(rows), generator=rng).split(BATCH):
                z = torch.stack([rows[row][0] for row in some.tolist()])
                y = torch.tensor([rows[row][1] for row in some.tolist()])
                optimiser.zero_grad()
                F.cross_entropy(layer(z), y).backward()
                optimiser.step()
        self.weight, self.bias = floats(layer).values()

    def server_items(self) -> Mapping[str, object]:
        seen = torch.tensor([c in self.seen for c in range(len(CLASSES))])
        return {
            "classifier": {"head.weight": self.weight, "head.bias": self.bias},
            "features": self.v,
            "seen": seen,
        }


@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_three_rounds(toy: Toy):
    check_three_rounds(METHOD, (), PlainCReFF, toy=toy)
