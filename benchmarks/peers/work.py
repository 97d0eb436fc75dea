"""The work that every contestant does: the same federated training. Of other packages it needs torch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from crossward import nets
from crossward.core.net import Net
from crossward.core.seeds import derive, seeded

SEED = 0
LR = 0.01
MEAN, STD = 0.5, 0.25
CLASSES = 8


@dataclass(frozen=True)
class Work:
    """FedAvg over clients of random images, one local epoch of plain SGD in a round."""

    make: Callable[[], nn.Module]
    side: int
    channels: int
    images: int  # of each client
    batch: int
    clients: int = 10

    def net(self) -> nn.Module:
        """With the initial weights that crossward's server draws from the same seed."""
        with seeded(derive(SEED, "network", -1)):
            net = self.make()
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def batches(self, round: int, client: int) -> tuple[Tensor, ...]:
        """The rows of each batch as crossward shuffles them."""
        rng = torch.Generator().manual_seed(derive(SEED, "train", round, 0, client))
        rows: tuple[Tensor, ...] = torch.randperm(self.images, generator=rng).split(self.batch)
        return rows


@cache
def dataset(work: Work) -> tuple[Tensor, Tensor]:
    """(N, H, W, C) uint8 images and (N,) labels of all clients, one client after another."""
    rng = torch.Generator().manual_seed(SEED)
    n = work.clients * work.images
    images = torch.randint(0, 256, (n, work.side, work.side, work.channels), generator=rng, dtype=torch.uint8)
    return images, torch.randint(0, CLASSES, (n,), generator=rng)


@cache
def normalised(work: Work) -> list[tuple[Tensor, Tensor]]:
    """Each client's (n, H, W, C) floats and labels: what a loop holds that need not spare memory."""
    images, labels = dataset(work)
    # as crossward computes them, to the bit: after many rounds even a last bit shows
    floats = torch.addcmul(torch.tensor(-MEAN / STD), images.float(), torch.tensor(1 / (255 * STD)))
    return list(zip(floats.split(work.images), labels.split(work.images)))


def optimiser(parameters: Iterable[nn.Parameter], lr: float = LR) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, fused=True)


def fit(work: Work, net: nn.Module, round: int, client: int) -> None:
    """A client's local epoch, written by hand."""
    x, y = normalised(work)[client]
    sgd = optimiser(net.parameters())
    for rows in work.batches(round, client):
        sgd.zero_grad()
        logits = net(x.index_select(0, rows).permute(0, 3, 1, 2))
        cross_entropy(logits, y.index_select(0, rows)).backward()
        sgd.step()


def accuracy(work: Work, net: nn.Module, client: int) -> float:
    """A client's own images, scored."""
    x, y = normalised(work)[client]
    with torch.inference_mode():
        return float((net(x.permute(0, 3, 1, 2)).argmax(1) == y).float().mean())


def tiny() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return Net(body, nn.Linear(16, CLASSES), width=16)


def wide(width: int = 150_000) -> nn.Module:
    """44 MB of weights, and next to nothing to compute."""
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(64, width)), nn.Linear(width, CLASSES), width=width)


cnn = partial(nets.build, "cnn", channels=3, classes=CLASSES, size=28)  # a worker process can unpickle it
CNN = Work(cnn, side=28, channels=3, images=500, batch=32)  # 16 steps a client
TINY = Work(tiny, side=8, channels=1, images=32, batch=32)  # one step: what is left is a framework's own cost
WIDE = Work(wide, side=8, channels=1, images=4, batch=4, clients=8)  # one step: what is left is moving weights
SMOKE_WIDE = replace(WIDE, make=partial(wide, 4000), clients=2)
SMOKE_CNN = replace(CNN, images=8, batch=4, clients=2)  # shows that a program runs
