"""FedNH: rounds by hand, what travels, prototypes on the sphere, its reductions, and its edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.cohort import Cohort
from crossward.core.method import RoundContext, export_predictor, restore_predictor
from crossward.core.run import Plan, run
from crossward.core.seeds import seeded
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights, mean
from crossward.engines.local import LocalEngine
from crossward.methods.fednh import FedNH, PrototypeHead, W, orthonormal_rows
from crossward.runs.sites import RunSites
from crossward.testing.by_hand import SoftmaxRegression, regression_per_site
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, run_to_end
from crossward.testing.toy import CLASSES, Toy, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))  # the first site lacks the last class


def context(run_sites: RunSites) -> RoundContext:
    return RoundContext(0, 1, len(run_sites.ids), run_sites.task, run_sites.server(0))


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True)


def scale_after(site: SoftmaxRegression, w: Tensor, s: float, lr: float) -> float:
    """toy.linear has nothing to learn but s: ds = mean over images of (softmax(s z w^T) - onehot(y)) . z w^T."""
    cosines = unit(site.x[:, :-1]) @ w.T
    error = (s * cosines).softmax(1) - F.one_hot(site.y, len(CLASSES))
    return s - lr * float((error * cosines).sum() / site.n)


def test_two_rounds_by_hand():
    rho, lr = 0.8, 0.5
    run_sites = TWO.run_sites(FedNH(rho=rho), training=Training(epochs=1, batch_size=64, lr=lr), net=linear)
    sites = regression_per_site(run_sites)
    first = Weights.of(run_sites.server(0).new_net())[W].double()
    w, s = first, 1.0
    for _ in range(2):
        s = sum(scale_after(site, w, s, lr) for site in sites) / 2  # not by 6 : 10
        rows = []
        for c in range(3):
            held = [unit(site.x[:, :-1])[site.y == c] for site in sites if (site.y == c).any()]
            mu = sum(len(z) * F.normalize(z.mean(0), dim=0) for z in held) / sum(len(z) for z in held)
            rows.append(F.normalize(rho * w[c] + (1 - rho) * F.normalize(mu, dim=0), dim=0))
        w = torch.stack(rows)
    state = run(run_sites, LocalEngine(run_sites), Plan(2)).state
    assert set(state["model"]) == {W, "head.scale"}
    torch.testing.assert_close(state["model"]["head.scale"].double(), torch.tensor(s).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(state["model"][W].double(), w, atol=1e-6, rtol=0)
    assert abs(s - 1) > 1e-2
    assert (w - first).norm() > 0.1


def sent(method: FedNH, toy: Toy) -> tuple[Tree, Mapping[int, Tree], Weights]:
    """The state after one round, what the clients sent in it, and what the server began with."""
    run_sites = toy.run_sites(method)
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(1)).state
    replies = {job.site: reply for job, reply in engine.replies if job.step == "train"}
    return state, replies, Weights.of(run_sites.server(0).new_net())


def test_what_a_site_sends():
    _, replies, began = sent(FedNH(), TWO)
    for reply in replies.values():
        assert set(reply) == {"model", "prototypes", "counts"}
        assert set(reply["model"]) == set(began) - {W}
    assert [reply["counts"].tolist() for reply in replies.values()] == [[4, 2, 0], [3, 4, 3]]
    for reply in replies.values():  # unit vectors times counts
        torch.testing.assert_close(reply["prototypes"].norm(dim=1), reply["counts"], atol=1e-5, rtol=0)
    assert replies[0]["prototypes"][2].tolist() == [0.0] * 16


def test_prototypes_are_those_of_the_trained_network():
    run_sites = TWO.run_sites(FedNH())
    site = run_sites.open(1, 0, {}, fresh=True)
    reply = FedNH().train(site, FedNH().start(context(run_sites)))
    x, y = site.train.take(site.train.index)
    site.model.eval()
    with torch.no_grad():
        z = site.model.features(x)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(len(z)))
    for c, n in enumerate((3, 4, 3)):
        expected = n * F.normalize(z[y == c].mean(0), dim=0)
        torch.testing.assert_close(reply["prototypes"][c], expected, atol=1e-5, rtol=0)


def test_networks_are_averaged_without_weights():
    state, replies, _ = sent(FedNH(), TWO)
    models = [reply["model"] for reply in replies.values()]
    plain, weighted = mean(models), mean(models, [6.0, 10.0])
    assert (state["model"].only(plain) - plain).norm() < 1e-6
    assert (plain - weighted).norm() > 1e-4


@pytest.mark.parametrize("toy", [TWO, Toy(sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1)))])
def test_prototypes_stay_on_the_sphere_and_are_sent_to_all(toy: Toy):
    run_sites = toy.run_sites(FedNH(rho=0.3))
    state = run(run_sites, LocalEngine(run_sites), Plan(4)).state
    torch.testing.assert_close(state["model"][W].norm(dim=1), torch.ones(3), atol=1e-6, rtol=0)
    site = run_sites.open(0, 0, {}, fresh=True)
    FedNH().train(site, state)
    assert torch.equal(site.model.head.prototypes, state["model"][W])


# reductions ----------------------------------------------------------------------------------------------------------


def test_with_rho_1_the_prototypes_stay():
    state, _, began = sent(FedNH(rho=1.0), TWO)
    torch.testing.assert_close(state["model"][W], began[W], atol=1e-6, rtol=0)
    torch.testing.assert_close(began[W] @ began[W].T, torch.eye(3), atol=1e-6, rtol=0)


def test_with_rho_0_they_are_what_the_sites_found():
    state, replies, _ = sent(FedNH(rho=0.0), TWO)
    result = F.normalize(replies[0]["prototypes"] + replies[1]["prototypes"], dim=1)
    torch.testing.assert_close(state["model"][W], result, atol=1e-6, rtol=0)


# the scale -----------------------------------------------------------------------------------------------------------


def test_a_fixed_scale_is_neither_learnt_nor_sent():
    run_sites = TWO.run_sites(FedNH(scale=30.0))
    state = run(run_sites, LocalEngine(run_sites), Plan(1)).state
    assert "head.scale" not in state["model"]
    site = run_sites.open(0, 0, {}, fresh=True)
    predictor = FedNH(scale=30.0).predictor(site, state)
    site.model.eval()
    x, _ = site.test.take(site.test.index)
    with torch.no_grad():
        torch.testing.assert_close(predictor(x), 30 * site.model.features(x) @ state["model"][W].T)


def test_the_scale_is_learnt_from_1():
    state, _, began = sent(FedNH(), TWO)
    assert began["head.scale"].item() == 1.0
    assert abs(state["model"]["head.scale"].item() - 1) > 1e-3


# edges ---------------------------------------------------------------------------------------------------------------


def reply(model: Weights, prototypes: list[list[float]], counts: list[float]) -> Tree:
    return {"model": model, "prototypes": torch.tensor(prototypes), "counts": torch.tensor(counts)}


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_aggregation_by_hand_with_a_class_nobody_has_and_one_that_cancels_out(rho: float):
    """Two sites of 3 + 1 samples of class 0; class 1 is absent; the prototypes of class 2 point opposite ways."""
    old = torch.tensor([[0.0, 1.0], [0.6, 0.8], [-0.8, 0.6]])
    state = {"model": Weights({"body": torch.tensor([9.0]), W: old})}
    one = reply(Weights({"body": torch.tensor([1.0])}), [[3.0, 0], [0, 0], [2, 0]], [3.0, 0, 2])
    other = reply(Weights({"body": torch.tensor([2.0])}), [[0.0, 1], [0, 0], [-2, 0]], [1.0, 0, 2])
    new = FedNH(rho=rho).aggregate(state, {0: one, 1: other}, None)["model"]
    mu = torch.tensor([3.0, 1]) / 10**0.5
    expected = F.normalize(rho * old[0] + (1 - rho) * mu, dim=0)
    torch.testing.assert_close(new[W][0], expected)
    assert torch.equal(new[W][1:], old[1:])
    assert new["body"].item() == 1.5


def test_a_class_nobody_has_keeps_its_prototype_to_the_bit():
    state, replies, began = sent(FedNH(), replace(TWO, unseen=True))
    assert [int(reply["counts"][2]) for reply in replies.values()] == [0, 0]
    assert torch.equal(state["model"][W][2], began[W][2])
    assert (state["model"][W][:2] - began[W][:2]).norm() > 1e-2


def test_one_sample_is_its_own_prototype():
    run_sites = Toy(sizes=((1, 1, 1), (4, 1, 1))).run_sites(FedNH())
    site = run_sites.open(0, 0, {}, fresh=True)
    result = FedNH().train(site, FedNH().start(context(run_sites)))
    x, y = site.train.take(site.train.index)
    site.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(result["prototypes"][y], site.model.features(x))
    assert result["counts"].sum() == 1


@pytest.mark.parametrize(
    "toy", [Toy(sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1))), Toy(sizes=((4, 1, 1),) * 2, unseen=True)]
)
@pytest.mark.parametrize("rho", [0.0, 0.9, 1.0])
def test_one_sample_no_sample_and_a_class_nobody_has(toy: Toy, rho: float):
    run_sites = toy.run_sites(FedNH(rho=rho))
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))


# prediction ----------------------------------------------------------------------------------------------------------


def test_one_network_predicts_in_both_views():
    run_sites, records = TWO.run_sites(FedNH()), Records()
    state = run(run_sites, LocalEngine(run_sites), Plan(2), [records]).state
    site = run_sites.open(0, 0, {}, fresh=True)
    predictions = records.rounds[-1].evaluation.predictions
    for view in ("local", "global"):
        assert torch.equal(site.predict(FedNH().predictor(site, state, view), site.test), predictions["site-0"]["test"])
    x, _ = site.test.take(site.test.index)
    with torch.no_grad():
        nearest = (site.model.features(x) @ state["model"][W].T).argmax(1)
    assert torch.equal(nearest, predictions["site-0"]["test"].argmax(1))
    assert not run_sites.personal
    assert set(predictions) == {"site-0", "site-1", "server"}


def test_what_is_deployed_is_what_predicted():
    run_sites = TWO.run_sites(FedNH())
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(1)).state
    predicted = Cohort(run_sites, engine, 0, [1], keep=False).ask("predict", state)[1]["test"]
    exported = export_predictor(FedNH(), run_sites.open(1, 0, {}), state)
    elsewhere = run_sites.open(1, 0, {}, fresh=True)
    assert torch.equal(elsewhere.predict(restore_predictor(FedNH(), elsewhere, exported), elsewhere.test), predicted)


# the head -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("k", "d"), [(1, 1), (3, 3), (3, 16), (8, 64)])
def test_rows_are_orthonormal(k: int, d: int):
    w = orthonormal_rows(k, d)
    torch.testing.assert_close(w @ w.T, torch.eye(k), atol=2e-6, rtol=0)


@pytest.mark.parametrize(("k", "d"), [(5, 2), (10, 3), (40, 16)])
def test_more_classes_than_features_still_have_unit_rows_of_their_own(k: int, d: int):
    w = orthonormal_rows(k, d)
    torch.testing.assert_close(w.norm(dim=1), torch.ones(k), atol=1e-6, rtol=0)
    cosines = (w @ w.T).fill_diagonal_(-1)
    assert cosines.max() < 0.99999


def test_rows_are_drawn_anew_for_each_seed():
    drawn = []
    for seed in (0, 0, 1):
        with seeded(seed):
            drawn.append(orthonormal_rows(3, 8))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.allclose(drawn[0], drawn[2], atol=0.01)


def test_logits_of_the_head_by_hand():
    head = PrototypeHead(3, 2, scale=10.0)
    head.prototypes.data = torch.tensor([[1.0, 0], [0, 1], [0.6, 0.8]])
    logits = head(torch.tensor([[1.0, 0], [0, -1]]))
    torch.testing.assert_close(logits, torch.tensor([[10.0, 0, 6], [0, -10, -8]]))


def test_the_scale_is_learnt_from_one():
    head = PrototypeHead(3, 4)
    assert {name: p.requires_grad for name, p in head.named_parameters()} == {"prototypes": False, "scale": True}
    assert head.scale.item() == 1.0
    head(torch.ones(2, 4)).square().sum().backward()
    assert head.prototypes.grad is None
    assert head.scale.grad is not None


def test_a_fixed_scale_is_no_weight():
    head = PrototypeHead(3, 4, scale=30.0)
    assert head.scale == 30.0
    assert list(head.state_dict()) == ["prototypes"]
    torch.testing.assert_close(head(torch.ones(1, 4))[0], 30 * head.prototypes.sum(1))
