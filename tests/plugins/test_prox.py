"""prox: FedProx on FedAvg to the bit, its term by hand on another method, and nothing when its weight is 0 or ft tunes
a copy."""

from __future__ import annotations

import pytest
import torch

from crossward.core.plugin import Plugin
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedprox import FedProx
from crossward.methods.local import Local
from crossward.methods.scaffold import Scaffold
from crossward.plugins.finetune import Finetune
from crossward.plugins.prox import Prox
from crossward.testing.by_hand import initial_matrix, regression_per_site, weight_matrix
from crossward.testing.short_runs import Records, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_on_fedavg_it_is_fedprox_to_the_bit(task: str, momentum: float):
    toy, training = Toy(task, sizes=((6, 2, 0), (9, 2, 0)), common=0), Training(2, 4, lr=0.05, momentum=momentum)
    plugged = toy.run_sites(FedAvg(), (Prox(weight=0.3),), training)
    method = toy.run_sites(FedProx(mu=0.3), training=training)
    assert_same(run_to_end(plugged, LocalEngine(plugged)), run_to_end(method, LocalEngine(method)))


@pytest.mark.parametrize("plugins", [(Prox(weight=0.3), Finetune()), (Finetune(), Prox(weight=0.3))], ids=str)
def test_fine_tuning_is_left_as_it_is(plugins: tuple[Plugin, ...]):
    """fedavg+prox+ft is fedprox+ft, predictions and all: the copy that ft tunes may go where it likes."""
    predictions = []
    for method, carried in ((FedAvg(), plugins), (FedProx(mu=0.3), (Finetune(),))):
        run_sites, records = TWO.run_sites(method, carried), Records()
        run_to_end(run_sites, LocalEngine(run_sites), records)
        predictions.append(records.rounds[-1].evaluation.predictions)
    assert_same(*predictions)


def test_without_weight_it_is_nothing():
    plain, plugged = TWO.run_sites(Scaffold()), TWO.run_sites(Scaffold(), (Prox(weight=0.0),))
    assert_same(run_to_end(plugged, LocalEngine(plugged)), run_to_end(plain, LocalEngine(plain)))


def test_two_steps_by_hand_where_weights_stay():
    """On local training the anchor is what the site itself began the round with."""
    training = Training(epochs=2, batch_size=64, lr=0.1)
    run_sites = TWO.run_sites(Local(), (Prox(weight=3.0),), training, linear)
    engine = LocalEngine(run_sites)
    w = weight_matrix(Weights.of(run_sites.open(1, 0, {}).model))
    site = regression_per_site(run_sites)[1]
    run(run_sites, engine, Plan(2))
    for _ in range(2):
        once = w - 0.1 * site.gradient(w)
        w = once - 0.1 * (site.gradient(once) + 3.0 * (once - w))
    torch.testing.assert_close(weight_matrix(engine.memory[1]["_personal"]), w, atol=1e-6, rtol=0)


def test_on_scaffold_by_hand():
    """The first round, where the control variates are 0: the correction and the term add up in what c_i becomes."""
    training = Training(epochs=2, batch_size=64, lr=0.1)
    run_sites = TWO.run_sites(Scaffold(), (Prox(weight=3.0),), training, linear)
    engine = LocalEngine(run_sites)
    run(run_sites, engine, Plan(1))
    w = initial_matrix(run_sites)
    for i, site in enumerate(regression_per_site(run_sites)):
        once = w - 0.1 * site.gradient(w)
        twice = once - 0.1 * (site.gradient(once) + 3.0 * (once - w))
        torch.testing.assert_close(weight_matrix(engine.memory[i]["c"]), (w - twice) / 0.2, atol=1e-5, rtol=0)
