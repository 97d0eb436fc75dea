"""Central training: a round by hand on the pooled images, and FedAvg where that comes to the same."""

from __future__ import annotations

from dataclasses import replace

import torch

from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.data.federation import Split
from crossward.engines.local import LocalEngine
from crossward.methods.central import Central
from crossward.methods.fedavg import FedAvg
from crossward.testing.by_hand import initial_matrix, regression_per_site, weight_matrix
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

ONE_STEP = Training(epochs=1, batch_size=64, lr=0.1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))


def test_one_round_by_hand():
    run_sites = TWO.run_sites(Central(), training=ONE_STEP, net=linear)
    a, b = regression_per_site(TWO.run_sites(FedAvg(), net=linear))
    w = initial_matrix(run_sites)
    pooled = (6 * a.gradient(w) + 10 * b.gradient(w)) / 16
    model = run(run_sites, LocalEngine(run_sites), Plan(1)).state["model"]
    torch.testing.assert_close(weight_matrix(model), w - 0.1 * pooled, atol=1e-6, rtol=0)


def test_it_is_fedavg_with_one_site_that_holds_everything():
    federation = TWO.federation()
    first, second = federation.sites
    none = torch.zeros(0, dtype=torch.int64)
    everything = torch.tensor([*range(6), *range(10, 20)])  # the training rows of both
    assert torch.equal(everything, torch.cat([first.train, second.train]))
    together = replace(
        federation, sites=(replace(first, train=everything), Split("site-1", none, second.val, second.test))
    )
    central, fedavg = TWO.run_sites(Central()), TWO.run_sites(FedAvg())
    fedavg.federation = together
    assert_same(run_to_end(central, LocalEngine(central)), run_to_end(fedavg, LocalEngine(fedavg)))


def test_one_full_batch_step_of_fedavg_is_one_of_central_training():
    models = []
    for method in (Central(), FedAvg()):
        run_sites = TWO.run_sites(method, training=ONE_STEP, net=linear)
        models.append(run(run_sites, LocalEngine(run_sites), Plan(3)).state["model"])
    assert (models[0] - models[1]).norm() < 1e-5


def test_every_site_is_still_evaluated():
    run_sites, records = TWO.run_sites(Central()), Records()
    run(run_sites, LocalEngine(run_sites), Plan(1), [records])
    assert records.rounds[0].cohort == ["site-0"]
    assert set(records.rounds[0].evaluation.predictions) == {"site-0", "site-1", "server"}
    assert Central.discloses["model"].what == "every training image"


def test_sites_of_one_sample_or_none_and_a_class_nobody_has():
    run_sites = Toy(sizes=((0, 1, 1), (1, 1, 1), (3, 1, 1)), unseen=True).run_sites(Central())
    assert len(run_sites.federation.sites[0].train) == 4
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))
