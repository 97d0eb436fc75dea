"""FedProc: rounds by hand, its loss in numbers, its schedule, what travels, and its reduction to FedAvg."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.cohort import Cohort
from crossward.core.method import RoundContext, answer
from crossward.core.net import Net
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedproc import FedProc, contrast
from crossward.nets.parts.projection import with_projection
from crossward.plugins.bsm import Bsm
from crossward.runs.sites import RunSites
from crossward.testing.by_hand import SoftmaxRegression, regression_per_site
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import CLASSES, SIDE, Toy, classifier, segmenter

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))  # the first site lacks the last class
PIXELS = Toy("segmentation", sizes=((3, 1, 1), (5, 2, 2)))
BOTH = pytest.mark.parametrize("toy", [TWO, PIXELS], ids=["classification", "segmentation"])
SMALL = FedProc(projection=6)


def context(run_sites: RunSites, round: int = 0, rounds: int = 1) -> RoundContext:
    return RoundContext(round, rounds, len(run_sites.ids), run_sites.task, run_sites.server(round))


def two_layers() -> nn.Module:
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 4)), nn.Linear(4, len(CLASSES)), width=4)


def projected_net(toy: Toy, width: int) -> Callable[[], nn.Module]:
    net = classifier if toy.task == "classification" else segmenter
    return lambda: with_projection(net(), width)


def payload(state: Tree, alpha: float, prototypes: Tensor, known: list[bool]) -> Tree:
    return {"model": state["model"], "prototypes": prototypes, "known": torch.tensor(known), "alpha": alpha}


# in numbers ----------------------------------------------------------------------------------------------------------


def test_the_contrast_by_hand():
    """Features keep their length; the third class has no centre, so it is no rival and its sample does not count."""
    z = torch.tensor([[1.0, 0], [3, 5], [7, 7]], requires_grad=True)
    c, y = torch.tensor([[1.0, 0], [0, 1], [0.6, 0.8]]), torch.tensor([0, 1, 2])
    value = contrast(z, y, c, torch.tensor([True, True, False]))
    assert value.item() == pytest.approx((math.log(1 + math.exp(-1)) + math.log(1 + math.exp(-2))) / 2)
    value.backward()
    p, q = 1 / (1 + math.e), 1 / (1 + math.e**2)
    torch.testing.assert_close(z.grad, torch.tensor([[-p, p], [q, -q], [0, 0]]) / 2)


def test_without_any_centre_the_contrast_is_0_and_moves_nothing():
    z = torch.randn(3, 2, requires_grad=True)
    value = contrast(z, torch.tensor([0, 1, 1]), torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool))
    value.backward()
    assert value.item() == 0.0
    assert z.grad.tolist() == [[0.0, 0.0]] * 3


@dataclass(frozen=True)
class Layers:
    """two_layers as matrices with the bias in the last column: z = x a^T, logits = z b^T."""

    a: Tensor  # (4, D + 1)
    b: Tensor  # (K, 5)

    @classmethod
    def of(cls, w: Weights) -> Layers:
        a = torch.cat([w["body.1.weight"], w["body.1.bias"][:, None]], 1)
        return cls(a.double(), torch.cat([w["head.weight"], w["head.bias"][:, None]], 1).double())

    def stepped(self, site: SoftmaxRegression, c: Tensor, alpha: float, lr: float) -> Layers:
        z, truth = site.x @ self.a.T, F.one_hot(site.y, len(CLASSES))
        one = torch.cat([z, torch.ones(site.n, 1)], 1)
        error = alpha * ((one @ self.b.T).softmax(1) - truth) / site.n
        unit = c / c.norm(dim=1, keepdim=True).clamp_min(1e-9)
        dz = error @ self.b[:, :-1] + (1 - alpha) * ((z @ unit.T).softmax(1) - truth) @ unit / site.n
        return Layers(self.a - lr * dz.T @ site.x, self.b - lr * error.T @ one)


@pytest.mark.parametrize(("alpha", "schedule"), [(None, [1, 1 / 3, 2 / 3]), (0.25, [1, 0.25, 0.25])])
def test_three_rounds_by_hand(alpha: float | None, schedule: list[float]):
    method = FedProc(alpha=alpha, projection=0)
    run_sites = TWO.run_sites(method, training=Training(epochs=2, batch_size=64, lr=0.05), net=two_layers)
    sites = regression_per_site(run_sites)
    glob, c = Layers.of(Weights.of(run_sites.server(0).new_net())), torch.zeros(3, 4).double()
    for weight in schedule:
        own = []
        for site in sites:
            layers = glob
            for _ in range(2):
                layers = layers.stepped(site, c, weight, 0.05)
            own.append(layers)
        rows = [site.x @ layers.a.T for site, layers in zip(sites, own, strict=True)]  # of the local models
        z, y = torch.cat(rows), torch.cat([site.y for site in sites])
        c = torch.stack([z[y == k].mean(0) for k in range(3)])
        glob = Layers((6 * own[0].a + 10 * own[1].a) / 16, (6 * own[0].b + 10 * own[1].b) / 16)
    state = run(run_sites, LocalEngine(run_sites), Plan(3)).state
    result = Layers.of(state["model"])
    torch.testing.assert_close(result.a, glob.a, atol=1e-5, rtol=0)
    torch.testing.assert_close(result.b, glob.b, atol=1e-5, rtol=0)
    torch.testing.assert_close(state["prototypes"].double(), c, atol=1e-5, rtol=0)
    assert state["known"].tolist() == [True] * 3


# the schedule --------------------------------------------------------------------------------------------------------


class Asked:
    """Clients that note what they are sent and reply with the state's own model."""

    ids = (0,)

    def ask(self, step: str, payload: Tree) -> Mapping[int, Tree]:
        self.down = payload
        return {0: {"model": payload["model"], "n": 1, "prototypes": torch.ones(3, 6), "counts": torch.ones(3)}}


