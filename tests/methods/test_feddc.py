"""FedDC: rounds by hand with all and with some clients, what the server's means are of, and the FedAvg, FedDyn and
SCAFFOLD in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from crossward.core.engine import Job, run_job
from crossward.core.method import RoundContext
from crossward.core.mixed_precision import LOSS_SCALE
from crossward.core.plugin import RunFacts
from crossward.core.run import Plan, cohorts, run
from crossward.core.site import Site
from crossward.core.store import TreeStore
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.feddc import FedDC
from crossward.methods.feddyn import FedDyn
from crossward.methods.scaffold import Scaffold
from crossward.testing.by_hand import SoftmaxRegression, initial_matrix, regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.invariants import MeanOfMemories
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
TOO_LARGE = {"scale": 2.0**100, "steps": 0}  # of a loss: no gradient fits into float16
FOUR = Toy(sizes=((6, 0, 0), (10, 0, 0), (4, 0, 0), (8, 0, 0)), common=0)
FIVE = Toy(sizes=((12, 2, 0), (5, 2, 0), (0, 2, 0), (9, 2, 0), (1, 0, 0)), common=0)  # four clients: one has no images


@dataclass
class ByHand:
    """Every client's drift and gradient kept in one place, and their means taken over all; full batches."""

    sites: list[SoftmaxRegression]
    w: Tensor
    alpha: float
    momentum: float = 0.0
    lr: float = 0.1
    steps: int = 2

    def __post_init__(self) -> None:
        self.h, self.g = ([torch.zeros_like(self.w) for _ in self.sites] for _ in range(2))

    def round(self, asked: Sequence[int]) -> None:
        ends, g = [], sum(self.g) / len(self.sites)
        for i in asked:
            theta, v, velocity, reach = self.w, torch.zeros_like(self.w), 0.0, 0.0
            for _ in range(self.steps):
                drift = self.alpha * (theta + self.h[i] - self.w)
                v = self.momentum * v + self.sites[i].gradient(theta) + drift + g - self.g[i]
                theta = theta - self.lr * v
                velocity = self.momentum * velocity + 1
                reach += self.lr * velocity
            self.h[i] = self.h[i] + theta - self.w
            self.g[i] = self.g[i] - g + (self.w - theta) / reach
            ends.append(theta)
        self.w = sum(ends) / len(ends) + sum(self.h) / len(self.sites)


def assert_as(expected: ByHand, state: Tree, memory: TreeStore) -> None:
    n = len(expected.sites)
    torch.testing.assert_close(weight_matrix(state["model"]), expected.w, atol=1e-5, rtol=0)
    torch.testing.assert_close(weight_matrix(state["drift"]), sum(expected.h) / n, atol=1e-5, rtol=0)
    torch.testing.assert_close(weight_matrix(state["gradient"]), sum(expected.g) / n, atol=2e-5, rtol=0)
    for i, tree in memory.items():
        torch.testing.assert_close(weight_matrix(tree["drift"]), expected.h[i], atol=1e-5, rtol=0)
        torch.testing.assert_close(weight_matrix(tree["gradient"]), expected.g[i], atol=2e-5, rtol=0)
    assert min(state["drift"].norm(), state["gradient"].norm()) > 1e-2


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize(("alpha", "momentum"), [(0.0, 0.0), (0.01, 0.0), (1.0, 0.0), (1.0, 0.9)])
def test_rounds_by_hand(rounds: int, alpha: float, momentum: float):
    training = Training(epochs=2, batch_size=64, lr=0.1, momentum=momentum)
    run_sites = TWO.run_sites(FedDC(alpha=alpha), training=training, net=linear)
    expected = ByHand(regression_per_site(run_sites), initial_matrix(run_sites), alpha, momentum)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(rounds)).state
    for _ in range(rounds):
        expected.round([0, 1])
    assert len(engine.memory) == 2
    assert_as(expected, state, engine.memory)


