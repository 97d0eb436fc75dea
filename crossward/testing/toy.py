"""A tiny heterogeneous federation that trains in a fraction of a second: 8-pixel images, three classes, four sites."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.concepts import Concepts
from crossward.core.method import Method
from crossward.core.net import Net
from crossward.core.plugin import Plugin
from crossward.core.training import Training
from crossward.data.collection import Collection
from crossward.data.federation import Federation, Split
from crossward.runs.architectures import NetFactory
from crossward.runs.sites import RunSites
from crossward.tasks import task as make_task

CLASSES = ("round", "square", "cross")
SIDE = 8


def classifier() -> Net:
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Tanh()
    )
    return Net(body, nn.Linear(16, len(CLASSES)), width=16)


def segmenter() -> Net:
    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 1))
    return Net(body, nn.Conv2d(5, len(CLASSES), 1), width=5)


def other_classifier() -> Net:
    """Another body, with as many features."""
    body = nn.Sequential(nn.Conv2d(1, 4, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.BatchNorm1d(16))
    return Net(body, nn.Linear(16, len(CLASSES)), width=16)


def other_segmenter() -> Net:
    body = nn.Sequential(nn.Conv2d(1, 5, 5, padding=2), nn.BatchNorm2d(5), nn.Tanh())
    return Net(body, nn.Conv2d(5, len(CLASSES), 1), width=5)


def alternating_nets(task: str, sites: int) -> tuple[NetFactory, ...]:
    """A network for each site, of two architectures in turn."""
    nets = (segmenter, other_segmenter) if task == "segmentation" else (classifier, other_classifier)
    return tuple(nets[k % 2] for k in range(sites))


def linear() -> Net:
    """Softmax regression: few enough parts to work out by hand, and no BatchNorm."""
    return Net(nn.Flatten(), nn.Linear(SIDE * SIDE, len(CLASSES)), width=SIDE * SIDE)


def concepts() -> Concepts:
    """Random text embeddings: six numbers for each of four prompts of a class."""
    embeddings = torch.randn(len(CLASSES), 4, 6, generator=torch.Generator().manual_seed(0))
    return Concepts.of(F.normalize(embeddings, dim=2))


@dataclass(frozen=True)
class Toy:
    """Describes the federation; `run_sites` makes it."""

    task: str = "classification"
    sizes: tuple[tuple[int, int, int], ...] = ((12, 4, 4), (20, 4, 4), (9, 3, 5), (16, 4, 4))  # train, val, test
    common: int = 6  # the federation's own test images
    public: int = 6
    absent: bool = True  # leaves class 2 out of the first site's training set
    unseen: bool = False  # leaves class 2 out of the whole federation
    seed: int = 0

    def collection(self) -> Collection:
        n = sum(map(sum, self.sizes)) + self.common + self.public
        rng = torch.Generator().manual_seed(self.seed)
        labels = torch.arange(n) % len(CLASSES)
        if self.absent:
            first = labels[: self.sizes[0][0]]
            first[first == 2] = 0
        if self.unseen:
            labels[labels == 2] = 0
        images = torch.randint(0, 120, (n, SIDE, SIDE, 1), generator=rng)
        stripes = (torch.arange(SIDE) % 3).eq(0)
        images[..., 0] += labels[:, None, None] * 40 * stripes
        targets = labels
        if self.task == "segmentation":
            targets = self._maps(images)
        elif self.task == "multi-label":
            targets = self._several_labels(labels)
        ids = tuple(f"toy/{i}" for i in range(n))
        return Collection("toy", self.task, CLASSES, images.to(torch.uint8), targets, ids, ids)

    def _several_labels(self, labels: Tensor) -> Tensor:
        """Every fourth image has also the next class, and every fifth has none."""
        several = F.one_hot(labels, len(CLASSES)).to(torch.uint8)
        several[::4] |= several[::4].roll(1, 1)
        several[::5] = 0
        return several

    def _maps(self, images: Tensor) -> Tensor:
        return (images[..., 0] // 67).clamp(max=1 if self.unseen else 2).to(torch.uint8)

    def federation(self) -> Federation:
        at = 0
        sites = []
        for k, sizes in enumerate(self.sizes):
            rows = [torch.arange(at + sum(sizes[:p]), at + sum(sizes[: p + 1])) for p in range(3)]
            sites.append(Split(f"site-{k}", *rows))
            at += sum(sizes)
        none = torch.zeros(0, dtype=torch.int64)
        server = Split("server", none, none, torch.arange(at, at + self.common))
        public = torch.arange(at + self.common, at + self.common + self.public)
        return Federation(self.collection(), tuple(sites), server, public, {})

    def run_sites(
        self,
        method: Method,
        plugins: tuple[Plugin, ...] = (),
        training: Training | None = None,
        net: NetFactory | tuple[NetFactory, ...] | None = None,
    ) -> RunSites:
        return RunSites(
            self.federation(),
            method,
            make_task(self.task, CLASSES),
            net or (segmenter if self.task == "segmentation" else classifier),
            training or Training(epochs=2, batch_size=4, lr=0.05),
            plugins,
            seed=self.seed,
            text=concepts(),
        )
