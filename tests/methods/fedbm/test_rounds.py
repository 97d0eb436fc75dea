"""FedBM: three rounds in plain torch, of a server that fits its generator and clients that train beside its images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.seeds import derive, seeded
from crossward.methods.fedbm.generator import Generator
from crossward.methods.fedbm.method import FedBM
from crossward.testing.plain_rounds import THREE, PlainFedAvg, Values, check_three_rounds, floats
from crossward.testing.toy import CLASSES, SIDE

K, PROMPTS, DIM = len(CLASSES), 4, 6
TAU, SYNTHETIC, ITERATIONS, BATCH, RATE, WIDTH, DIV, DIS = 4.0, 3, 2, 9, 1e-3, 0.125, 1.5, 0.25
CHUNK = 255  # images whose numbers a client draws at a time: no more than 256, in whole batches
METHOD = FedBM(
    tau=TAU,
    synthetic=SYNTHETIC,
    cycle=1,
    iterations=ITERATIONS,
    generator_batch=BATCH,
    generator_lr=RATE,
    generator_width=WIDTH,
    lambda_div=DIV,
    lambda_dis=DIS,
)


def normalised(images: Tensor) -> Tensor:
    """Pixels from 0 to 1, as the toy federation shows them to networks."""
    return (images - 0.5) / 0.25


def augmented(images: Tensor, rng: torch.Generator) -> Tensor:
    """One move by a pixel at most, over the repeated edge, and one decision to mirror for the whole batch."""
    down, right = torch.randint(3, (2,), generator=rng).tolist()
    across, over = (torch.rand(2, generator=rng) < 0.5).tolist()
    rows = [min(max(k + down - 1, 0), SIDE - 1) for k in range(SIDE)]
    columns = [min(max(k + right - 1, 0), SIDE - 1) for k in range(SIDE)]
    moved = images[:, :, rows[::-1] if over else rows]
    return normalised(moved[:, :, :, columns[::-1] if across else columns])


def alike(images: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Eq. 7: how little images of one class differ, for how much their conditions do."""
    total = torch.zeros(())
    for c in range(K):
        pairs = [*combinations((y == c).nonzero()[:, 0].tolist(), 2)]
        ratios = [(images[i] - images[j]).abs().sum() / (z[i] - z[j]).abs().sum() for i, j in pairs]
        total = total + (sum(1 / (ratio + 1e-5) for ratio in ratios) / len(pairs) if pairs else 0)
    return total / K