def test_rounds_by_hand_with_half_of_the_clients():
    """The means are of all clients, though half of them are not asked."""
    run_sites = FOUR.run_sites(FedDC(alpha=1.0), training=Training(epochs=2, batch_size=64, lr=0.1), net=linear)
    expected = ByHand(regression_per_site(run_sites), initial_matrix(run_sites), alpha=1.0)
    plan = Plan(4, participation=0.5)
    drawn = cohorts(plan, [0, 1, 2, 3])
    assert {len(cohort) for cohort in drawn} == {2}
    assert len({*map(tuple, drawn)}) > 1
    for cohort in drawn:
        expected.round(cohort)
    engine = LocalEngine(run_sites)
    assert_as(expected, run(run_sites, engine, plan).state, engine.memory)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_without_alpha_a_clients_first_reply_is_that_of_fedavg_to_the_bit(task: str):
    replies = []
    for method in (FedDC(alpha=0.0), FedAvg()):
        run_sites = Toy(task, sizes=((6, 2, 0), (9, 2, 0)), common=0).run_sites(method)
        engine = RecordingEngine(LocalEngine(run_sites))
        run(run_sites, engine, Plan(1))
        replies.append({str(job.site): reply["model"] for job, reply in engine.replies if job.step == "train"})
    assert len(replies[0]) == 2
    assert_same(*replies)


@dataclass(frozen=True)
class Uncorrected(FedDC):
    """g and g_i kept at zero."""

    def train(self, site: Site, down: Tree) -> Tree:
        reply = super().train(site, down)
        del site.memory["gradient"]
        return reply

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        return super().aggregate(state, replies, ctx) | {"gradient": state["gradient"]}


@dataclass(frozen=True)
class Undrifted(FedDC):
    """The drift is not added to the mean model."""

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        end = super().aggregate(state, replies, ctx)
        plain = end["model"].only(end["drift"]) - end["drift"]
        return end | {"model": Weights({**end["model"], **plain})}


@pytest.mark.parametrize(
    ("part", "whole"),
    [(Uncorrected(alpha=0.3), FedDyn(alpha=0.3)), (Undrifted(alpha=0.0), Scaffold())],
    ids=["feddyn", "scaffold"],
)
def test_without_its_correction_it_is_feddyn_and_without_its_drift_scaffold(part: FedDC, whole: FedDyn | Scaffold):
    models = []
    for method in (part, whole):
        run_sites = FIVE.run_sites(method)
        models.append(run(run_sites, LocalEngine(run_sites), Plan(4, participation=0.75)).state["model"])
    assert (models[0] - models[1]).norm() < 1e-4
    assert (models[0] - Weights.of(run_sites.server(0).new_net())).norm() > 1e-1


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_means_of_drifts_and_gradients_are_the_servers(participation: float, momentum: float):
    training = Training(epochs=2, batch_size=4, lr=0.02, momentum=momentum)
    run_sites = FIVE.run_sites(FedDC(), training=training)
    engine = LocalEngine(run_sites)
    invariant = MeanOfMemories(engine.memory, {"drift": "drift", "gradient": "gradient"})
    run(run_sites, engine, Plan(4, participation=participation), [invariant])
    assert invariant.clients == 4
    assert max(invariant.gaps) < 1e-5
    assert min(invariant.sizes) > 1e-3


def test_a_client_that_drops_out_keeps_its_drift_and_gradient():
    run_sites = Toy(sizes=((6, 0, 0), (9, 0, 0), (5, 0, 0)), common=0).run_sites(FedDC())
    engine = LocalEngine(run_sites)
    invariant = MeanOfMemories(engine.memory, {"drift": "drift", "gradient": "gradient"})
    run(run_sites, DroppingEngine(engine, 1, 1, "train"), Plan(3), [invariant])
    assert max(invariant.gaps) < 1e-5
    assert min(invariant.sizes) > 1e-3


