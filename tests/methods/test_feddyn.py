"""FedDyn: rounds by hand with all and with some clients, what the server's h is the mean of, and FedProx in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from crossward.core.method import answer
from crossward.core.run import Plan, cohorts, run
from crossward.core.training import Training
from crossward.core.weights import Weights, mean
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.feddyn import FedDyn
from crossward.methods.fedprox import FedProx
from crossward.testing.by_hand import SoftmaxRegression, initial_matrix, regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.invariants import MeanOfMemories
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

FULL_BATCH = Training(epochs=2, batch_size=64, lr=0.1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
FIVE = Toy(sizes=((12, 2, 0), (5, 2, 0), (0, 2, 0), (9, 2, 0), (1, 0, 0)), common=0)  # four clients: one has no images


@dataclass
class ByHand:
    """Algorithm 1, the minimum replaced by some steps on full batches."""

    sites: list[SoftmaxRegression]
    theta: Tensor
    alpha: float
    momentum: float = 0.0
    lr: float = 0.1
    steps: int = 2

    def __post_init__(self) -> None:
        self.h, self.gradient = torch.zeros_like(self.theta), [torch.zeros_like(self.theta) for _ in self.sites]

    def round(self, asked: Sequence[int]) -> None:
        ends = []
        for k in asked:
            theta, v = self.theta, torch.zeros_like(self.theta)
            for _ in range(self.steps):
                g = self.sites[k].gradient(theta) - self.gradient[k] + self.alpha * (theta - self.theta)
                v = self.momentum * v + g
                theta = theta - self.lr * v
            self.gradient[k] = self.gradient[k] - self.alpha * (theta - self.theta)
            ends.append(theta)
        self.h = self.h - self.alpha * sum(end - self.theta for end in ends) / len(self.sites)
        self.theta = sum(ends) / len(ends) - self.h / self.alpha


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize(("alpha", "momentum"), [(0.01, 0.0), (0.5, 0.0), (0.5, 0.9)])
def test_rounds_by_hand(rounds: int, alpha: float, momentum: float):
    training = Training(epochs=2, batch_size=64, lr=0.1, momentum=momentum)
    run_sites = TWO.run_sites(FedDyn(alpha=alpha), training=training, net=linear)
    expected = ByHand(regression_per_site(run_sites), initial_matrix(run_sites), alpha, momentum)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(rounds)).state
    for _ in range(rounds):
        expected.round([0, 1])
    torch.testing.assert_close(weight_matrix(state["model"]), expected.theta, atol=5e-6, rtol=0)
    torch.testing.assert_close(weight_matrix(state["h"]), expected.h, atol=2e-6, rtol=0)
    for k in (0, 1):
        torch.testing.assert_close(weight_matrix(engine.memory[k]["gradient"]), expected.gradient[k], atol=2e-6, rtol=0)
    assert expected.h.abs().max() > 0.1 * alpha * 0.1


def test_rounds_by_hand_with_half_of_the_clients():
    """Who is not asked keeps its gradient, and h counts it."""
    run_sites = Toy(sizes=((6, 0, 0), (10, 0, 0), (4, 0, 0), (8, 0, 0)), common=0).run_sites(
        FedDyn(alpha=0.5), training=FULL_BATCH, net=linear
    )
    expected = ByHand(regression_per_site(run_sites), initial_matrix(run_sites), alpha=0.5)
    plan = Plan(4, participation=0.5)
    drawn = cohorts(plan, [0, 1, 2, 3])
    assert {len(cohort) for cohort in drawn} == {2}
    assert len({*map(tuple, drawn)}) > 1
    for cohort in drawn:
        expected.round(cohort)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, plan).state
    torch.testing.assert_close(weight_matrix(state["model"]), expected.theta, atol=5e-6, rtol=0)
    for k, tree in engine.memory.items():
        torch.testing.assert_close(weight_matrix(tree["gradient"]), expected.gradient[k], atol=2e-6, rtol=0)


@pytest.mark.parametrize("alpha", [1e-3, 1.0])
def test_the_first_round_of_all_goes_twice_as_far_as_the_plain_mean(alpha: float):
    """-h / alpha is then the mean movement, whatever alpha is."""
    run_sites = TWO.run_sites(FedDyn(alpha=alpha))
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(1)).state
    first = Weights.of(run_sites.server(0).new_net())
    averaged = mean(reply["model"] for job, reply in engine.replies if job.step == "train")
    names = state["h"]
    assert (state["model"].only(names) - (2 * averaged - first).only(names)).norm() < 1e-5
    for name in set(averaged) - set(names):
        assert torch.equal(state["model"][name], averaged[name])  # statistics are averaged and left at that


def test_a_client_that_knows_its_gradient_stays_where_it_is():
    """The federation's optimum is a fixed point: there the terms cancel the gradient."""
    run_sites = TWO.run_sites(FedDyn(), training=FULL_BATCH, net=linear)
    theta = Weights.of(run_sites.server(0).new_net())
    moved = []
    for known in (True, False):
        site = run_sites.open(0, 0, {})
        theta.into(site.model)
        site.memory = {"gradient": site.gradient()} if known else {}
        moved.append((answer(FedDyn(), site, "train", {"model": theta}, 0)["model"] - theta).norm())
    assert moved[0] < 1e-6 < 1e-2 < moved[1]


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_a_clients_first_reply_is_that_of_fedprox_to_the_bit(task: str):
    replies = []
    for method in (FedDyn(alpha=0.3), FedProx(mu=0.3)):
        run_sites = Toy(task, sizes=((6, 2, 0), (9, 2, 0)), common=0).run_sites(method)
        engine = RecordingEngine(LocalEngine(run_sites))
        run(run_sites, engine, Plan(1))
        replies.append({str(job.site): reply["model"] for job, reply in engine.replies if job.step == "train"})
    assert len(replies[0]) == 2
    assert_same(*replies)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_mean_of_the_gradients_is_the_servers(participation: float, momentum: float):
    training = Training(epochs=2, batch_size=4, lr=0.02, momentum=momentum)
    run_sites = FIVE.run_sites(FedDyn(alpha=0.5), training=training)
    engine = LocalEngine(run_sites)
    invariant = MeanOfMemories(engine.memory, {"h": "gradient"})
    run(run_sites, engine, Plan(4, participation=participation), [invariant])
    assert invariant.clients == 4
    assert max(invariant.gaps) < 1e-6
    assert min(invariant.sizes) > 1e-3


