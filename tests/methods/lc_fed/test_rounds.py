"""LC-Fed: three rounds in plain torch, of batches that train the heads and batches that train the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.seeds import derive
from crossward.methods.lc_fed.method import LCFed
from crossward.testing.plain_rounds import (
    CLIENTS,
    STEPS,
    THREE,
    TRAINING,
    PlainPersonal,
    Values,
    check_three_rounds,
)

HEAD_STEPS, ALPHA, RADIUS, THRESHOLD = 2, 0.5, 2, 0.2
BATCH = 2  # 3, 5 and 4 batches at the sites: 1, 2 and 2 of them train the heads
METHOD = LCFed(head_steps=HEAD_STEPS, contrast=ALPHA, radius=RADIUS, threshold=THRESHOLD)
TOY = replace(THREE, task="segmentation")


class PlainLCFed(PlainPersonal):
    private = ("head.", "calibration.", "body.1.site")

    def begin(self) -> None:
        super().begin()
        self.heads: dict[int, Values] = {}
        self.new_heads: dict[int, Values] = {}
        self.rows: Iterator[Tensor] = iter(())

    # client ----------------------------------------------------------------------------------------------------------
    def fit(self, i: int, net: nn.Module) -> None:
        net.body[1].site.copy_(F.one_hot(torch.tensor(i), CLIENTS))
        rng = torch.Generator().manual_seed(derive(TOY.seed, "train", self.round, 0, i))
        for _ in range(STEPS):
            batches = torch.randperm(len(self.data[i][1]), generator=rng).split(BATCH)
            first = min(HEAD_STEPS, len(batches) // 2)
            self.rows = iter(batches)
            net.body.eval()
            self.steps(i, net, lambda name: not name.startswith("body."), count=first)
            net.body.train()
            self.steps(i, net, lambda name: not name.startswith("head."), count=len(batches) - first)

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        rows = next(self.rows)
        x, y = x[rows], y[rows]
        maps = net.body[0](x)
        own = gates(net.body[1], maps, i)
        with torch.no_grad():
            theirs = [gates(net.body[1], maps, j) for j in range(CLIENTS) if j != i]
        z = maps * own[:, :, None, None] + maps
        logits = net.head(z)
        final = self.calibrated(i, net, z.detach(), logits.detach())
        apart = torch.stack([(own - other) ** 2 for other in theirs]).mean()
        return dice(logits, y) + dice(final, y) - ALPHA * apart

    def calibrated(self, i: int, net: nn.Module, z: Tensor, logits: Tensor) -> Tensor:
        """The second head, on features weighted by where heads of other sites disagree and by what is predicted."""
        p = logits.softmax(1)[:, 1:]
        others = [F.conv2d(z, w["weight"], w["bias"]).softmax(1)[:, 1:] for j, w in self.heads.items() if j != i]
        uncertain = torch.stack([(q - p) ** 2 for q in others]).mean(0).sqrt() if others else torch.zeros_like(p)
        spots = bells(peaks(uncertain)).clamp_max(1)
        around = bells(p) / bells(torch.ones_like(p))
        weights = [*spots.unbind(1), *around.unbind(1)]
        return net.calibration.head(torch.cat([z + z * weight[:, None] for weight in weights], 1))

    def client(self, i: int) -> Values:
        """Its new head is known to others from the next round on."""
        end = super().client(i)
        self.new_heads[i] = {n.removeprefix("head."): t for n, t in self.own[i].items() if n.startswith("head.")}
        return end

    # server ----------------------------------------------------------------------------------------------------------
    def one_round(self, cohort: list[int]) -> None:
        super().one_round(cohort)
        self.heads |= self.new_heads

    def aggregate(self, ends: Mapping[int, Values]) -> None:
        self.w = self.plain_mean(ends)

    def server_items(self) -> Mapping[str, object]:
        return {"heads": {str(i): w for i, w in self.heads.items()}}


def gates(selection: nn.Module, maps: Tensor, site: int) -> Tensor:
    """(B, C): of the site's embedding beside the mean and the maximum of each channel."""
    site_vector = F.one_hot(torch.tensor(site), CLIENTS).float()
    known = selection.embed(site_vector).expand(len(maps), -1)
    pooled = (maps.mean((2, 3)), maps.flatten(2).max(2).values)
    return torch.sigmoid(sum(selection.excite(torch.cat([some, known], 1)) for some in pooled))


def dice(logits: Tensor, y: Tensor) -> Tensor:
    """1 - soft Dice of every image and class but the background."""
    p, terms = logits.softmax(1), []
    for c in range(1, logits.shape[1]):
        t = (y == c).float()
        both = (p[:, c] * t).sum((1, 2))
        terms.append(1 - (2 * both + 1e-5) / (p[:, c].sum((1, 2)) + t.sum((1, 2)) + 1e-5))
    return torch.stack(terms).mean()


def peaks(u: Tensor) -> Tensor:
    """1 where a map is the highest within the radius, and above the threshold of its maximum."""
    side = 2 * RADIUS + 1
    padded = F.pad(u, (RADIUS,) * 4, value=-1.0)
    near = padded.unfold(2, side, 1).unfold(3, side, 1).flatten(4).max(4).values
    top = u.flatten(2).max(2).values[..., None, None]
    return ((u == near) & (u > THRESHOLD * top)).float()


def bells(maps: Tensor) -> Tensor:
    """The sum of a bell of height 1 around every pixel, times that pixel."""
    away = torch.arange(-RADIUS, RADIUS + 1.0)
    bell = torch.exp(-(away[:, None] ** 2 + away**2) / (2 * (0.4 * RADIUS) ** 2))
    return torch.cat([F.conv2d(some[:, None], bell[None, None], padding=RADIUS) for some in maps.unbind(1)], 1)


def test_three_rounds():
    check_three_rounds(METHOD, (), PlainLCFed, toy=TOY, training=replace(TRAINING, batch_size=BATCH))
