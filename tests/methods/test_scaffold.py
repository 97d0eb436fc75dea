"""SCAFFOLD: rounds by hand, both options and which of them is taken, its invariant, its reduction to FedAvg, and its
effective step size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from crossward.core.engine import Job, run_job
from crossward.core.method import Method, RoundContext
from crossward.core.mixed_precision import LOSS_SCALE
from crossward.core.run import Plan, run
from crossward.core.site import Fit, Site
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.scaffold import Scaffold
from crossward.testing.by_hand import SoftmaxRegression, initial_matrix, regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine
from crossward.testing.invariants import MeanOfMemories
from crossward.testing.short_runs import assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

FULL_BATCH = Training(epochs=1, batch_size=64, lr=0.1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))


@dataclass
class ByHand:
    """Algorithm 1 with option II on full batches, and momentum before the correction is read off the movement."""

    sites: list[SoftmaxRegression]
    x: Tensor
    steps: int
    lr: float = 0.1
    momentum: float = 0.0
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        self.c, self.c_i = torch.zeros_like(self.x), [torch.zeros_like(self.x) for _ in self.sites]

    def round(self) -> None:
        dy, dc = [], []
        for i, site in enumerate(self.sites):
            y, v, velocity, moved = self.x, torch.zeros_like(self.x), 0.0, 0.0
            for _ in range(self.steps):
                v = self.momentum * v + site.gradient(y) - self.c_i[i] + self.c
                y = y - self.lr * v
                velocity = self.momentum * velocity + 1
                moved += self.lr * velocity
            new = self.c_i[i] - self.c + (self.x - y) / moved
            dy.append(y - self.x)
            dc.append(new - self.c_i[i])
            self.c_i[i] = new
        self.x = self.x + self.server_lr * sum(dy) / len(dy)
        self.c = self.c + sum(dc) / len(self.sites)


@pytest.mark.parametrize(
    ("method", "training"),
    [
        (Scaffold(), FULL_BATCH),
        (Scaffold(), replace(FULL_BATCH, epochs=3)),
        (Scaffold(server_lr=0.5), replace(FULL_BATCH, epochs=2)),
        (Scaffold(), replace(FULL_BATCH, epochs=3, momentum=0.9)),
    ],
    ids=["one step", "three steps", "server_lr", "momentum"],
)
def test_three_rounds_by_hand(method: Scaffold, training: Training):
    run_sites = TWO.run_sites(method, training=training, net=linear)
    expected = ByHand(
        regression_per_site(run_sites),
        initial_matrix(run_sites),
        training.epochs,
        0.1,
        training.momentum,
        method.server_lr,
    )
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(3)).state
    for _ in range(3):
        expected.round()
    torch.testing.assert_close(weight_matrix(state["model"]), expected.x, atol=2e-6, rtol=0)
    torch.testing.assert_close(weight_matrix(state["c"]), expected.c, atol=1e-5, rtol=0)
    for i in (0, 1):
        torch.testing.assert_close(weight_matrix(engine.memory[i]["c"]), expected.c_i[i], atol=1e-5, rtol=0)
    assert expected.c.abs().max() > 1e-2


def test_option_1_keeps_the_gradient_at_what_was_sent():
    run_sites = TWO.run_sites(Scaffold(option="I"), training=replace(FULL_BATCH, epochs=3), net=linear)
    engine = LocalEngine(run_sites)
    w = initial_matrix(run_sites)
    run(run_sites, engine, Plan(1))
    for i, site in enumerate(regression_per_site(run_sites)):
        torch.testing.assert_close(weight_matrix(engine.memory[i]["c"]), site.gradient(w), atol=1e-6, rtol=0)


@pytest.mark.parametrize("net", [linear, None], ids=["linear", "batchnorm"])
def test_the_options_agree_for_one_full_batch_step_of_plain_sgd(net):
    ends = []
    for option in ("I", "II"):
        run_sites = TWO.run_sites(Scaffold(option=option), training=FULL_BATCH, net=net)
        engine = LocalEngine(run_sites)
        state = run(run_sites, engine, Plan(3)).state
        ends.append((state["model"], state["c"], engine.memory[0]["c"], engine.memory[1]["c"]))
    for one, other in zip(*ends, strict=True):
        assert (one - other).norm() < 1e-5 * max(1.0, one.norm().item())
    assert ends[0][1].norm() > 1e-2


# which option -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("training", "option"),
    [
        (Training(), "II"),
        (Training(momentum=0.9), "II"),  # Fit.lr counts momentum in
        (Training(optimizer="adam"), "I"),
        (Training(optimizer="adamw"), "I"),
    ],
    ids=["sgd", "momentum", "adam", "adamw"],
)
def test_auto_is_option_2_with_sgd_and_option_1_otherwise(training: Training, option: str):
    ends = []
    for method in (Scaffold(), Scaffold(option=option)):
        run_sites = TWO.run_sites(method, training=replace(training, epochs=2, batch_size=4, lr=0.02))
        ends.append(run_to_end(run_sites, LocalEngine(run_sites)))
    assert_same(*ends)


def training_accuracy(method: Method, training: Training) -> float:
    """Over all sites, of the network that the server has after 15 rounds."""
    run_sites = Toy(sizes=((24, 0, 0), (30, 0, 0), (18, 0, 0)), common=0).run_sites(method, training=training)
    state = run(run_sites, LocalEngine(run_sites), Plan(15, evaluate_every=0)).state
    right = 0
    for i in run_sites.ids:
        site = run_sites.open(i, 0, {})
        state["model"].into(site.model)
        right += int((site.predict(site.model, site.train).argmax(1) == site.train.labels).sum())
    return right / 72


ADAM = Training(epochs=3, batch_size=6, optimizer="adam", lr=0.01)


def test_it_learns_under_adam():
    """FedAvg comes to 0.94; 32 of the 72 images, 0.44, are of one class."""
    assert training_accuracy(Scaffold(), ADAM) > 0.85


def test_option_2_does_not_learn_under_adam():
    """That is why it is not what "auto" takes."""
    assert training_accuracy(Scaffold(option="II"), ADAM) < 0.6


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_mean_of_the_control_variates_is_the_servers(option: str, participation: float, momentum: float):
    toy = Toy(sizes=((12, 2, 0), (5, 2, 0), (0, 2, 0), (9, 2, 0), (1, 0, 0)), common=0)
    training = Training(epochs=2, batch_size=4, lr=0.02, momentum=momentum)
    run_sites = toy.run_sites(Scaffold(option=option), training=training)
    engine = LocalEngine(run_sites)
    invariant = MeanOfMemories(engine.memory, {"c": "c"})
    run(run_sites, engine, Plan(4, participation=participation), [invariant])
    assert max(invariant.gaps) < 1e-5
    assert min(invariant.sizes) > 1e-2


def test_a_client_that_drops_out_keeps_its_control_variate():
    run_sites = Toy(sizes=((6, 0, 0), (9, 0, 0), (5, 0, 0)), common=0).run_sites(Scaffold())
    engine = LocalEngine(run_sites)
    invariant = MeanOfMemories(engine.memory, {"c": "c"})
    run(run_sites, DroppingEngine(engine, 1, 1, "train"), Plan(3), [invariant])
    assert max(invariant.gaps) < 1e-5


@dataclass(frozen=True)
class Uncontrolled(Scaffold):
    """c and c_i kept at zero."""

    def train(self, site: Site, down: Tree) -> Tree:
        reply = super().train(site, down)
        del site.memory["c"]
        return reply

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        return super().aggregate(state, replies, ctx) | {"c": state["c"]}


def test_without_control_it_is_fedavg_with_equal_weights():
    models = []
    for method in (Uncontrolled(), FedAvg()):
        run_sites = Toy(sizes=((8, 2, 2),) * 3).run_sites(method)
        models.append(run(run_sites, LocalEngine(run_sites), Plan(3)).state["model"])
    assert (models[0] - models[1]).norm() < 1e-5


def test_control_variates_cover_parameters_only():
    run_sites = TWO.run_sites(Scaffold())
    state = run(run_sites, LocalEngine(run_sites), Plan(1)).state
    assert set(state["model"]) - set(state["c"]) == {"body.1.running_mean", "body.1.running_var"}


# the effective step size ---------------------------------------------------------------------------------------------


def fit_with_unit_gradient(training: Training, fits: int = 1) -> tuple[Fit, Weights]:
    """The last of some fits, of four steps each, whose gradient is 1 everywhere; and how far it moved the weights."""
    site = TWO.run_sites(FedAvg(), training=training, net=linear).open(0, 0, {})
    for _ in range(fits):
        site.fits.clear()
        before = Weights.of(site.model)
        batches = [site.train.take(site.train.index)] * 4
        fit = site.fit(lambda out: sum(p.sum() for p in site.model.parameters()), batches=batches)
    return fit, before - Weights.of(site.model)


def assert_reads_unit_gradient(fit: Fit, moved: Weights) -> None:
    for tensor in (moved / (fit.steps * fit.lr)).values():
        torch.testing.assert_close(tensor, torch.ones_like(tensor), atol=1e-4, rtol=0)


def test_momentum_is_counted_into_the_step_size():
    fit, moved = fit_with_unit_gradient(Training(lr=0.1, momentum=0.5))
    assert fit.steps == 4
    assert fit.lr == pytest.approx(0.1 * (1 + 1.5 + 1.75 + 1.875) / 4)
    assert_reads_unit_gradient(fit, moved)


def test_a_fit_of_which_every_step_overflows_changes_nothing_but_the_scale():
    run_sites = TWO.run_sites(Scaffold(), training=Training(lr=0.1, amp="float16"), net=linear)
    too_large = {LOSS_SCALE: {"scale": 2.0**100, "steps": 0}}
    state = run_sites.method.start(RoundContext(0, 1, 2, run_sites.task, run_sites.server(0)))
    outcome, memory = run_job(run_sites, Job(0, "train", 0, 7, True), state, too_large)
    assert outcome.failure == ""
    assert outcome.reply["dy"].norm() == outcome.reply["dc"].norm() == 0
    assert memory["c"].norm() == 0
    assert memory[LOSS_SCALE]["scale"] < 2.0**100  # from where the next round goes on


def test_plain_sgd_has_its_nominal_step_size():
    fit, moved = fit_with_unit_gradient(Training(lr=0.1))
    assert fit.lr == pytest.approx(0.1)
    assert_reads_unit_gradient(fit, moved)


def test_momentum_kept_from_the_round_before_is_counted_too():
    assert_reads_unit_gradient(*fit_with_unit_gradient(Training(lr=0.1, momentum=0.5, keep_state=True), fits=2))


def test_a_schedule_is_counted_into_the_step_size():
    """Two epochs of two batches at rates 0.1 and 0.05."""
    training = Training(epochs=2, batch_size=3, lr=0.1, schedule="epoch", gamma=0.5)
    site = TWO.run_sites(FedAvg(), training=training, net=linear).open(0, 0, {})
    before = Weights.of(site.model)
    fit = site.fit(lambda out: sum(p.sum() for p in site.model.parameters()))
    assert fit.steps == 4
    assert fit.lr == pytest.approx(0.075)
    assert_reads_unit_gradient(fit, before - Weights.of(site.model))


@pytest.mark.parametrize(
    "toy", [Toy(sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1))), Toy(sizes=((4, 1, 1),) * 2, unseen=True)]
)
@pytest.mark.parametrize("option", ["I", "II"])
def test_one_sample_no_sample_and_a_class_nobody_has(toy: Toy, option: str):
    run_sites = toy.run_sites(Scaffold(option=option))
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))
