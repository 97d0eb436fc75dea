"""FedProx: two local steps by hand, for its term is nothing in the first; and FedAvg when mu is 0."""

from __future__ import annotations

import pytest
import torch

from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedprox import FedProx
from crossward.testing.by_hand import initial_matrix, regression_per_site, weight_matrix
from crossward.testing.short_runs import assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

TWO_STEPS = Training(epochs=2, batch_size=64, lr=0.1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))


@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_one_round_by_hand(mu: float):
    run_sites = TWO.run_sites(FedProx(mu=mu), training=TWO_STEPS, net=linear)
    w = initial_matrix(run_sites)
    ends = []
    for site in regression_per_site(run_sites):
        once = w - 0.1 * site.gradient(w)
        ends.append(once - 0.1 * (site.gradient(once) + mu * (once - w)))
    model = run(run_sites, LocalEngine(run_sites), Plan(1)).state["model"]
    torch.testing.assert_close(weight_matrix(model), 6 / 16 * ends[0] + 10 / 16 * ends[1], atol=1e-6, rtol=0)


def test_the_anchor_of_each_round_is_what_that_round_sends():
    run_sites = TWO.run_sites(FedProx(mu=2.0), training=TWO_STEPS, net=linear)
    w = initial_matrix(run_sites)
    for _ in range(2):
        ends = []
        for site in regression_per_site(run_sites):
            once = w - 0.1 * site.gradient(w)
            ends.append(once - 0.1 * (site.gradient(once) + 2.0 * (once - w)))
        w = 6 / 16 * ends[0] + 10 / 16 * ends[1]
    model = run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"]
    torch.testing.assert_close(weight_matrix(model), w, atol=1e-6, rtol=0)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_without_its_term_it_is_fedavg_to_the_bit(task: str):
    ends = []
    for method in (FedProx(mu=0.0), FedAvg()):
        run_sites = Toy(task, sizes=((6, 2, 0), (9, 2, 0)), common=0).run_sites(method)
        ends.append(run_to_end(run_sites, LocalEngine(run_sites)))
    assert_same(*ends)


def test_the_term_holds_a_client_near_what_it_was_sent():
    moved = []
    for mu in (0.0, 1.0, 5.0):
        run_sites = TWO.run_sites(FedProx(mu=mu), training=Training(epochs=10, batch_size=64, lr=0.1), net=linear)
        end = run(run_sites, LocalEngine(run_sites), Plan(1)).state["model"]
        moved.append((weight_matrix(end) - initial_matrix(run_sites)).norm().item())
    assert moved[0] > moved[1] > moved[2] > 0


def test_batch_statistics_are_not_held():
    """The term covers parameters: with any mu, the first step leaves the same statistics as FedAvg's."""
    models = []
    for method in (FedProx(mu=5.0), FedAvg()):
        run_sites = TWO.run_sites(method, training=Training(epochs=1, batch_size=64, lr=0.1))
        models.append(run(run_sites, LocalEngine(run_sites), Plan(1)).state["model"])
    name = "body.1.running_mean"
    assert torch.equal(models[0][name], models[1][name])
    assert models[0][name].abs().max() > 0


@pytest.mark.parametrize(
    "toy", [Toy(sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1))), Toy(sizes=((4, 1, 1),) * 2, unseen=True)]
)
def test_one_sample_no_sample_and_a_class_nobody_has(toy: Toy):
    run_sites = toy.run_sites(FedProx())
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))
