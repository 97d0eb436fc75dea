"""Three rounds of FedDF and pFedDF in plain torch, of one architecture and of two.

Adam makes steps of full length along gradients however small. A bias before BatchNorm, whose gradient is 0 but for
rounding, would be moved by chance: the networks here have none. (toy.other_classifier, whose BatchNorm is behind the
pooling, has others of that kind.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from crossward.core.method import PERSONAL
from crossward.core.net import Net
from crossward.core.seeds import derive
from crossward.methods.feddf import FedDF
from crossward.methods.pfeddf import PFedDF
from crossward.testing.plain_rounds import CLIENTS, THREE, PlainFedAvg, Values, check_three_rounds, floats, weighted_sum
from crossward.testing.toy import CLASSES

torch.set_num_threads(1)
STEPS, LR, BATCH = 3, 0.005, 4  # of six public images: a batch of four and one of two, then another pass


def classifier() -> Net:
    """toy.classifier without the bias before BatchNorm."""
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Tanh(),
    )
    return Net(body, nn.Linear(16, len(CLASSES)), width=16)


def other_classifier() -> Net:
    body = nn.Sequential(
        nn.Conv2d(1, 5, 2, 2, bias=False), nn.BatchNorm2d(5), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    return Net(body, nn.Linear(20, len(CLASSES)), width=20)


class PlainFedDF(PlainFedAvg):
    """`w` is the model of the only architecture, or those of all by name."""

    nets = (classifier,) * CLIENTS

    def begin(self) -> None:
        self.names = [make.__name__ for make in self.nets]
        server = THREE.run_sites(FedDF(), net=self.nets).server(0)
        self.public, _ = server.public.take(server.public.index)
        self.of_name = {name: server.new_net(name) for name in self.names}
        self.models = {name: floats(net) for name, net in self.of_name.items()}
        self.ends: dict[int, Values] = {}  # of each site's last training

    def network(self, name: str, values: Values) -> nn.Module:
        net = deepcopy(self.of_name[name])
        net.load_state_dict(values, strict=False)
        return net

    def client(self, i: int) -> Values:
        self.ends[i] = self.trained(i, self.models[self.names[i]])
        return self.ends[i]

    def trained(self, i: int, start: Values) -> Values:
        net = self.network(self.names[i], start).train()
        self.steps(i, net)
        return floats(net)

    def teacher(self, i: int, end: Values) -> nn.Module:
        return self.network(self.names[i], end).eval()

    def aggregate(self, ends: Mapping[int, Values]) -> None:
        """Algorithm 3: each architecture's average is taught by all. One that nobody here has stays."""
        with torch.no_grad():
            logits = sum(self.teacher(i, end)(self.public) for i, end in ends.items()) / len(ends)
        for name in {self.names[i] for i in ends}:
            members = [i for i in ends if self.names[i] == name]
            total = sum(len(self.data[i][1]) for i in members)
            average = weighted_sum([(len(self.data[i][1]) / total, ends[i]) for i in members])
            self.models[name] = self.student(name, average, logits.softmax(1))
        self.w = self.models if len(self.models) > 1 else self.models[name]

    def student(self, name: str, start: Values, target: Tensor) -> Values:
        """Adam, at a rate that falls as half a wave of the cosine; BatchNorm learns from the public images."""
        net = self.network(name, start).train()
        adam = torch.optim.Adam(net.parameters(), lr=LR)
        for step, rows in enumerate(self.public_batches(name)):
            adam.param_groups[0]["lr"] = LR * (1 + math.cos(math.pi * step / STEPS)) / 2
            adam.zero_grad()
            q = net(self.public[rows]).softmax(1)
            (target[rows] * (target[rows].log() - q.log())).sum(1).mean().backward()
            adam.step()
        return floats(net)

    def public_batches(self, name: str) -> list[Tensor]:
        """Two passes in the orders that the package draws."""
        seed = derive(THREE.seed, "server", self.round)
        rng = torch.Generator().manual_seed(derive(seed, name))
        batches = [rows for _ in range(2) for rows in torch.randperm(len(self.public), generator=rng).split(BATCH)]
        return batches[:STEPS]


class PlainTwoArchitectures(PlainFedDF):
    """In the last round nobody has the second."""

    nets = (classifier, other_classifier, classifier)


class PlainOwnStatistics(PlainFedDF):
    """BatchNorm statistics stay at the sites. Those of a teacher are measured on the public images."""

    def begin(self) -> None:
        super().begin()
        first = self.models[self.names[0]]
        self.own = {i: {n: t for n, t in first.items() if "running" in n} for i in range(CLIENTS)}
        self.models = {self.names[0]: without_statistics(first)}
        self.taken: set[int] = set()

    def client(self, i: int) -> Values:
        end = self.trained(i, self.models[self.names[i]] | self.own[i])
        self.own[i] = {n: end[n] for n in self.own[i]}
        self.taken.add(i)
        return without_statistics(end)

    def teacher(self, i: int, end: Values) -> nn.Module:
        net = super().teacher(i, end)
        maps = net.body[0](self.public).transpose(0, 1).flatten(1)  # (channels, images and pixels)
        net.body[1].running_mean.copy_(maps.mean(1))
        net.body[1].running_var.copy_((maps - maps.mean(1, keepdim=True)).square().mean(1))
        return net

    def student(self, name: str, start: Values, target: Tensor) -> Values:
        return without_statistics(super().student(name, start, target))

    def memories(self) -> Mapping[int, Mapping[str, object]]:
        return {i: {PERSONAL: self.own[i]} for i in self.taken}


def without_statistics(values: Values) -> Values:
    return {n: t for n, t in values.items() if "running" not in n}


class PlainPFedDF(PlainFedDF):
    """What a site predicts with, after its last training, which began with the fused model."""

    def memories(self) -> Mapping[int, Mapping[str, object]]:
        return {i: {"own": end} for i, end in self.ends.items()}


class PlainPersonalArchitectures(PlainPFedDF, PlainTwoArchitectures):
    pass


OPTIONS = {"distil_steps": STEPS, "distil_lr": LR, "distil_batch": BATCH}
CASES = {
    "feddf": (FedDF(**OPTIONS), PlainFedDF),
    "feddf, two architectures": (FedDF(**OPTIONS), PlainTwoArchitectures),
    "feddf, own statistics": (FedDF(**OPTIONS, buffers="local"), PlainOwnStatistics),
    "pfeddf": (PFedDF(**OPTIONS), PlainPFedDF),
    "pfeddf, two architectures": (PFedDF(**OPTIONS), PlainPersonalArchitectures),
}


@pytest.mark.parametrize("name", CASES)
def test_three_rounds(name: str):
    method, plain = CASES[name]
    check_three_rounds(method, (), plain, net=plain.nets)