class PlainFedBM(PlainFedAvg):
    cycle = 1
    real_statistics = False

    def begin(self) -> None:
        e = F.normalize(torch.randn(K, PROMPTS, DIM, generator=torch.Generator().manual_seed(0)), dim=2)
        self.mu = e.mean(1)  # Eq. 2
        self.factor = (e - self.mu[:, None]) / (PROMPTS - 1) ** 0.5
        self.variance = e.var(1)
        initial = torch.Generator().manual_seed(derive(THREE.seed, "server", 0))
        with seeded(int(torch.randint(2**31, (), generator=initial))):
            self.generator = Generator(DIM, 1, SIDE, width=WIDTH)
        self.fitted = False
        self.sent: dict[int, Values] = {}
        self.taken: set[int] = set()
        self.generated: Iterator[tuple[Tensor, Tensor]] | None = None

    # both halves -----------------------------------------------------------------------------------------------------
    def bound(self, h: Tensor, y: Tensor) -> Tensor:
        """Eqs. 4 and 5 on unit features."""
        spread = 0.5 * TAU**2 * (h**2) @ self.variance.T
        return F.cross_entropy(TAU * h @ self.mu.T + spread, y) + (spread * F.one_hot(y, K)).sum(1).mean()

    def conditions(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Labels that are all alike likely, and Eq. 9 with the full covariance and 1e-4 I."""
        y = torch.randint(K, (count,), generator=rng)
        within = torch.randn(count, 1, PROMPTS, generator=rng)
        around = torch.randn(count, DIM, generator=rng)
        return y, self.mu[y] + torch.einsum("bm,bmd->bd", within[:, 0], self.factor[y]) + 0.01 * around

    # client ----------------------------------------------------------------------------------------------------------
    def client(self, i: int) -> Values:
        self.rng = torch.Generator().manual_seed(derive(THREE.seed, "train", self.round, 0, i))
        self.taken.add(i)
        self.generated = None
        if self.fitted:
            self.sent[i] = floats(self.generator)
            self.generated = self.images()
        net = self.loaded(self.w)
        self.steps(i, net)
        if self.generated and self.real_statistics:
            self.keep_statistics_of(net, self.data[i][0])
        return floats(net)

    def images(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Fresh ones for every step. The numbers come in the order in which the package draws them."""
        y, z = self.conditions(CHUNK, self.rng)
        with torch.no_grad():
            x = self.generator.eval()(z)
        for some, labels in zip(x.split(SYNTHETIC), y.split(SYNTHETIC), strict=True):
            yield augmented(some, self.rng), labels

    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Eq. 11: real and generated images in one batch."""
        order = torch.randperm(len(y), generator=self.rng)
        x, y = x[order], y[order]
        if self.generated is not None:
            x_hat, y_hat = next(self.generated)
            x, y = torch.cat([x, x_hat]), torch.cat([y, y_hat])
        return self.bound(net.body(x), y)

    def keep_statistics_of(self, net: nn.Module, x: Tensor) -> None:
        with torch.no_grad():
            seen = net.body[0][0](x)  # what the one BatchNorm layer is given
            net.body[0][1].running_mean.copy_(seen.mean((0, 2, 3)))
            net.body[0][1].running_var.copy_(seen.var((0, 2, 3), correction=0))

    # server ----------------------------------------------------------------------------------------------------------
    def aggregate(self, ends: Mapping[int, Values]) -> None:
        super().aggregate(ends)
        if (self.round + 1) % self.cycle == 0:
            self.fit_generator()
            self.fitted = True

    def fit_generator(self) -> None:
        rng = torch.Generator().manual_seed(derive(THREE.seed, "server", self.round))
        teacher = self.loaded(self.w).eval()
        optimiser = torch.optim.Adam(self.generator.train().parameters(), lr=RATE, betas=(0.5, 0.999))
        for _ in range(ITERATIONS):
            optimiser.zero_grad()
            self.generator_loss(teacher, rng).backward()
            optimiser.step()

    def generator_loss(self, teacher: nn.Module, rng: torch.Generator) -> Tensor:
        """Eq. 10; the teacher has one BatchNorm layer for Eq. 8."""
        y, z = self.conditions(BATCH, rng)
        images = self.generator(z)
        x = augmented(images, rng)
        convolution, norm = teacher.body[0][0], teacher.body[0][1]
        seen = convolution(x)
        off = (norm.running_var - seen.var((0, 2, 3), correction=0)).norm()
        off = off + (norm.running_mean - seen.mean((0, 2, 3))).norm()
        return self.bound(teacher.body(x), y) + DIV * alike(images, z, y) + DIS * off

    def server_items(self) -> Mapping[str, object]:
        text = {"mean": self.mu, "variance": self.variance, "factor": self.factor}
        return {"generator": floats(self.generator), "text": text}

    def memories(self) -> Mapping[int, Mapping[str, object]]:
        """What of the server's each client has: the generator as it was when it last took part."""
        text = self.server_items()["text"]
        got = {i: {"generator": self.sent[i]} if i in self.sent else {} for i in self.taken}
        return {i: {"server": {"text": text} | generator} for i, generator in got.items()}


class PlainEveryOtherRound(PlainFedBM):
    """A fit after round 2 alone, of which round 3 sees images."""

    cycle = 2


class PlainRealStatistics(PlainFedBM):
    real_statistics = True


CASES: dict[str, tuple[FedBM, type[PlainFedBM]]] = {
    "every round": (METHOD, PlainFedBM),
    "every other round": (replace(METHOD, cycle=2), PlainEveryOtherRound),
    "statistics of real images": (replace(METHOD, statistics="real"), PlainRealStatistics),
}


@pytest.mark.parametrize("name", CASES)
def test_three_rounds(name: str):
    method, plain = CASES[name]
    check_three_rounds(method, (), plain)
