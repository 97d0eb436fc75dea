"""FedNPR and FedNPR-Per: FedAvg and a personal head with bsm and npr to the bit, their papers' settings, and rounds by
hand."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core import select
from crossward.core.method import Method
from crossward.core.run import Plan, run
from crossward.core.select import Select
from crossward.core.training import Training
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.fednpr import FedNPR
from crossward.methods.fednpr_per import FedNPRPer
from crossward.plugins.bsm import Bsm
from crossward.plugins.npr import Npr
from crossward.testing.short_runs import assert_same, run_to_end
from crossward.testing.toy import CLASSES, Toy

TRAINING = Training(epochs=2, batch_size=4, optimizer="adam", lr=0.01, keep_state=True)


@dataclass(frozen=True)
class PersonalHead(Method):
    shared: ClassVar[Select] = select.body


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize(
    ("method", "host"), [(FedNPR, FedAvg()), (FedNPRPer, PersonalHead())], ids=["fednpr", "fednpr-per"]
)
def test_it_is_its_host_with_two_plugins(method: type[FedNPR], host: Method, task: str):
    toy, options = Toy(task, sizes=((6, 2, 0), (9, 2, 0)), common=0), {"k": 2, "weight": 0.5, "layernorm": False}
    whole = toy.run_sites(method(**options), training=TRAINING)
    plugged = toy.run_sites(host, (Bsm(), Npr(**options)), TRAINING)
    assert_same(run_to_end(whole, LocalEngine(whole)), run_to_end(plugged, LocalEngine(plugged)))


def test_only_the_personal_one_keeps_its_head_at_home():
    net = Toy().run_sites(FedNPR()).server(0).new_net()
    assert not (~FedNPR().travels).names(net)
    assert (~FedNPRPer().travels).names(net) == ["head.weight", "head.bias"]


def test_prototypes_stay_in_memory():
    run_sites = Toy(common=0).run_sites(FedNPRPer(), training=TRAINING)
    end = run_to_end(run_sites, LocalEngine(run_sites))
    assert "npr" not in end["state"]
    assert end["memory"]["0"]["npr"].shape == (3, 4, 16)


def test_the_paper_trains_with_adam_and_two_drops():
    paper = Training(**FedNPR.recipe)
    assert paper.keep_state
    assert paper.optimizer == "adam"
    assert [paper.rate(r, 0) for r in (58, 59, 68, 69)] == pytest.approx([1e-3, 1e-4, 1e-4, 1e-5])  # rounds 60 and 70


# three rounds in plain torch: two of three clients, BatchNorm, momentum, weight decay ---------------------------------
LR, MOMENTUM, DECAY, STEPS = 0.05, 0.9, 0.01, 2
K, WEIGHT, EPSILON, ITERATIONS = 2, 0.7, 0.3, 2
THREE = Toy(sizes=((6, 0, 0), (10, 0, 0), (8, 0, 0)), common=0)  # the first site lacks class 2
PLAN = Plan(3, seed=11, participation=0.67, evaluate_every=0)
COHORTS = [[0, 1], [1, 2], [0, 2]]


def plain_prototypes(net: nn.Module, x: Tensor, y: Tensor, before: Tensor) -> Tensor:
    """(C, K, D) Eqs. 1 and 2, of the network that was sent, in eval mode; a class of fewer than two keeps its own."""
    with torch.no_grad():
        z = net.eval().features(x)
    net.train()
    z = z / z.norm(dim=1, keepdim=True)
    after = before.clone()
    for c in range(len(before)):
        rows = z[y == c]
        k = min(K, len(rows))
        if len(rows) < 2:
            continue
        q = torch.exp(rows @ before[c, :k].T / EPSILON)
        for _ in range(ITERATIONS):
            q = q / q.sum(0, keepdim=True) / k
            q = q / q.sum(1, keepdim=True) / len(rows)
        for j in range(k):
            members = rows[q.argmax(1) == j]
            if len(members):
                after[c, j] = members.mean(0) / members.mean(0).norm()
    return after


def plain_loss(net: nn.Module, x: Tensor, y: Tensor, prototypes: Tensor, used: list[int]) -> Tensor:
    """Eq. 5: the balanced softmax, and the cross entropy of the nearest prototypes' normalised scores."""
    z = net.features(x)
    shares = torch.bincount(y, minlength=len(prototypes)).float() / len(y)
    unit = z / z.norm(dim=1, keepdim=True)
    scores = torch.stack([(unit @ prototypes[c, : used[c]].T).amax(1) for c in range(len(prototypes))], 1)
    centred = scores - scores.mean(1, keepdim=True)
    normal = centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt()
    return F.cross_entropy(net.head(z) + torch.log(shares + 1e-9), y) + WEIGHT * F.cross_entropy(normal, y)


def plain_fit(net: nn.Module, x: Tensor, y: Tensor, prototypes: Tensor) -> None:
    counts = torch.bincount(y, minlength=len(prototypes)).tolist()
    used = [min(K, n) if n > 1 else K for n in counts]  # a class of one sample or none keeps all of its random ones
    velocity = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for _ in range(STEPS):
        chosen = dict(net.named_parameters())
        gradients = torch.autograd.grad(plain_loss(net, x, y, prototypes, used), [*chosen.values()])
        with torch.no_grad():
            for (name, p), gradient in zip(chosen.items(), gradients, strict=True):
                velocity[name] = MOMENTUM * velocity[name] + gradient + DECAY * p
                p -= LR * velocity[name]


def floats(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items() if value.is_floating_point()}


@pytest.mark.parametrize("kind", [FedNPR, FedNPRPer])
def test_three_rounds_in_plain_torch(kind: type[FedNPR]):
    method = kind(k=K, weight=WEIGHT, epsilon=EPSILON, iterations=ITERATIONS)
    training = Training(epochs=STEPS, batch_size=64, lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    run_sites = THREE.run_sites(method, (), training)
    sites = [run_sites.open(i, 0, {}, fresh=True) for i in range(3)]
    data = [site.train.take(site.train.index) for site in sites]
    nets = [deepcopy(site.model) for site in sites]
    own_head = kind is FedNPRPer
    shared = {
        n: t for n, t in floats(run_sites.server(0).new_net()).items() if not (own_head and n.startswith("head."))
    }
    shape = (len(CLASSES), K, nets[0].width)
    kept = [F.normalize(torch.randn(shape, generator=torch.Generator().manual_seed(i)), dim=2) for i in range(3)]
    engine = LocalEngine(run_sites)
    for i in range(3):
        engine.memory[i] = {"npr": kept[i].clone()}  # the first prototypes, which else are random
    for cohort in COHORTS:
        ends = {}
        for i in cohort:
            nets[i].load_state_dict(shared, strict=False)
            kept[i] = plain_prototypes(nets[i], *data[i], kept[i])
            plain_fit(nets[i], *data[i], kept[i])
            ends[i] = floats(nets[i])
        total = sum(len(data[i][1]) for i in cohort)
        shared = {n: sum(len(data[i][1]) / total * ends[i][n] for i in cohort) for n in shared}
    state = run(run_sites, engine, PLAN).state
    assert {*state["model"]} == {*shared}
    for name, values in shared.items():
        torch.testing.assert_close(state["model"][name], values, atol=1e-5, rtol=0)
    for i in range(3):
        torch.testing.assert_close(engine.memory[i]["npr"], kept[i], atol=1e-5, rtol=0)
        for name, values in engine.memory[i].get("_personal", {}).items():
            torch.testing.assert_close(values, floats(nets[i])[name], atol=1e-5, rtol=0)
    assert ("_personal" in engine.memory[0]) == own_head
