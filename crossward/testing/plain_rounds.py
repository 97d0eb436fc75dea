"""Rounds of methods in plain torch: no fit of the package, no weights of the package, no plugin of it.

PlainFedAvg and PlainPersonal are what tests extend to other methods. `check_three_rounds` compares them with the
package: three rounds, two of three clients in each, a network with BatchNorm, momentum and weight decay, fits of two
steps on all images of a client. It compares what stays at the sites as well as what the server has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.method import Method
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.engines.local import LocalEngine
from crossward.runs.architectures import NetFactory
from crossward.testing.toy import CLASSES, Toy

Values = dict[str, Tensor]
LR, MOMENTUM, DECAY, STEPS, CLIENTS = 0.05, 0.9, 0.01, 2, 3
REACH = LR * (1 + (1 + MOMENTUM))  # how far two steps with a gradient of 1 move a weight
TRAINING = Training(epochs=STEPS, batch_size=64, lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
THREE = Toy(sizes=((6, 0, 0), (10, 0, 0), (8, 0, 0)), common=0)  # the first site lacks class 2
PLAN = Plan(3, seed=11, participation=0.67, evaluate_every=0)
COHORTS = [[0, 1], [1, 2], [0, 2]]


class PlainFedAvg:
    """FedAvg; the others override what differs."""

    def __init__(self, net: nn.Module, own_nets: list[nn.Module], data: list[tuple[Tensor, Tensor]]) -> None:
        self.net = net
        self.own_nets = own_nets  # as the sites begin, where parts stay with them
        self.data = data
        self.w = floats(net)
        self.round = 0
        self.begin()

    def begin(self) -> None:
        """Memories of the clients and of the server."""

    @property
    def zero(self) -> Values:
        return {name: torch.zeros_like(p) for name, p in self.net.named_parameters()}

    def counts(self, i: int) -> Tensor:
        return torch.bincount(self.data[i][1], minlength=len(CLASSES)).float()

    # client ----------------------------------------------------------------------------------------------------------
    def loss(self, i: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net(x), y)

    def corrected(self, i: int, name: str, p: Tensor, gradient: Tensor) -> Tensor:
        return gradient

    def steps(
        self,
        i: int,
        net: nn.Module,
        trained: Callable[[str], bool] = lambda name: True,
        count: int = STEPS,
        lr: float = LR,
    ) -> None:
        """SGD with momentum and weight decay; gradients are corrected before both."""
        chosen = {n: p for n, p in net.named_parameters() if p.requires_grad and trained(n)}
        velocity = {n: torch.zeros_like(p) for n, p in chosen.items()}
        for _ in range(count):
            gradients = torch.autograd.grad(self.loss(i, net, *self.data[i]), [*chosen.values()])
            with torch.no_grad():
                for (name, p), gradient in zip(chosen.items(), gradients, strict=True):
                    gradient = self.corrected(i, name, p, gradient) + DECAY * p
                    velocity[name] = MOMENTUM * velocity[name] + gradient
                    p.sub_(lr * velocity[name])

    def client(self, i: int) -> Values:
        net = self.loaded(self.w)
        self.steps(i, net)
        return floats(net)

    def loaded(self, values: Values) -> nn.Module:
        net = deepcopy(self.net)
        net.load_state_dict(values, strict=False)
        return net.train()

    # server ----------------------------------------------------------------------------------------------------------
    def one_round(self, cohort: list[int]) -> None:
        self.aggregate({i: self.client(i) for i in cohort})
        self.round += 1

    def aggregate(self, ends: Mapping[int, Values]) -> None:
        self.w = self.w | self.weighted(ends)

    def weighted(self, ends: Mapping[int, Values]) -> Values:
        total = sum(len(self.data[i][1]) for i in ends)
        return weighted_sum([(len(self.data[i][1]) / total, end) for i, end in ends.items()])

    def plain_mean(self, ends: Mapping[int, Values]) -> Values:
        return weighted_sum([(1 / len(ends), end) for end in ends.values()])

    def server_items(self) -> Mapping[str, object]:
        """What the server has beside the model: tensors, and mappings of them."""
        return {}

    def memories(self) -> Mapping[int, Mapping[str, object]]:
        """What some clients remember, by the names that the method has for it."""
        return {}


def floats(net: nn.Module) -> Values:
    return {n: t.detach().clone() for n, t in net.state_dict().items() if t.is_floating_point()}


def weighted_sum(parts: Sequence[tuple[float, Values]]) -> Values:
    return {name: torch.stack([share * values[name] for share, values in parts]).sum(0) for name in parts[0][1]}


class PlainPersonal(PlainFedAvg):
    """With parts that stay: `private` begins their names. With all of them it is training alone."""

    private: str | tuple[str, ...] = ""

    def begin(self) -> None:
        self.own = [{n: t for n, t in floats(net).items() if n.startswith(self.private)} for net in self.own_nets]
        self.w = {n: t for n, t in self.w.items() if not n.startswith(self.private)}
        self.taken: set[int] = set()

    def client(self, i: int) -> Values:
        net = self.loaded(self.w | self.own[i])
        self.fit(i, net)
        self.own[i] = {n: floats(net)[n] for n in self.own[i]}
        self.taken.add(i)
        return {n: t for n, t in floats(net).items() if n in self.w}

    def fit(self, i: int, net: nn.Module) -> None:
        self.steps(i, net)

    def memories(self) -> Mapping[int, Mapping[str, object]]:
        return {i: {"_personal": self.own[i]} for i in self.taken}


def check_three_rounds(
    method: Method,
    plugins: tuple[Plugin, ...],
    plain: type[PlainFedAvg],
    toy: Toy = THREE,
    training: Training = TRAINING,
    net: NetFactory | tuple[NetFactory, ...] | None = None,
) -> None:
    """`toy` has three sites. With another `training`, the plain version draws its batches itself. `net`: of all sites,
    or of each; None: toy.classifier."""
    run_sites = toy.run_sites(method, plugins, training, net)
    sites = [run_sites.open(i, 0, {}, fresh=True) for i in range(CLIENTS)]
    data = [site.train.take(site.train.index) for site in sites]
    expected = plain(run_sites.server(0).new_net(), [deepcopy(site.model) for site in sites], data)
    for cohort in COHORTS:
        expected.one_round(cohort)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, PLAN).state
    assert_close(state.get("model", {}), expected.w)
    for item, value in expected.server_items().items():
        assert_close(state[item], value)
    for i, memory in expected.memories().items():
        for item, values in memory.items():
            assert_close(engine.memory[i][item], values)


def assert_close(found: object, expected: object) -> None:
    """Tensors, or trees of them with the same names."""
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