def test_a_client_is_sent_two_models_worth_and_sends_one_and_a_number():
    run_sites, records = TWO.run_sites(FedDC(), training=Training(epochs=3, batch_size=4, lr=0.05)), Records()
    engine = RecordingEngine(LocalEngine(run_sites))
    end = run_to_end(run_sites, engine, records)
    sent = {(t.direction, t.item): t.bytes for t in records.rounds[0].traffic}
    model, gradient = ({name: w.numel() * 4 for name, w in end["state"][key].items()} for key in ("model", "gradient"))
    assert sent.pop(("up", "reach")) < 2 * 25  # the digits of two numbers
    assert sent == {
        ("down", "model"): 2 * sum(model.values()),
        ("down", "gradient"): 2 * sum(gradient.values()),
        ("up", "model"): 2 * sum(model.values()),
    }
    reaches = [reply["reach"] for job, reply in engine.replies if job.step == "train" and not job.round]
    assert reaches == pytest.approx([3 * 2 * 0.05, 3 * 3 * 0.05])  # 6 and 10 images, in batches of 4, thrice


def test_states_are_where_they_belong_and_cover_parameters():
    run_sites = TWO.run_sites(FedDC())
    end = run_to_end(run_sites, LocalEngine(run_sites))
    state, memory = end["state"], end["memory"]
    assert set(state) == {"model", "drift", "gradient"}
    assert {frozenset(tree) for tree in memory.values()} == {frozenset({"drift", "gradient"})}
    named = {frozenset(tree[key]) for tree in (state, *memory.values()) for key in ("drift", "gradient")}
    assert [set(state["model"]) - names for names in named] == [{"body.1.running_mean", "body.1.running_var"}]


def test_alpha_is_not_negative_and_the_recipe_decays_and_clips():
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        TypeAdapter(FedDC).validate_python({"alpha": -1.0})
    recipe = Training(**FedDC.recipe)
    assert recipe.clip == 10.0
    assert recipe.rate(2, 4) == pytest.approx(0.1 * 0.998**2)


@pytest.mark.parametrize(
    "toy", [Toy(sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1))), Toy(sizes=((4, 1, 1),) * 2, unseen=True)]
)
def test_one_sample_no_sample_and_a_class_nobody_has(toy: Toy):
    """And a class absent at one site. The conformance suite goes through them with every task, policy and plugin."""
    run_sites = toy.run_sites(FedDC())
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_caution_is_told_under_adam(optimizer: str):
    [told] = FedDC().cautions(RunFacts({}, Training(optimizer=optimizer)))
    assert told.startswith(f"feddc does not learn under {optimizer}")


def test_no_caution_is_told_under_sgd():
    assert FedDC().cautions(RunFacts({}, Training(momentum=0.9))) == []


def test_a_client_of_which_every_step_overflows_changes_nothing_but_its_scale():
    run_sites = TWO.run_sites(FedDC(), training=Training(lr=0.1, amp="float16"), net=linear)
    ctx = RoundContext(0, 1, 2, run_sites.task, run_sites.server(0))
    state = run_sites.method.start(ctx)
    down = run_sites.method.broadcast(state)
    jobs = [Job(site, "train", 0, 7, True) for site in (0, 1)]
    still, memory = run_job(run_sites, jobs[0], down, {LOSS_SCALE: TOO_LARGE})
    assert still.failure == ""
    assert memory["drift"].norm() == memory["gradient"].norm() == 0
    assert memory[LOSS_SCALE]["scale"] < TOO_LARGE["scale"]  # from where the next round goes on
    other, others_memory = run_job(run_sites, jobs[1], down, {})
    after = run_sites.method.aggregate(state, {0: still.reply, 1: other.reply}, ctx)
    assert_finite(after)
    assert_same({"g": after["gradient"]}, {"g": others_memory["gradient"] / 2}, "the mean of the clients' gradients")
