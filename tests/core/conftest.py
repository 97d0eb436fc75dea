"""Stand-ins small enough to work out by hand: a site that fits a line, and a federation whose replies are scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crossward.core.engine import SERVER, Job, Outcome, Payload
from crossward.core.method import Method, Server
from crossward.core.net import Net, NetSpec
from crossward.core.samples import Samples
from crossward.core.site import Site
from crossward.core.store import TreeStore
from crossward.core.training import Training
from crossward.core.tree import Tree

torch.set_num_threads(1)


@dataclass(frozen=True)
class Squares:
    """Loss: half the mean square of logit - target. Metrics: the share of predictions that equal the target."""

    name: str = "classification"
    classes: tuple[str, ...] = ("only",)
    main: str = "score"

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits[:, 0] - y).square().mean() / 2

    def prediction(self, logits: Tensor) -> Tensor:
        return logits

    def metrics(self, prediction: Tensor, y: Tensor, *, full: bool = True) -> dict[str, Any]:
        right = (prediction == y).float().mean().item() if len(y) else None
        return {"score": right, "nll": None if right is None else 1 - right, "n": len(y), "full": [float(full)]}


def as_they_are(pixels: Sequence[int], targets: Sequence[int]) -> Samples:
    """One-pixel images whose normalised value is the pixel itself: a scale of 1 / (255 * 1/255) and no shift."""
    images = torch.tensor(pixels, dtype=torch.uint8).view(-1, 1, 1, 1)
    return Samples(images, torch.tensor(targets), torch.arange(len(pixels)), (0.0,), (1 / 255,))


@pytest.fixture
def pixels() -> Callable[..., Samples]:
    return as_they_are


@pytest.fixture
def line() -> Callable[..., Site]:
    """A site whose network is logit = w x, or logit = b a x where `weights` has two."""

    def site(
        x: Sequence[int] = (1, 2), y: Sequence[int] = (3, 1), weights: Sequence[float] = (2.0,), **known: Any
    ) -> Site:
        *deep, last = (nn.Linear(1, 1, bias=False) for _ in weights)
        net = Net(nn.Sequential(nn.Flatten(), *deep), last, width=1)
        for parameter, value in zip(net.parameters(), weights, strict=True):
            nn.init.constant_(parameter, value)
        none = as_they_are((), ())
        given = {"training": Training(batch_size=8, lr=0.1), "val": none, "test": none} | known
        return Site(0, "site-0", net, Squares(), as_they_are(x, y), **given)

    return site


@dataclass
class Clinic:
    """Sites that hold targets and nothing else. `truth`: site -> split -> targets; site -1 is the server's."""

    truth: Mapping[int, Mapping[str, Sequence[int]]]
    method: Method = field(default_factory=Method)
    personal: bool = False
    remote: bool = False
    seed: int = 0
    task: Squares = field(default_factory=Squares)

    @property
    def ids(self) -> list[int]:
        return [i for i in self.truth if i != SERVER]

    def name(self, site: int) -> str:
        return "server" if site == SERVER else f"clinic-{site}"

    def work(self, site: int, step: str) -> int:
        return len(self.truth.get(site, {})) if step == "predict" else 1

    def targets(self, site: int, split: str) -> Tensor:
        return torch.tensor(self.truth[site][split])

    def server(self, round: int) -> Server:
        return Server(lambda: nn.Linear(1, 1), self.task, torch.Generator(), torch.device("cpu"), NetSpec(1, 1, 1))


class Script:
    """An engine whose replies are `reply(job, down)`: a tree, or a string that says why there is none."""

    def __init__(self, reply: Callable[[Job, Tree], Tree | str]) -> None:
        self.reply, self.memory, self.jobs = reply, TreeStore(), []

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        self.jobs += jobs
        for job in reversed(jobs):  # any order will do
            result = self.reply(job, payload(job.site) if callable(payload) else payload)
            yield Outcome(job, failure=result) if isinstance(result, str) else Outcome(job, result, losses=(1.0, 2.0))

    def close(self) -> None:
        self.memory.close()


@pytest.fixture
def clinic() -> type[Clinic]:
    return Clinic


@pytest.fixture
def script() -> type[Script]:
    return Script
