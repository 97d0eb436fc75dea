"""Work: the same federated training for every contestant. Needs torch only, so that the peers' environment can use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crossward import nets
from crossward.core.seeds import derive, seeded
from crossward.nets.net import Net

SEED = 0
LR = 0.01
MEAN, STD = 0.5, 0.25


@dataclass(frozen=True)
class Work:
    """FedAvg, one local epoch of plain SGD, on clients of random images."""

    make: Callable[[], nn.Module]
    side: int
    channels: int
    images: int  # of each client
    batch: int
    clients: int = 10
    classes: int = 8

    def data(self) -> tuple[Tensor, Tensor]:
        """(N, H, W, C) uint8 images and (N,) labels of all clients, one after another."""
        rng = torch.Generator().manual_seed(SEED)
        n = self.clients * self.images
        images = torch.randint(0, 256, (n, self.side, self.side, self.channels), generator=rng, dtype=torch.uint8)
        return images, torch.randint(0, self.classes, (n,), generator=rng)

    def normalised(self) -> list[tuple[Tensor, Tensor]]:
        """Each client's (n, H, W, C) floats and labels: what a loop that need not spare memory would hold."""
        images, labels = self.data()
        floats = (images.float() / 255 - MEAN) / STD
        return list(zip(floats.split(self.images), labels.split(self.images)))

    def rows(self, client: int) -> Tensor:
        return torch.arange(client * self.images, (client + 1) * self.images)

    def net(self) -> nn.Module:
        """With the initial weights that crossward's server draws from the same seed."""
        with seeded(derive(SEED, "network", -1)):
            made = self.make()
        return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def batches(self, round: int, client: int) -> tuple[Tensor, ...]:
        """Rows of each batch in the order in which crossward shuffles them."""
        rng = torch.Generator().manual_seed(derive(SEED, "train", round, 0, client))
        return torch.randperm(self.images, generator=rng).split(self.batch)


def cnn() -> nn.Module:
    return nets.build("cnn", channels=3, classes=8, size=28)


def tiny() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return Net(body, nn.Linear(16, 8), width=16)


CNN = Work(cnn, side=28, channels=3, images=500, batch=32)
TINY = Work(tiny, side=8, channels=1, images=32, batch=16)
