"""FedRoD: rounds and both views by hand, FedAvg without its prior, and who is reached by which loss."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core import select
from crossward.core.cohort import Cohort
from crossward.core.method import PERSONAL, answer, restore_predictor
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, cohorts, run
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.losses import dice_loss
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedrod import FedRoD
from crossward.testing.by_hand import SoftmaxRegression, initial_matrix, regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
FULL_BATCH = Training(epochs=2, batch_size=64, lr=0.1)
P_HEAD = ["p_head.weight", "p_head.bias"]


def personal(memory: dict[str, Weights]) -> Tensor:
    kept = memory[PERSONAL]
    return weight_matrix(Weights({name.removeprefix("p_"): tensor for name, tensor in kept.items()}))


def gradient(site: SoftmaxRegression, w: Tensor, shift: Tensor) -> Tensor:
    """Of the mean cross entropy of softmax(w x + shift)."""
    error = (site.x @ w.T + shift).softmax(1) - F.one_hot(site.y, len(w))
    return error.T @ site.x / site.n


def rounds_by_hand(sites: list[SoftmaxRegression], w: Tensor, gamma: float, rounds: int) -> tuple[Tensor, list[Tensor]]:
    """The generic matrix and the personal ones, after two full-batch steps a round."""
    phi = [torch.zeros_like(w) for _ in sites]
    for _ in range(rounds):
        ends = []
        for i, site in enumerate(sites):
            own, shift = w, gamma * torch.log(torch.bincount(site.y, minlength=3) / site.n + 1e-9)
            for _ in range(2):
                of_psi, of_phi = gradient(site, own, shift), gradient(site, own + phi[i], torch.zeros(3))
                own, phi[i] = own - 0.1 * of_psi, phi[i] - 0.1 * of_phi
            ends.append(own)
        w = sum(site.n * end for site, end in zip(sites, ends, strict=True)) / sum(site.n for site in sites)
    return w, phi


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_rounds_and_both_views_by_hand(gamma: float):
    run_sites, records = TWO.run_sites(FedRoD(gamma=gamma), training=FULL_BATCH, net=linear), Records()
    engine = LocalEngine(run_sites)
    w, phi = rounds_by_hand(regression_per_site(run_sites), initial_matrix(run_sites), gamma, rounds=3)
    state = run(run_sites, engine, Plan(3), [records]).state["model"]
    torch.testing.assert_close(weight_matrix(state), w, atol=2e-6, rtol=0)
    for i in (0, 1):
        torch.testing.assert_close(personal(engine.memory[i]), phi[i], atol=2e-6, rtol=0)
        site, predicted = run_sites.open(i, 0, {}), records.rounds[-1].evaluation.predictions[f"site-{i}"]
        for found, samples, v in (("test", site.test, w + phi[i]), ("common_test", site.common["test"], w)):
            x = samples.take(samples.index)[0].flatten(1).double()
            p = (x @ v[:, :-1].T + v[:, -1]).softmax(1)
            torch.testing.assert_close(predicted[found].double(), p, atol=2e-6, rtol=0)
    assert min(p.abs().max() for p in phi) > 1e-2


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_without_the_prior_the_generic_part_is_fedavg_to_the_bit(task: str):
    """So the personal loss reaches neither the body nor the generic head, nor does it change the batches."""
    training, states, global_views = Training(2, 4, lr=0.05, momentum=0.5, weight_decay=0.01), [], []
    for method in (FedRoD(gamma=0.0), FedAvg()):
        run_sites, records = Toy(task, sizes=((6, 2, 2), (9, 2, 2))).run_sites(method, training=training), Records()
        states.append(run_to_end(run_sites, LocalEngine(run_sites), records)["state"])
        predictions = records.rounds[-1].evaluation.predictions
        global_views.append(
            predictions["server"]["test"] if "server" in predictions else predictions["site-1"]["common_test"]
        )
    assert_same(*states)
    assert torch.equal(*global_views)


def test_the_prior_is_what_differs_from_fedavg():
    states = []
    for method in (FedRoD(), FedAvg()):
        run_sites = TWO.run_sites(method)
        states.append(run(run_sites, LocalEngine(run_sites), Plan(1)).state["model"])
    assert (states[0] - states[1]).norm() > 1e-2


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_the_personal_head_stays_and_all_else_travels(buffers: str):
    run_sites = TWO.run_sites(FedRoD(buffers=buffers))
    engine = RecordingEngine(LocalEngine(run_sites))
    run(run_sites, engine, Plan(1, evaluate_every=0))
    weights = ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]
    statistics = ["body.1.running_mean", "body.1.running_var"]
    for _, reply in engine.replies:
        assert set(reply) == {"model", "n"}
        sent = weights + (statistics if buffers == "average" else []) + ["head.weight", "head.bias"]
        assert list(reply["model"]) == sent
    assert {*engine.memory[0][PERSONAL]} == {*P_HEAD, *(statistics if buffers == "local" else [])}


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_the_personal_prediction_starts_as_the_generic_one(task: str):
    run_sites = Toy(task).run_sites(FedRoD())
    site = run_sites.open(0, 0, {}, fresh=True)
    assert not any(t.any() for t in Weights.of(site.model, select.under("p_head")).values())
    down = {"model": Weights.of(run_sites.server(0).new_net(), FedRoD.shared)}
    predicted = [site.predict(FedRoD().predictor(site, down, view), site.test) for view in ("local", "global")]
    assert torch.equal(*predicted)


def test_a_site_that_has_not_taken_part_predicts_generically():
    toy = Toy(sizes=((6, 2, 2), (10, 2, 2), (8, 2, 2), (0, 2, 2)))
    run_sites, records, plan = toy.run_sites(FedRoD()), Records(), Plan(1, participation=0.67)
    state = run(run_sites, LocalEngine(run_sites), plan, [records]).state["model"]
    cohort = cohorts(plan, [0, 1, 2])[0]
    for i in range(4):
        site, predicted = run_sites.open(i, 0, {}, fresh=True), records.rounds[0].evaluation.predictions[f"site-{i}"]
        state.into(site.model)
        assert torch.equal(predicted["common_test"], site.predict(site.model, site.common["test"]))
        assert torch.equal(predicted["test"], site.predict(site.model, site.test)) is (i not in cohort)


def test_the_first_loss_of_a_segmentation_by_hand():
    """Pixels are counted, and the prior is added to each of them; the second loss sees the logits as they are."""
    toy = Toy("segmentation", sizes=((5, 0, 0),))
    run_sites = toy.run_sites(FedRoD(gamma=0.7), training=Training(epochs=1, batch_size=64, lr=0.1))
    site = run_sites.open(0, 0, {}, fresh=True)
    down = {"model": Weights.of(run_sites.server(0).new_net(), FedRoD.shared)}
    answer(run_sites.method, site, "train", down, seed=0)
    result = site.fits[0].loss
    net = run_sites.server(0).new_net().train()
    x, y = site.train.take(site.train.index)
    logits = net(x)
    shares = torch.stack([(y == c).double().mean() for c in range(3)])
    prior = torch.log(shares + 1e-9)[None, :, None, None]
    assert result == pytest.approx((dice_loss(logits + 0.7 * prior, y) + dice_loss(logits, y)).item(), abs=1e-5)
    assert 0 < shares.min() < shares.max() < 1


def test_the_generic_head_leaves_an_absent_class_alone():
    """Its logit is lowered by 20 where nobody can raise it; FedAvg would push it down by weight instead."""
    moved = []
    for gamma in (1.0, 0.0):
        run_sites = Toy(sizes=((12, 0, 0),)).run_sites(FedRoD(gamma=gamma), training=FULL_BATCH, net=linear)
        assert run_sites.open(0, 0, {}).counts.tolist() == [8, 4, 0]
        state = run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"]
        moved.append((weight_matrix(state) - initial_matrix(run_sites)).abs().amax(1))
    assert moved[0][2] < 1e-6
    assert moved[1][2] > 1e-2
    assert moved[0][:2].min() > 1e-2


@dataclass(frozen=True)
class Tilt(Plugin):
    def shift(self, site: Site, logits: Tensor) -> Tensor:
        return logits + torch.tensor([0.0, 1.0, 2.0])


def test_a_shift_of_the_logits_reaches_the_personal_loss_alone():
    states, memories = [], []
    for plugins in ((), (Tilt(),)):
        run_sites = TWO.run_sites(FedRoD(), plugins)
        engine = LocalEngine(run_sites)
        states.append(run(run_sites, engine, Plan(1)).state)
        memories.append(engine.memory[0][PERSONAL])
    assert_same(*states)
    assert (memories[0] - memories[1]).norm() > 1e-2


def test_what_is_deployed_predicts_for_a_sites_own_patients():
    run_sites = TWO.run_sites(FedRoD())
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(1)).state
    exported = Cohort(run_sites, engine, 0, [0], keep=False).ask("deploy", state)[0]
    predicted = Cohort(run_sites, engine, 0, [0], keep=False).ask("predict", state)[0]
    site = run_sites.open(0, 0, {}, fresh=True)
    assert torch.equal(predicted["test"], site.predict(restore_predictor(run_sites.method, site, exported), site.test))
    assert not torch.equal(predicted["test"], site.predict(site.model, site.test))  # the generic prediction


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("unseen", [False, True])
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(task: str, unseen: bool):
    toy = Toy(task, sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1)), unseen=unseen)
    run_sites, records = toy.run_sites(FedRoD()), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
