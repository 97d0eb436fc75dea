"""Random (Freezing): rounds by hand, a head that nothing moves, and FedAvg whose head gets no gradient."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.net import Net
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, run
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.random_frozen import RandomFrozen
from crossward.testing.by_hand import SoftmaxRegression, regression_per_site
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import CLASSES, SIDE, Toy

TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
TWO_STEPS = Training(epochs=2, batch_size=64, lr=0.1)


def two_layers() -> nn.Module:
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 5)), nn.Linear(5, len(CLASSES)), width=5)


def layer(weights: Weights, name: str) -> Tensor:
    """As one matrix, the bias in its last column."""
    return torch.cat([weights[f"{name}.weight"], weights[f"{name}.bias"][:, None]], 1).double()


def body_gradient(site: SoftmaxRegression, a: Tensor, h: Tensor) -> Tensor:
    """Of the mean cross entropy of softmax(h (a x, 1)), for a."""
    z = torch.cat([site.x @ a.T, torch.ones(site.n, 1)], 1)
    error = ((z @ h.T).softmax(1) - F.one_hot(site.y, len(h))) / site.n
    return (error @ h[:, :-1]).T @ site.x


def test_two_rounds_by_hand():
    run_sites = TWO.run_sites(RandomFrozen(), training=TWO_STEPS, net=two_layers)
    begun = Weights.of(run_sites.server(0).new_net())
    a, h = layer(begun, "body.1"), layer(begun, "head")
    for _ in range(2):
        ends = []
        for site in regression_per_site(run_sites):
            once = a - 0.1 * body_gradient(site, a, h)
            ends.append(once - 0.1 * body_gradient(site, once, h))
        a = 6 / 16 * ends[0] + 10 / 16 * ends[1]
    model = run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"]
    torch.testing.assert_close(layer(model, "body.1"), a, atol=1e-6, rtol=0)
    assert torch.equal(layer(model, "head"), h)
    assert (a - layer(begun, "body.1")).abs().max() > 1e-2


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_the_body_alone_comes_back(buffers: str):
    run_sites = TWO.run_sites(RandomFrozen(buffers=buffers))
    engine = RecordingEngine(LocalEngine(run_sites))
    run(run_sites, engine, Plan(1, evaluate_every=0))
    body = ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]
    statistics = ["body.1.running_mean", "body.1.running_var"] if buffers == "average" else []
    for _, reply in engine.replies:
        assert set(reply) == {"model", "n"}
        assert list(reply["model"]) == body + statistics
    assert [reply["n"] for _, reply in engine.replies] == [6, 10]


def normalised_head() -> nn.Module:
    body = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 5), nn.BatchNorm1d(5))
    return Net(body, nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, len(CLASSES))), width=5)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_nothing_moves_the_head(optimizer: str):
    """Neither decay nor momentum, nor images that pass through its BatchNorm."""
    training = Training(2, 4, optimizer, lr=0.05, momentum=0.9, weight_decay=0.1, keep_state=True)
    run_sites = TWO.run_sites(RandomFrozen(), training=training, net=normalised_head)
    before = Weights.of(run_sites.server(0).new_net())
    after = run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"]
    assert [name for name in before if torch.equal(before[name], after[name])] == [
        "head.0.weight", "head.0.bias", "head.0.running_mean", "head.0.running_var", "head.1.weight", "head.1.bias",
    ]  # fmt: skip


@dataclass(frozen=True)
class HeadStill(Plugin):
    def edit_gradients(self, site: Site, gradients: Weights) -> Weights:
        return Weights({n: g * 0 if n.startswith("head.") else g for n, g in gradients.items()})


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_it_is_fedavg_whose_head_gets_no_gradient_to_the_bit(task: str):
    ends = []
    for method, plugins in ((RandomFrozen(), ()), (FedAvg(), (HeadStill(),))):  # half and half of a head is that head
        run_sites = Toy(task, sizes=((8, 2, 2), (8, 2, 2))).run_sites(method, plugins)
        ends.append(run_to_end(run_sites, LocalEngine(run_sites)))
    assert_same(*ends)


def test_there_is_one_model_for_all():
    run_sites, records = TWO.run_sites(RandomFrozen()), Records()
    assert not run_sites.personal
    state = run(run_sites, LocalEngine(run_sites), Plan(1), [records]).state
    site = run_sites.open(1, 0, {}, fresh=True)
    state["model"].into(site.model)
    predictions = records.rounds[0].evaluation.predictions
    assert torch.equal(predictions["site-1"]["test"], site.predict(site.model, site.test))
    assert "test" in predictions["server"]


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("unseen", [False, True])
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(task: str, unseen: bool):
    toy = Toy(task, sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1)), unseen=unseen)
    run_sites, records = toy.run_sites(RandomFrozen()), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
