"""MOON: rounds by hand, its loss in numbers, what is frozen and what is remembered, and its reductions to FedAvg."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core import select
from crossward.core.method import answer
from crossward.core.net import Net
from crossward.core.run import Plan, run
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods import moon
from crossward.methods.fedavg import FedAvg
from crossward.methods.moon import PREVIOUS, Moon, contrast
from crossward.nets.parts.projection import with_projection
from crossward.testing.by_hand import SoftmaxRegression, regression_per_site
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.short_runs import assert_finite, assert_same, run_to_end
from crossward.testing.toy import CLASSES, SIDE, Toy, classifier, segmenter

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))  # the first site lacks the last class
PIXELS = Toy("segmentation", sizes=((3, 1, 1), (5, 2, 2)))
BOTH = pytest.mark.parametrize("toy", [TWO, PIXELS], ids=["classification", "segmentation"])
FULL_BATCH = Training(epochs=1, batch_size=64, lr=0.1)


def two_layers() -> nn.Module:
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 4)), nn.Linear(4, len(CLASSES)), width=4)


def projected_net(toy: Toy, width: int) -> Callable[[], nn.Module]:
    net = classifier if toy.task == "classification" else segmenter
    return lambda: with_projection(net(), width)


# in numbers ----------------------------------------------------------------------------------------------------------


def test_the_contrast_by_hand():
    z, other = torch.tensor([[3.0, 0]]), torch.tensor([[0.0, 2]])
    assert contrast(z, z, other, 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)))  # cosines 1 and 0
    assert contrast(z, other, z, 0.5).item() == pytest.approx(math.log(1 + math.exp(2)))
    assert contrast(z, z, -z, 0.1).item() == pytest.approx(math.log1p(math.exp(-20)), rel=1e-4)
    pair = contrast(torch.cat([z, z]), torch.cat([z, other]), torch.cat([other, z]), 1.0)
    assert pair.item() == pytest.approx((math.log(1 + math.exp(-1)) + math.log(1 + math.exp(1))) / 2)


def test_maps_are_averaged_over_their_pixels():
    z = torch.tensor([[[[5.0, 1]], [[2.0, -2]]]])  # (1, 2, 1, 2): two pixels, (5, 2) and (1, -2), mean (3, 0)
    glob, prev = torch.tensor([[[[0.0, 0]], [[1.0, 3]]]]), torch.tensor([[[[1.0, 1]], [[0.0, 0]]]])
    assert contrast(z, glob, prev, 0.5).item() == pytest.approx(math.log(1 + math.exp(2)))


def test_without_a_model_of_its_own_to_leave_behind_the_contrast_would_be_log_2_and_move_nothing():
    z, glob = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4)
    value = contrast(z, glob, glob, 0.5)
    assert value.item() == pytest.approx(math.log(2))
    value.backward()
    assert z.grad.abs().max() < 1e-7


def test_features_that_are_zero_have_a_gradient():
    z = torch.zeros(2, 3, requires_grad=True)
    contrast(z, torch.zeros(2, 3), torch.ones(2, 3), 0.5).backward()
    assert torch.isfinite(z.grad).all()


def toward(z: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """The cosines of rows, and their gradients with respect to z."""
    lengths, other = z.norm(dim=1, keepdim=True), p.norm(dim=1, keepdim=True)
    cosine = (z * p).sum(1, keepdim=True) / (lengths * other)
    return cosine, p / (lengths * other) - cosine * z / lengths.square()


@dataclass(frozen=True)
class Layers:
    """two_layers as matrices with the bias in the last column: z = x a^T, logits = z b^T."""

    a: Tensor  # (4, D + 1)
    b: Tensor  # (K, 5)

    @classmethod
    def of(cls, w: Weights) -> Layers:
        a = torch.cat([w["body.1.weight"], w["body.1.bias"][:, None]], 1)
        return cls(a.double(), torch.cat([w["head.weight"], w["head.bias"][:, None]], 1).double())

    def stepped(self, site: SoftmaxRegression, glob: Layers, prev: Layers | None, method: Moon, lr: float) -> Layers:
        z = site.x @ self.a.T
        one = torch.cat([z, torch.ones(site.n, 1)], 1)
        error = ((one @ self.b.T).softmax(1) - F.one_hot(site.y, len(CLASSES))) / site.n
        dz = error @ self.b[:, :-1]
        if prev is not None:
            near, to_glob = toward(z, site.x @ glob.a.T)
            far, to_prev = toward(z, site.x @ prev.a.T)
            slope = ((far - near) / method.tau).sigmoid() / method.tau  # of log(1 + e^s) is sigmoid(s)
            dz = dz + method.mu / site.n * slope * (to_prev - to_glob)
        return Layers(self.a - lr * dz.T @ site.x, self.b - lr * error.T @ one)


def test_three_rounds_by_hand():
    method = Moon(mu=2.0, tau=0.3, projection=0)
    run_sites = TWO.run_sites(method, training=Training(epochs=2, batch_size=64, lr=0.05), net=two_layers)
    sites = regression_per_site(run_sites)
    glob = Layers.of(Weights.of(run_sites.server(0).new_net()))
    prev: list[Layers | None] = [None, None]
    for _ in range(3):
        own = []
        for i, site in enumerate(sites):
            layers = glob
            for _ in range(2):
                layers = layers.stepped(site, glob, prev[i], method, 0.05)
            own.append(layers)
        prev = [*own]
        glob = Layers((6 * own[0].a + 10 * own[1].a) / 16, (6 * own[0].b + 10 * own[1].b) / 16)
    engine = LocalEngine(run_sites)
    result = Layers.of(run(run_sites, engine, Plan(3)).state["model"])
    torch.testing.assert_close(result.a, glob.a, atol=1e-5, rtol=0)
    torch.testing.assert_close(result.b, glob.b, atol=1e-5, rtol=0)
    for i in (0, 1):
        torch.testing.assert_close(Layers.of(engine.memory[i][PREVIOUS]).a, prev[i].a, atol=1e-5, rtol=0)
    plain = TWO.run_sites(FedAvg(), training=run_sites.training, net=two_layers)
    assert (Layers.of(run(plain, LocalEngine(plain), Plan(3)).state["model"]).a - glob.a).norm() > 1e-2


# what is frozen ------------------------------------------------------------------------------------------------------


def opened(toy: Toy, method: Moon, memory: Tree) -> tuple[Site, Weights]:
    """A site with BatchNorm statistics that are not the initial ones, and what it is sent."""
    run_sites = toy.run_sites(method, training=FULL_BATCH)
    state = run(run_sites, LocalEngine(run_sites), Plan(2, evaluate_every=0)).state
    return run_sites.open(1, 2, memory, fresh=True), state["model"]


def remembered(site: Site, model: Weights, seed: int) -> Weights:
    """A previous model whose weights are some way off."""
    rng = torch.Generator().manual_seed(seed)
    away = model.map(lambda t: t + 0.2 * torch.rand(t.shape, generator=rng))
    return Weights({**Weights.of(site.model), **away})


@BOTH
def test_the_loss_is_of_frozen_networks_in_eval_mode(toy: Toy):
    method = Moon(mu=3.0, tau=0.4, projection=6)
    site, model = opened(toy, method, {})
    previous = remembered(site, model, 0)
    x, y = site.train.take(site.train.index)
    features = []
    for weights in (model, previous):
        weights.into(site.model)
        site.model.eval()
        z = site.model.features(x).detach()
        features.append(z.mean((2, 3)) if z.ndim > 2 else z)
    model.into(site.model)
    site.model.train()
    z = site.model.features(x)
    ce, z = site.task.loss(site.model.head(z), y), z.mean((2, 3)) if z.ndim > 2 else z
    cosines = torch.stack([F.cosine_similarity(z, other) for other in features], 1)
    expected = ce + 3.0 * F.cross_entropy(cosines / 0.4, torch.zeros(len(x), dtype=torch.int64))
    site.memory[PREVIOUS] = previous
    answer(method, site, "train", {"model": model}, seed=0)
    assert site.fits[0].loss == pytest.approx(expected.item(), rel=1e-5)
    assert expected.item() - ce.item() > 0.1


@BOTH
def test_frozen_networks_leave_the_statistics_of_the_local_one_alone(toy: Toy):
    ends = []
    for mu, known in ((0.0, False), (1e-12, True)):
        site, model = opened(toy, Moon(mu=mu, projection=6), {})
        if known:
            site.memory[PREVIOUS] = remembered(site, model, 0)
        answer(Moon(mu=mu, projection=6), site, "train", {"model": model}, seed=0)
        ends.append(Weights.of(site.model))
    assert (ends[0] - ends[1]).norm() < 1e-6


# what is remembered --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_each_site_remembers_the_model_it_sent_and_sends_nothing_more_than_fedavg(buffers: str):
    run_sites = TWO.run_sites(Moon(projection=6, buffers=buffers))
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(2)).state
    last = {job.site: reply for job, reply in engine.replies if job.step == "train" and job.round == 1}
    whole = set(select.everything.names(run_sites.server(0).new_net()))
    for i, reply in last.items():
        assert set(reply) == {"model", "n"}
        previous = engine.memory[i][PREVIOUS]
        assert set(previous) == whole
        assert all(torch.equal(previous[name], reply["model"][name]) for name in reply["model"])
    assert set(state) == {"model"}
    assert (engine.memory[0][PREVIOUS] - engine.memory[1][PREVIOUS]).norm() > 0


def test_what_was_remembered_is_replaced_not_changed():
    method = Moon(projection=6)
    site, model = opened(TWO, method, {})
    old = remembered(site, model, 0)
    before = old * 1.0
    site.memory[PREVIOUS] = old
    answer(method, site, "train", {"model": model}, seed=0)
    assert (old - before).norm() == 0
    assert (site.memory[PREVIOUS] - old).norm() > 0.1


def test_a_site_that_joins_late_begins_as_fedavg():
    """The first of three misses round 1, which is FedAvg's: in round 2 it alone has nothing to be contrasted with."""
    toy, second = Toy(sizes=((6, 2, 2), (10, 2, 2), (4, 2, 2))), []
    for method, net in ((Moon(mu=5.0, projection=6), None), (FedAvg(), projected_net(TWO, 6))):
        run_sites = toy.run_sites(method, net=net)
        engine = RecordingEngine(DroppingEngine(LocalEngine(run_sites), 0, 0, "train"))
        run(run_sites, engine, Plan(2, evaluate_every=0))
        second.append([reply["model"] for job, reply in engine.replies if job.round == 1])
    apart = [float((ours - fedavgs).norm()) for ours, fedavgs in zip(*second, strict=True)]
    assert apart[0] == 0
    assert min(apart[1:]) > 1e-3