@pytest.mark.parametrize(
    ("alpha", "sent"), [(None, [1.0, 0.25, 0.5, 0.75]), (0.0, [1.0, 0.0, 0.0, 0.0]), (1.0, [1.0] * 4)]
)
def test_the_server_says_how_much_cross_entropy(alpha: float | None, sent: list[float]):
    method, clients = replace(SMALL, alpha=alpha), Asked()
    run_sites = TWO.run_sites(method)
    state, results = method.start(context(run_sites)), []
    for round in range(4):
        state = method.round(state, clients, context(run_sites, round, 4))
        results.append(clients.down["alpha"])
    assert results == sent
    assert set(state) == {"model", "prototypes", "known"}


# reductions ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("width", [0, 6])
def test_with_alpha_1_its_model_is_fedavgs_to_the_bit(toy: Toy, width: int):
    ends = []
    for method, net in ((FedProc(alpha=1.0, projection=width), None), (FedAvg(), projected_net(toy, width))):
        run_sites = toy.run_sites(method, net=net)
        end = run_to_end(run_sites, LocalEngine(run_sites))
        ends.append(end | {"state": {"model": end["state"]["model"]}})
    assert_same(*ends)


@BOTH
def test_the_first_round_is_cross_entropy_alone(toy: Toy):
    models = []
    for method, net in ((FedProc(alpha=0.0), None), (FedAvg(), projected_net(toy, 256))):
        run_sites = toy.run_sites(method, net=net)
        models.append({"model": run(run_sites, LocalEngine(run_sites), Plan(1)).state["model"]})
    assert_same(*models)


def test_plugins_that_shift_logits_do_not_reach_the_contrast():
    method, ends = replace(SMALL, alpha=0.0), []
    for plugins in ((), (Bsm(),)):
        run_sites = TWO.run_sites(method, plugins)
        site, state = run_sites.open(0, 1, {}, fresh=True), method.start(context(run_sites))
        ends.append(answer(method, site, "train", payload(state, 0.0, torch.ones(3, 6), [True] * 3), seed=0))
    assert_same(*ends)


# what travels --------------------------------------------------------------------------------------------------------


def test_what_is_sent_and_what_is_kept():
    run_sites, records = TWO.run_sites(SMALL), Records()
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(2), [records]).state
    assert state["prototypes"].shape == (3, 6)
    replies = [reply for job, reply in engine.replies if job.step == "train"]
    assert [set(reply) for reply in replies] == [{"model", "n", "prototypes", "counts"}] * 4
    assert [reply["counts"].tolist() for reply in replies] == [[4, 2, 0], [3, 4, 3]] * 2
    assert replies[0]["prototypes"][2].tolist() == [0.0] * 6  # the class that it lacks
    traffic = {(t.step, t.direction, t.item) for record in records.rounds for t in record.traffic}
    assert {item for step, way, item in traffic if way == "down"} == {"model", "prototypes", "known", "alpha"}
    assert all(not memory for memory in engine.memory.values())


@BOTH
def test_sums_are_of_the_trained_local_model_in_eval_mode(toy: Toy):
    run_sites = toy.run_sites(SMALL)
    site, state = run_sites.open(1, 0, {}, fresh=True), SMALL.start(context(run_sites))
    reply = SMALL.train(site, state | {"alpha": 1.0})
    x, y = site.train.take(site.train.index)
    site.model.eval()
    with torch.no_grad():
        z, y = site.task.vectors(site.model.features(x), y)
    assert reply["counts"].tolist() == torch.bincount(y, minlength=3).tolist()
    assert reply["counts"].sum() == (10 if toy is TWO else 5 * SIDE * SIDE)
    for k in range(3):
        torch.testing.assert_close(reply["prototypes"][k], z[y == k].sum(0), atol=1e-3, rtol=1e-4)
    assert (Weights.of(site.model) - state["model"]).norm() > 1e-3


