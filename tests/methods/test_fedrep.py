"""FedRep: rounds by hand, heads that stay, what is frozen while the other part is trained, and random-frozen when the
heads do not move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core import select
from crossward.core.method import PERSONAL, answer
from crossward.core.net import Net
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, cohorts, run
from crossward.core.seeds import seeded
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedrep import FedRep
from crossward.methods.random_frozen import RandomFrozen
from crossward.testing.by_hand import SoftmaxRegression, regression_per_site
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, run_to_end
from crossward.testing.toy import CLASSES, SIDE, Toy, classifier

TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
HEAD = ["head.weight", "head.bias"]
BODY = ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]
STATISTICS = ["body.1.running_mean", "body.1.running_var"]


def two_layers() -> nn.Module:
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 5)), nn.Linear(5, len(CLASSES)), width=5)


def layer(weights: Weights, name: str) -> Tensor:
    """As one matrix, the bias in its last column."""
    return torch.cat([weights[f"{name}.weight"], weights[f"{name}.bias"][:, None]], 1).double()


def gradients(site: SoftmaxRegression, a: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Of the mean cross entropy of softmax(h (a x, 1)), for a and for h."""
    z = torch.cat([site.x @ a.T, torch.ones(site.n, 1)], 1)
    error = ((z @ h.T).softmax(1) - F.one_hot(site.y, len(h))) / site.n
    return (error @ h[:, :-1]).T @ site.x, error.T @ z


@pytest.mark.parametrize(
    ("method", "steps"), [(FedRep(), (2, 2)), (FedRep(head_epochs=3, body_epochs=1), (3, 1))], ids=["default", "3 + 1"]
)
def test_two_rounds_by_hand(method: FedRep, steps: tuple[int, int]):
    run_sites = TWO.run_sites(method, training=Training(epochs=2, batch_size=64, lr=0.1), net=two_layers)
    engine = LocalEngine(run_sites)
    a = layer(Weights.of(run_sites.server(0).new_net()), "body.1")
    heads = [layer(Weights.of(run_sites.open(i, 0, {}, fresh=True).model), "head") for i in (0, 1)]
    begun = [a, *heads]
    model = run(run_sites, engine, Plan(2)).state["model"]
    for _ in range(2):
        ends = []
        for i, site in enumerate(regression_per_site(run_sites)):
            own = a
            for _ in range(steps[0]):
                heads[i] = heads[i] - 0.1 * gradients(site, own, heads[i])[1]
            for _ in range(steps[1]):
                own = own - 0.1 * gradients(site, own, heads[i])[0]
            ends.append(own)
        a = 6 / 16 * ends[0] + 10 / 16 * ends[1]
    torch.testing.assert_close(layer(model, "body.1"), a, atol=1e-6, rtol=0)
    for i in (0, 1):
        torch.testing.assert_close(layer(engine.memory[i][PERSONAL], "head"), heads[i], atol=1e-6, rtol=0)
    assert all((old - new).abs().max() > 1e-2 for old, new in zip(begun, [a, *heads], strict=True))
    assert (heads[0] - heads[1]).abs().max() > 1e-2


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_bodies_travel_and_heads_stay(buffers: str):
    run_sites = TWO.run_sites(FedRep(buffers=buffers))
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(1, evaluate_every=0)).state
    for _, reply in engine.replies:
        assert set(reply) == {"model", "n"}
        assert list(reply["model"]) == BODY + (STATISTICS if buffers == "average" else [])
    assert list(state["model"]) == BODY + ([] if buffers == "local" else STATISTICS)
    assert {*engine.memory[0][PERSONAL]} == {*HEAD, *(STATISTICS if buffers == "local" else [])}


@dataclass(frozen=True)
class Snapshots(Plugin):
    """The whole network before and after every fit."""

    taken: list[Weights] = field(default_factory=list)

    def before_fit(self, site: Site) -> None:
        self.taken.append(Weights.of(site.model))

    def after_fit(self, site: Site) -> None:
        self.taken.append(Weights.of(site.model))


def test_each_part_is_frozen_while_the_other_is_trained():
    """BatchNorm statistics, too: they wait for the body's turn."""
    album = Snapshots()
    run_sites = TWO.run_sites(FedRep(), (album,))
    run(run_sites, LocalEngine(run_sites), Plan(1, evaluate_every=0))
    assert len(album.taken) == 8  # two fits at two sites
    for at, moved in ((0, HEAD), (2, BODY + STATISTICS), (4, HEAD), (6, BODY + STATISTICS)):
        before, after = album.taken[at : at + 2]
        assert [name for name in before if not torch.equal(before[name], after[name])] == moved