# reductions ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("width", [0, 6])
def test_with_mu_0_it_is_fedavg_to_the_bit_at_no_cost(toy: Toy, width: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(moon, "deepcopy", None)  # no frozen network is ever made
    ends = []
    for method, net in ((Moon(mu=0.0, projection=width), None), (FedAvg(), projected_net(toy, width))):
        run_sites = toy.run_sites(method, net=net)
        ends.append(run_to_end(run_sites, LocalEngine(run_sites)))
    assert_same(*ends)
    assert all(not memory for memory in ends[0]["memory"].values())


@BOTH
def test_the_first_round_is_fedavg_to_the_bit_at_no_cost(toy: Toy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(moon, "deepcopy", None)
    states = []
    for method, net in ((Moon(mu=5.0), None), (FedAvg(), projected_net(toy, 256))):
        run_sites = toy.run_sites(method, net=net)
        states.append(run(run_sites, LocalEngine(run_sites), Plan(1)).state)
    assert_same(*states)


# edges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize(
    ("sizes", "unseen"), [(((1, 1, 1), (0, 1, 1), (3, 1, 1)), False), (((4, 1, 1),) * 2, True)], ids=["small", "unseen"]
)
def test_one_sample_no_sample_and_a_class_nobody_has(task: str, sizes: tuple[tuple[int, int, int], ...], unseen: bool):
    run_sites = Toy(task, sizes=sizes, unseen=unseen).run_sites(Moon(mu=5.0, projection=6))
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))