def test_what_predicts_is_the_model_alone():
    run_sites = TWO.run_sites(SMALL)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(2)).state
    assert set(SMALL.broadcast(state)) == {"model"}
    exported = Cohort(run_sites, engine, 0, [1], keep=False).ask("deploy", SMALL.broadcast(state))[1]
    assert exported["down"] == {}
    assert not run_sites.personal


# classes that are absent, single, unseen -----------------------------------------------------------------------------


def test_aggregation_by_hand():
    """Class 0 is at both sites, class 1 in neither, class 2 in neither so far, class 3 new and with one sample."""
    old = torch.tensor([[9.0, 9], [5, 6], [0, 0], [0, 0]])
    state = {"model": Weights({"w": torch.tensor([9.0])}), "prototypes": old,
             "known": torch.tensor([True, True, False, False])}  # fmt: skip

    def reply(w: float, n: int, sums: list[list[float]], counts: list[float]) -> Tree:
        model = Weights({"w": torch.tensor([w])})
        return {"model": model, "n": n, "prototypes": torch.tensor(sums), "counts": torch.tensor(counts)}

    one = reply(1.0, 3, [[3.0, 6], [0, 0], [0, 0], [0, 0]], [3.0, 0, 0, 0])
    other = reply(2.0, 1 + 1, [[1.0, 0], [0, 0], [0, 0], [7, -7]], [1.0, 0, 0, 1])
    new = SMALL.aggregate(state, {0: one, 1: other}, None)
    assert new["prototypes"].tolist() == [[1.0, 1.5], [5, 6], [0, 0], [7, -7]]
    assert new["known"].tolist() == [True, True, False, True]
    assert new["model"]["w"].item() == pytest.approx((3 * 1 + 2 * 2) / 5)
    assert state["prototypes"].tolist() == old.tolist()


@BOTH
def test_a_class_nobody_has_never_gets_a_centre(toy: Toy):
    run_sites = replace(toy, unseen=True).run_sites(SMALL)
    state = run(run_sites, LocalEngine(run_sites), Plan(3)).state
    assert state["known"].tolist() == [True, True, False]
    assert state["prototypes"][2].tolist() == [0.0] * 6
    assert state["prototypes"][:2].norm(dim=1).min() > 0


def test_a_class_without_a_centre_is_no_rival():
    """Whatever is in its place, nothing changes; a class with a centre is one even where a site lacks it."""
    run_sites = TWO.run_sites(SMALL)
    state = SMALL.start(context(run_sites))
    base = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    other = torch.cat([base[:2], -base[2:]])

    def trained(prototypes: Tensor, known: list[bool]) -> Weights:
        site = run_sites.open(0, 1, {}, fresh=True)  # it lacks class 2
        return answer(SMALL, site, "train", payload(state, 0.5, prototypes, known), seed=0)["model"]

    assert (trained(base, [True, True, False]) - trained(other, [True, True, False])).norm() == 0
    assert (trained(base, [True, True, True]) - trained(other, [True, True, True])).norm() > 1e-3


def test_a_site_none_of_whose_classes_has_a_centre_learns_from_cross_entropy():
    """At half its weight, as alpha says: half the step of FedAvg."""
    run_sites = TWO.run_sites(SMALL, training=Training(epochs=1, batch_size=64, lr=0.1))
    state, moved = SMALL.start(context(run_sites)), []
    for alpha in (1.0, 0.5):
        site = run_sites.open(0, 1, {}, fresh=True)  # classes 0 and 1
        down = payload(state, alpha, torch.ones(3, 6), [False, False, True])
        moved.append(answer(SMALL, site, "train", down, seed=0)["model"]["head.weight"] - state["model"]["head.weight"])
    torch.testing.assert_close(moved[1], moved[0] / 2, atol=1e-6, rtol=1e-4)


def test_one_sample_is_its_own_centre():
    run_sites = Toy(sizes=((1, 1, 1), (4, 1, 1))).run_sites(SMALL)
    site = run_sites.open(0, 0, {}, fresh=True)
    reply = SMALL.train(site, SMALL.start(context(run_sites)) | {"alpha": 1.0})
    x, y = site.train.take(site.train.index)
    site.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(reply["prototypes"][y], site.model.features(x))
    assert reply["counts"].sum() == 1


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("alpha", [None, 0.0])
def test_one_sample_and_no_sample(task: str, alpha: float | None):
    run_sites = Toy(task, sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1))).run_sites(replace(SMALL, alpha=alpha))
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))
