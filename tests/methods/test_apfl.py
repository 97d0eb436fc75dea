"""APFL: rounds by hand with alpha fixed and adaptive, its two ends, FedAvg's federation to the bit, and who predicts
with which mixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from crossward.core.cohort import Cohort
from crossward.core.method import PERSONAL, restore_predictor
from crossward.core.optimiser_memory import OPTIMISER
from crossward.core.run import Plan, cohorts, run
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.apfl import ALPHA, APFL, LOCAL, Step, mixture
from crossward.methods.fedavg import FedAvg
from crossward.plugins.finetune import Finetune
from crossward.testing.by_hand import SoftmaxRegression, initial_matrix, regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
PIXELS = Toy("segmentation", sizes=((3, 1, 1), (5, 2, 2)))
BOTH = pytest.mark.parametrize("toy", [TWO, PIXELS], ids=["classification", "segmentation"])
FULL_BATCH = Training(epochs=2, batch_size=64, lr=0.1)


def local(memory: dict[str, Weights]) -> Weights:
    """v_i under the names of the network."""
    return Weights({n.removeprefix("v."): t for n, t in memory[PERSONAL].items() if n.startswith("v.")})


@dataclass
class ByHand:
    """Algorithm 1 on full batches, and alpha as it adapts at the first step of each round."""

    sites: Sequence[SoftmaxRegression]
    w: Tensor
    alpha: float
    adaptive: bool = False
    steps: int = 2
    lr: float = 0.1
    momentum: float = 0.0

    def __post_init__(self) -> None:
        self.v = [self.w for _ in self.sites]
        self.alphas = [self.alpha for _ in self.sites]
        self.pace = [[torch.zeros_like(self.w)] * 2 for _ in self.sites]

    def round(self) -> None:
        ends = [self.end(i) for i in range(len(self.sites))]
        total = sum(site.n for site in self.sites)
        self.w = sum(site.n / total * end for site, end in zip(self.sites, ends, strict=True))

    def end(self, i: int) -> Tensor:
        w, v, alpha, site, pace = self.w, self.v[i], self.alphas[i], self.sites[i], self.pace[i]
        for step in range(self.steps):
            of_w, at_mixture = site.gradient(w), site.gradient(alpha * v + (1 - alpha) * w)
            slope = ((v - w) * at_mixture).sum().item()
            pace[:] = [self.momentum * pace[0] + of_w, self.momentum * pace[1] + alpha * at_mixture]
            w, v = w - self.lr * pace[0], v - self.lr * pace[1]
            if self.adaptive and step == 0:
                alpha = min(1.0, max(0.0, alpha - self.lr * slope))
        self.v[i], self.alphas[i] = v, alpha
        return w


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("alpha", [0.5, 0.3])
def test_rounds_and_predictions_by_hand(alpha: float, adaptive: bool):
    method = APFL(alpha=alpha, adaptive=adaptive)
    run_sites, records = TWO.run_sites(method, training=FULL_BATCH, net=linear), Records()
    engine = LocalEngine(run_sites)
    expected = ByHand(regression_per_site(run_sites), initial_matrix(run_sites), alpha, adaptive)
    for _ in range(3):
        expected.round()
    state = run(run_sites, engine, Plan(3), [records]).state["model"]
    torch.testing.assert_close(weight_matrix(state), expected.w, atol=1e-6, rtol=0)
    for i in (0, 1):
        torch.testing.assert_close(weight_matrix(local(engine.memory[i])), expected.v[i], atol=1e-6, rtol=0)
        assert engine.memory[i][ALPHA] == pytest.approx(expected.alphas[i], abs=1e-6)
        v_bar = expected.alphas[i] * expected.v[i] + (1 - expected.alphas[i]) * expected.w
        site, predicted = run_sites.open(i, 0, {}), records.rounds[-1].evaluation.predictions[f"site-{i}"]
        for found, samples in (("test", site.test), ("common_test", site.common["test"])):
            x = samples.take(samples.index)[0].flatten(1).double()
            p = (x @ v_bar[:, :-1].T + v_bar[:, -1]).softmax(1)
            torch.testing.assert_close(predicted[found].double(), p, atol=1e-6, rtol=0)
        assert (expected.v[i] - expected.w).abs().max() > 1e-2
        assert (abs(expected.alphas[i] - alpha) > 1e-3) is adaptive


def test_the_mixture_in_numbers():
    net = nn.Linear(1, 1)
    net.v = nn.Linear(1, 1)
    Weights({n: torch.full((1, 1) if "weight" in n else (1,), x) for n, x in
             [("weight", 1.0), ("bias", 2.0), ("v.weight", 5.0), ("v.bias", -2.0)]}).into(net)  # fmt: skip
    result = mixture(net, 0.25)
    assert {name: t.item() for name, t in result.items()} == {"weight": 2.0, "bias": 1.0}
    (3 * result["weight"] + 7 * result["bias"]).sum().backward()
    assert (net.v.weight.grad.item(), net.v.bias.grad.item()) == (3.0, 7.0)
    assert net.weight.grad is None


# the federation ------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_the_federation_is_fedavg_to_the_bit(toy: Toy, adaptive: bool, buffers: str):
    training = Training(2, 4, lr=0.05, momentum=0.5, weight_decay=0.01, keep_state=True)
    seen = []
    for method in (APFL(adaptive=adaptive, buffers=buffers), FedAvg(buffers=buffers)):
        run_sites = toy.run_sites(method, training=training)
        engine = RecordingEngine(LocalEngine(run_sites))
        state = run(run_sites, engine, Plan(3, evaluate_every=0)).state
        seen.append({"state": state, "replies": {str(n): reply for n, (_, reply) in enumerate(engine.replies)}})
    assert_same(*seen)


def test_only_w_travels():
    run_sites, records = TWO.run_sites(APFL(adaptive=True)), Records()
    engine = RecordingEngine(LocalEngine(run_sites))
    run(run_sites, engine, Plan(1, evaluate_every=0), [records])
    net = FedAvg().build(run_sites.server(0).new_net(), run_sites.spec(0))
    size = sum(t.numel() for n, t in Weights.of(net).items() if not n.startswith("v.")) * 4
    moved = {(t.direction, t.item): t.bytes for t in records.rounds[0].traffic if t.item == "model"}
    assert moved == {("down", "model"): 2 * size, ("up", "model"): 2 * size}
    for _, reply in engine.replies:
        assert set(reply) == {"model", "n"}
        assert not [name for name in reply["model"] if name.startswith("v.")]
    assert {*engine.memory[0][PERSONAL]} == {*LOCAL.names(net)}
    assert len(LOCAL.names(net)) == 8


# alpha ---------------------------------------------------------------------------------------------------------------


@BOTH
def test_with_alpha_0_it_predicts_as_fedavg_to_the_bit(toy: Toy):
    results = []
    for method in (APFL(alpha=0.0), FedAvg()):
        run_sites, records = toy.run_sites(method), Records()
        run(run_sites, LocalEngine(run_sites), Plan(2), [records])
        results.append([record.evaluation.predictions for record in records.rounds])
    for ours, fedavgs in zip(*results, strict=True):
        for i in ("site-0", "site-1"):
            assert torch.equal(ours[i]["test"], fedavgs[i]["test"])
            assert torch.equal(ours[i]["common_test"], fedavgs["server"]["test"])


def test_with_alpha_1_it_is_local_training_from_the_first_global_model():
    run_sites, records = TWO.run_sites(APFL(alpha=1.0), training=FULL_BATCH, net=linear), Records()
    engine = LocalEngine(run_sites)
    run(run_sites, engine, Plan(3), [records])
    for i, data in enumerate(regression_per_site(run_sites)):
        v = initial_matrix(run_sites)
        for _ in range(6):
            v = v - 0.1 * data.gradient(v)
        torch.testing.assert_close(weight_matrix(local(engine.memory[i])), v, atol=1e-6, rtol=0)
        site = run_sites.open(i, 0, {})
        x = site.test.take(site.test.index)[0].flatten(1).double()
        p, predicted = (
            (x @ v[:, :-1].T + v[:, -1]).softmax(1),
            records.rounds[-1].evaluation.predictions[f"site-{i}"]["test"],
        )
        torch.testing.assert_close(predicted.double(), p, atol=1e-6, rtol=0)


@BOTH
def test_with_alpha_1_both_models_of_a_first_round_are_one_to_the_bit(toy: Toy):
    """The same start, batches, optimiser and BatchNorm statistics."""
    run_sites = toy.run_sites(APFL(alpha=1.0), training=Training(2, 4, lr=0.05, momentum=0.5))
    engine = RecordingEngine(LocalEngine(run_sites))
    run(run_sites, engine, Plan(1, evaluate_every=0))
    for job, reply in engine.replies:
        assert_same({"model": local(engine.memory[job.site]).only(reply["model"])}, {"model": reply["model"]})


def test_with_alpha_0_the_local_model_stays():
    run_sites = TWO.run_sites(APFL(alpha=0.0), training=FULL_BATCH, net=linear)
    engine = LocalEngine(run_sites)
    run(run_sites, engine, Plan(2))
    assert torch.equal(weight_matrix(local(engine.memory[0])), initial_matrix(run_sites))


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_alpha_can_leave_its_ends_and_never_the_interval(alpha: float):
    """Weights that are far apart, and a rate that throws alpha from one end to the other."""
    run_sites = TWO.run_sites(APFL(alpha=alpha, adaptive=True), training=replace(FULL_BATCH, lr=5.0), net=linear)
    site = run_sites.open(0, 1, {}, fresh=True)
    w, data = Weights.of(site.model, run_sites.method.travels), regression_per_site(run_sites)[0]
    downhill = data.gradient(weight_matrix(w))
    moved = (
        weight_matrix(w) - (9.0 if alpha == 0 else -9.0) * downhill
    )  # v is better than w when alpha is 0, and worse when 1
    v = Weights({"v.head.weight": moved[:, :-1].float(), "v.head.bias": moved[:, -1].float()})
    v.into(site.model)
    site.memory[ALPHA] = alpha
    run_sites.method.train(site, {"model": w})
    assert site.memory[ALPHA] == 1.0 - alpha


def test_a_step_that_overflows_does_not_move_alpha():
    """In mixed precision the first steps may, and are not taken: alpha waits for one that is."""
    site = TWO.run_sites(APFL(), training=FULL_BATCH, net=linear).open(0, 0, {}, fresh=True)
    Weights({"v.head.bias": Weights.of(site.model)["head.bias"] + 0.5}).into(site.model)
    step = Step(site, 0.5, adapts=True)
    for gradient, alpha in ((torch.inf, 0.5), (torch.nan, 0.5), (1.0, 0.5 - 0.1 * 0.5 * 3), (1.0, 0.5 - 0.1 * 0.5 * 3)):
        of = Weights({"head.bias": torch.ones(3), "v.head.bias": torch.full((3,), gradient)})
        scaled = step.scaled(of)
        assert step.alpha == pytest.approx(alpha, abs=1e-6)
        assert torch.equal(scaled["head.bias"], torch.ones(3))
    assert not step.adapts


# who predicts with what ----------------------------------------------------------------------------------------------


def test_each_model_has_a_momentum_of_its_own():
    training = replace(FULL_BATCH, momentum=0.6, keep_state=True)
    run_sites = TWO.run_sites(APFL(alpha=0.4), training=training, net=linear)
    engine = LocalEngine(run_sites)
    expected = ByHand(regression_per_site(run_sites), initial_matrix(run_sites), 0.4, momentum=0.6)
    for _ in range(3):
        expected.round()
    state = run(run_sites, engine, Plan(3)).state["model"]
    torch.testing.assert_close(weight_matrix(state), expected.w, atol=1e-6, rtol=0)
    assert {"head.weight", "v.head.weight"} < {*engine.memory[0][OPTIMISER]["0"]}
    for i in (0, 1):
        torch.testing.assert_close(weight_matrix(local(engine.memory[i])), expected.v[i], atol=1e-6, rtol=0)


def test_a_site_predicts_with_its_mixture_and_a_newcomer_with_the_global_model():
    """BatchNorm statistics are mixed as weights are."""
    toy = Toy(sizes=((6, 2, 2), (10, 2, 2), (8, 2, 2), (0, 2, 2)))
    run_sites, records, plan = toy.run_sites(APFL(alpha=0.25)), Records(), Plan(1, participation=0.67)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, plan, [records]).state["model"]
    cohort = cohorts(plan, [0, 1, 2])[0]
    assert list(engine.memory) == cohort
    for i in range(4):
        site, predicted = run_sites.open(i, 0, {}, fresh=True), records.rounds[0].evaluation.predictions[f"site-{i}"]
        (0.25 * local(engine.memory[i]) + 0.75 * state if i in cohort else state).into(site.model)
        for name, samples in (("test", site.test), ("common_test", site.common["test"])):
            assert torch.equal(predicted[name], site.predict(site.model, samples))
    assert run_sites.personal


def test_a_site_that_joins_late_starts_from_what_it_is_sent_then():
    run_sites = TWO.run_sites(APFL(alpha=1.0), training=FULL_BATCH, net=linear)
    engine = LocalEngine(run_sites)
    run(run_sites, DroppingEngine(engine, 0, 0, "train"), Plan(2))
    first, second = regression_per_site(run_sites)
    v = initial_matrix(run_sites)
    for site in (second, second, first, first):  # round 1 has one client
        v = v - 0.1 * site.gradient(v)
    torch.testing.assert_close(weight_matrix(local(engine.memory[0])), v, atol=1e-6, rtol=0)


@pytest.mark.parametrize("buffers", ["average", "local"])
@pytest.mark.parametrize("plugins", [(), (Finetune(epochs=2),)], ids=["plain", "ft"])
def test_what_is_deployed_is_what_predicted(plugins: tuple[Finetune, ...], buffers: str):
    run_sites = TWO.run_sites(APFL(buffers=buffers), plugins)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(2)).state
    exported = Cohort(run_sites, engine, 0, [0], keep=False).ask("deploy", state)[0]
    predicted = Cohort(run_sites, engine, 0, [0], keep=False).ask("predict", state)[0]
    site = run_sites.open(0, 0, {}, fresh=True)
    assert torch.equal(predicted["test"], site.predict(restore_predictor(run_sites.method, site, exported), site.test))
    head = {n: t for n, t in Weights.of(site.model).items() if n.startswith("head")}
    mixed = 0.5 * local(engine.memory[0]).only(head) + 0.5 * state["model"].only(head)
    tuned = (Weights(head) - mixed).norm()
    assert tuned > 1e-2 if plugins else tuned == 0


# edges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"alpha": -0.1}, {"alpha": 1.1}, {"adaptive": "often"}], ids=str)
def test_options_are_checked(options: dict[str, object]):
    with pytest.raises(ValidationError):
        TypeAdapter(APFL).validate_python(options)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("adaptive", [False, True])
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(task: str, unseen: bool, adaptive: bool):
    toy = Toy(task, sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1)), unseen=unseen)
    run_sites, records = toy.run_sites(APFL(adaptive=adaptive)), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