def test_epochs_default_to_those_of_training():
    training, batches = Training(epochs=4, batch_size=4, lr=0.01), 2  # six images
    for method, epochs in ((FedRep(), (4, 4)), (FedRep(head_epochs=3), (3, 4)), (FedRep(body_epochs=1), (4, 1))):
        site = TWO.run_sites(method, training=training).open(0, 0, {}, fresh=True)
        answer(method, site, "train", {"model": Weights.of(site.model, select.body)}, seed=0)
        assert [fit.steps for fit in site.fits] == [batches * e for e in epochs]


@dataclass(frozen=True)
class Still(Plugin):
    """No gradient for one part."""

    part: str = "head"

    def edit_gradients(self, site: Site, gradients: Weights) -> Weights:
        return Weights({n: g * 0 if n.startswith(self.part) else g for n, g in gradients.items()})


def alike() -> nn.Module:
    """The same initial weights wherever it is built."""
    with seeded(3):
        return classifier()


def test_with_heads_that_are_alike_and_do_not_move_it_is_random_frozen():
    training, states = Training(epochs=2, batch_size=64, lr=0.1), []
    for method in (FedRep(), RandomFrozen()):
        run_sites = TWO.run_sites(method, (Still("head"),), training, alike)
        states.append(run(run_sites, LocalEngine(run_sites), Plan(3)).state["model"])
    assert (states[0] - states[1].only(states[0])).norm() < 1e-5
    assert (states[0] - Weights.of(alike(), select.body)).norm() > 1e-2


def test_with_a_body_that_does_not_move_heads_are_trained_alone():
    """On random features that all sites share, nothing is learnt in common."""
    run_sites = TWO.run_sites(FedRep(buffers="server"), (Still("body"),))
    engine = LocalEngine(run_sites)
    begun = Weights.of(run_sites.server(0).new_net(), select.body)
    state = run(run_sites, engine, Plan(2)).state["model"]
    assert (state - begun).norm() < 1e-6  # the mean of two equal bodies rounds
    for i in (0, 1):
        initial = Weights.of(run_sites.open(i, 0, {}, fresh=True).model, select.head)
        assert (engine.memory[i][PERSONAL] - initial).norm() > 1e-2


def personal_prediction(toy: Toy, records: Records, state: Weights, i: int, head: Callable[[Site], Weights]) -> bool:
    """Whether site i predicted all its sets with the global body and that head."""
    site = toy.run_sites(FedRep()).open(i, 0, {}, fresh=True)
    head(site).into(site.model)
    state.into(site.model)
    predicted = records.rounds[-1].evaluation.predictions[f"site-{i}"]
    sets = {"test": site.test, "val": site.val, "common_test": site.common["test"]}
    return all(torch.equal(predicted[name], site.predict(site.model, samples)) for name, samples in sets.items())


def test_a_site_predicts_with_its_own_head_and_a_newcomer_with_its_initial_one():
    toy = Toy(sizes=((6, 2, 2), (10, 2, 2), (8, 2, 2), (0, 2, 2)))
    run_sites, records, plan = toy.run_sites(FedRep()), Records(), Plan(1, participation=0.67)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, plan, [records]).state["model"]
    cohort = cohorts(plan, [0, 1, 2])[0]
    assert list(engine.memory) == cohort
    assert len(cohort) == 2
    for i in range(4):
        kept = engine.memory[i][PERSONAL] if i in cohort else None
        assert personal_prediction(toy, records, state, i, lambda site, kept=kept: kept or Weights.of(site.model))


def test_the_federations_own_test_set_is_scored_as_the_mean_over_sites():
    run_sites, records = TWO.run_sites(FedRep()), Records()
    run(run_sites, LocalEngine(run_sites), Plan(1), [records])
    evaluation, truth = records.rounds[0].evaluation, run_sites.targets(-1, "test")
    each = [(p["common_test"].argmax(1) == truth).double().mean().item() for p in evaluation.predictions.values()]
    assert len(each) == 2
    assert evaluation.metrics["test"]["global"]["accuracy"] == pytest.approx(sum(each) / 2)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("unseen", [False, True])
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(task: str, unseen: bool):
    toy = Toy(task, sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1)), unseen=unseen)
    run_sites, records = toy.run_sites(FedRep()), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
