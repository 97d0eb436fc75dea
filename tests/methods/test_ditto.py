"""Ditto: rounds by hand, a federation that is FedAvg's to the bit, the two ends of lambda, and two models that share a
site without touching one another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from crossward.core.cohort import Cohort
from crossward.core.method import PERSONAL, answer, restore_predictor
from crossward.core.optimiser_memory import OPTIMISER
from crossward.core.run import Plan, cohorts, run
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.ditto import Ditto, V
from crossward.methods.fedavg import FedAvg
from crossward.plugins.finetune import Finetune
from crossward.plugins.npr import Npr
from crossward.testing.by_hand import SoftmaxRegression, initial_matrix, regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
PIXELS = Toy("segmentation", sizes=((3, 1, 1), (5, 2, 2)))
BOTH = pytest.mark.parametrize("toy", [TWO, PIXELS], ids=["classification", "segmentation"])
FULL_BATCH = Training(epochs=2, batch_size=64, lr=0.1)


def rounds_by_hand(
    sites: list[SoftmaxRegression],
    w: Tensor,
    weight: float,
    rounds: int,
    steps: tuple[int, int] = (2, 2),
    momentum: float = 0,
) -> tuple[Tensor, list[Tensor]]:
    """The global matrix and the personal ones; both momenta are kept from round to round."""
    v = [w for _ in sites]
    pace = [[torch.zeros_like(w)] * 2 for _ in sites]
    for _ in range(rounds):
        ends = []
        for i, site in enumerate(sites):
            own = w
            for _ in range(steps[0]):
                pace[i][0] = momentum * pace[i][0] + site.gradient(own)
                own = own - 0.1 * pace[i][0]
            for _ in range(steps[1]):
                pace[i][1] = momentum * pace[i][1] + site.gradient(v[i]) + weight * (v[i] - w)
                v[i] = v[i] - 0.1 * pace[i][1]
            ends.append(own)
        w = sum(site.n * end for site, end in zip(sites, ends, strict=True)) / sum(site.n for site in sites)
    return w, v


@pytest.mark.parametrize(
    ("method", "steps"),
    [(Ditto(), (2, 2)), (Ditto(weight=0.3, personal_epochs=1), (2, 1)), (Ditto(weight=2.0, personal_epochs=3), (2, 3))],
    ids=["default", "one epoch", "three epochs"],
)
def test_rounds_and_predictions_by_hand(method: Ditto, steps: tuple[int, int]):
    run_sites, records = TWO.run_sites(method, training=FULL_BATCH, net=linear), Records()
    engine = LocalEngine(run_sites)
    w, v = rounds_by_hand(regression_per_site(run_sites), initial_matrix(run_sites), method.weight, 3, steps)
    state = run(run_sites, engine, Plan(3), [records]).state["model"]
    torch.testing.assert_close(weight_matrix(state), w, atol=1e-6, rtol=0)
    for i in (0, 1):
        torch.testing.assert_close(weight_matrix(engine.memory[i][V]), v[i], atol=1e-6, rtol=0)
        site, predicted = run_sites.open(i, 0, {}), records.rounds[-1].evaluation.predictions[f"site-{i}"]
        for found, samples in (("test", site.test), ("common_test", site.common["test"])):
            x = samples.take(samples.index)[0].flatten(1).double()
            p = (x @ v[i][:, :-1].T + v[i][:, -1]).softmax(1)
            torch.testing.assert_close(predicted[found].double(), p, atol=1e-6, rtol=0)
    assert min((own - w).abs().max() for own in v) > 1e-2


# the federation ------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_the_federation_is_fedavg_to_the_bit(toy: Toy, buffers: str):
    """Replies, state and what a site keeps for FedAvg: optimiser and, under "local", statistics."""
    training = Training(2, 4, lr=0.05, momentum=0.5, weight_decay=0.01, clip=1.0, keep_state=True)
    seen = []
    for method in (Ditto(buffers=buffers), FedAvg(buffers=buffers)):
        run_sites = toy.run_sites(method, training=training)
        engine = RecordingEngine(LocalEngine(run_sites))
        state = run(run_sites, engine, Plan(3, evaluate_every=0)).state
        kept = {str(i): {"optimiser": tree[OPTIMISER]["0"]} | _kept(tree) for i, tree in engine.memory.items()}
        replies = {str(n): reply for n, (_, reply) in enumerate(engine.replies)}
        seen.append({"state": state, "kept": kept, "replies": replies})
    assert_same(*seen)
    assert (PERSONAL in seen[0]["kept"]["0"]) is (buffers == "local")


def _kept(memory: dict[str, Weights]) -> dict[str, Weights]:
    return {PERSONAL: memory[PERSONAL]} if PERSONAL in memory else {}


def test_the_federation_of_a_plugin_is_fedavgs_with_that_plugin():
    states = []
    for method in (Ditto(), FedAvg()):
        run_sites = TWO.run_sites(method, (Npr(k=2),))
        states.append(run(run_sites, LocalEngine(run_sites), Plan(2, evaluate_every=0)).state)
    assert_same(*states)


def test_the_personal_model_is_never_sent():
    run_sites = TWO.run_sites(Ditto())
    engine = RecordingEngine(LocalEngine(run_sites))
    run(run_sites, engine, Plan(2, evaluate_every=0))
    for job, reply in engine.replies:
        assert set(reply) == {"model", "n"}
        assert (reply["model"] - engine.memory[job.site][V]).norm() > 1e-2
    assert run_sites.personal


# lambda --------------------------------------------------------------------------------------------------------------


def test_without_the_term_it_is_local_training_from_the_first_global_model():
    run_sites = TWO.run_sites(Ditto(weight=0.0), training=FULL_BATCH, net=linear)
    engine = LocalEngine(run_sites)
    run(run_sites, engine, Plan(3))
    for i, site in enumerate(regression_per_site(run_sites)):
        v = initial_matrix(run_sites)
        for _ in range(6):
            v = v - 0.1 * site.gradient(v)
        torch.testing.assert_close(weight_matrix(engine.memory[i][V]), v, atol=1e-6, rtol=0)


def test_the_term_holds_the_personal_model_near_the_global_one():
    apart = []
    for weight in (0.0, 1.0, 9.0):
        run_sites = TWO.run_sites(Ditto(weight=weight), training=replace(FULL_BATCH, epochs=10), net=linear)
        engine = LocalEngine(run_sites)
        run(run_sites, engine, Plan(1))
        apart.append((weight_matrix(engine.memory[0][V]) - initial_matrix(run_sites)).norm().item())
    assert apart[0] > 1.4 * apart[1] > 2 * apart[2] > 0


def test_statistics_are_not_held():
    """The term covers parameters: one step from the same weights leaves the same statistics whatever its weight."""
    results = []
    for weight in (0.0, 5.0):
        run_sites = TWO.run_sites(Ditto(weight=weight), training=Training(epochs=1, batch_size=64, lr=0.1))
        engine = LocalEngine(run_sites)
        run(run_sites, engine, Plan(1))
        results.append(engine.memory[0][V]["body.1.running_mean"])
    assert torch.equal(*results)
    assert results[0].abs().max() > 0


# two models at a site ------------------------------------------------------------------------------------------------


def test_each_model_has_a_momentum_of_its_own():
    training = replace(FULL_BATCH, momentum=0.6, keep_state=True)
    run_sites = TWO.run_sites(Ditto(weight=0.5), training=training, net=linear)
    engine = LocalEngine(run_sites)
    w, v = rounds_by_hand(regression_per_site(run_sites), initial_matrix(run_sites), 0.5, 3, momentum=0.6)
    state = run(run_sites, engine, Plan(3)).state["model"]
    torch.testing.assert_close(weight_matrix(state), w, atol=1e-6, rtol=0)
    for i in (0, 1):
        assert set(engine.memory[i][OPTIMISER]) == {"0", "1"}
        torch.testing.assert_close(weight_matrix(engine.memory[i][V]), v[i], atol=1e-6, rtol=0)


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_each_model_has_statistics_of_its_own(buffers: str):
    run_sites = TWO.run_sites(Ditto(buffers=buffers))
    engine = RecordingEngine(LocalEngine(run_sites))
    run(run_sites, engine, Plan(2, evaluate_every=0))
    name = "body.1.running_mean"
    own = engine.memory[0][V][name]
    theirs = {
        "average": lambda: next(reply["model"] for job, reply in engine.replies if (job.site, job.round) == (0, 1)),
        "local": lambda: engine.memory[0][PERSONAL],
        "server": lambda: Weights.of(run_sites.server(0).new_net()),
    }[buffers]()[name]
    assert (own - theirs).abs().max() > 1e-3


def test_epochs_default_to_those_of_training():
    training = Training(epochs=4, batch_size=4, lr=0.01)  # two batches of six images
    for method, epochs in ((Ditto(), (4, 4)), (Ditto(personal_epochs=1), (4, 1))):
        site = TWO.run_sites(method, training=training).open(0, 0, {}, fresh=True)
        answer(method, site, "train", {"model": Weights.of(site.model)}, seed=0)
        assert [fit.steps for fit in site.fits] == [2 * e for e in epochs]


# who predicts with what ----------------------------------------------------------------------------------------------


def test_a_site_predicts_with_its_own_model_and_a_newcomer_with_the_global_one():
    toy = Toy(sizes=((6, 2, 2), (10, 2, 2), (8, 2, 2), (0, 2, 2)))
    run_sites, records, plan = toy.run_sites(Ditto()), Records(), Plan(1, participation=0.67)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, plan, [records]).state["model"]
    cohort = cohorts(plan, [0, 1, 2])[0]
    assert list(engine.memory) == cohort
    for i in range(4):
        site, predicted = run_sites.open(i, 0, {}, fresh=True), records.rounds[0].evaluation.predictions[f"site-{i}"]
        (engine.memory[i][V] if i in cohort else state).into(site.model)
        for name, samples in (("test", site.test), ("common_test", site.common["test"])):
            assert torch.equal(predicted[name], site.predict(site.model, samples))


def test_a_site_that_joins_late_starts_from_what_it_is_sent_then():
    """The first misses round 1: without the term, it is two steps of round 2 away from the model of round 1."""
    run_sites = TWO.run_sites(Ditto(weight=0.0), training=FULL_BATCH, net=linear)
    engine = LocalEngine(run_sites)
    run(run_sites, DroppingEngine(engine, 0, 0, "train"), Plan(2))
    first, second = regression_per_site(run_sites)
    v = initial_matrix(run_sites)
    for site in (second, second, first, first):  # round 1 has one client
        v = v - 0.1 * site.gradient(v)
    torch.testing.assert_close(weight_matrix(engine.memory[0][V]), v, atol=1e-6, rtol=0)


@pytest.mark.parametrize("plugins", [(), (Finetune(epochs=2),)], ids=["plain", "ft"])
def test_what_is_deployed_is_what_predicted(plugins: tuple[Finetune, ...]):
    run_sites = TWO.run_sites(Ditto(), plugins)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(1)).state
    exported = Cohort(run_sites, engine, 0, [0], keep=False).ask("deploy", state)[0]
    predicted = Cohort(run_sites, engine, 0, [0], keep=False).ask("predict", state)[0]
    site = run_sites.open(0, 0, {}, fresh=True)
    assert torch.equal(predicted["test"], site.predict(restore_predictor(run_sites.method, site, exported), site.test))
    tuned = (Weights.of(site.model) - engine.memory[0][V]).norm()
    assert tuned > 1e-2 if plugins else tuned == 0


# edges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"weight": -1.0}, {"personal_epochs": 0}], ids=str)
def test_options_are_checked(options: dict[str, object]):
    with pytest.raises(ValidationError):
        TypeAdapter(Ditto).validate_python(options)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("unseen", [False, True])
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(task: str, unseen: bool):
    toy = Toy(task, sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1)), unseen=unseen)
    run_sites, records = toy.run_sites(Ditto()), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