def test_a_client_that_drops_out_keeps_its_gradient():
    run_sites = Toy(sizes=((6, 0, 0), (9, 0, 0), (5, 0, 0)), common=0).run_sites(FedDyn(alpha=0.5))
    engine = LocalEngine(run_sites)
    invariant = MeanOfMemories(engine.memory, {"h": "gradient"})
    run(run_sites, DroppingEngine(engine, 1, 1, "train"), Plan(3), [invariant])
    assert max(invariant.gaps) < 1e-6
    assert min(invariant.sizes) > 1e-3


def test_only_the_model_travels_and_states_cover_parameters():
    accounts = {}
    for method in (FedDyn(), FedAvg()):
        run_sites, records = TWO.run_sites(method), Records()
        end = run_to_end(run_sites, LocalEngine(run_sites), records)
        sent = {(t.direction, t.item): t.bytes for t in records.rounds[0].traffic}
        accounts[type(method)] = {where: count for where, count in sent.items() if where != ("up", "n")}
        if isinstance(method, FedDyn):
            assert set(end["memory"]) == {"0", "1"}
            assert set(end["memory"]["0"]) == {"gradient"}
            assert set(end["memory"]["0"]["gradient"]) == set(end["state"]["h"])
            unled = set(end["state"]["model"]) - set(end["state"]["h"])
            assert unled == {"body.1.running_mean", "body.1.running_var"}
    assert set(accounts[FedDyn]) == {("down", "model"), ("up", "model")}
    assert accounts[FedDyn] == accounts[FedAvg]


def test_alpha_must_be_positive_and_the_recipe_clips():
    with pytest.raises(ValidationError, match="greater than 0"):
        TypeAdapter(FedDyn).validate_python({"alpha": 0.0})
    assert Training(**FedDyn.recipe).clip == 10.0


@pytest.mark.parametrize(
    "toy", [Toy(sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1))), Toy(sizes=((4, 1, 1),) * 2, unseen=True)]
)
def test_one_sample_no_sample_and_a_class_nobody_has(toy: Toy):
    """And a class absent at one site. The conformance suite goes through them with every task, policy and plugin."""
    run_sites = toy.run_sites(FedDyn())
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))
