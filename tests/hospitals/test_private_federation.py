"""Differential privacy across hospitals: weights and prototypes over a loopback federation, each site with a ledger of
its own, until a budget is spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.tree import items
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedproto import FedProto
from crossward.privacy.accounting import epsilon_of, merge
from crossward.privacy.ledger import Budget, site_ledger
from crossward.privacy.method_support import planned_statistics, private_epochs
from crossward.privacy.run_privacy import plan_privacy
from crossward.privacy.settings import PrivacySettings
from crossward.testing.loopback_federation import loopback_federation
from crossward.testing.short_runs import Records
from crossward.testing.toy import Toy, linear

pytest.importorskip("dp_accounting")
SIZES = ((14, 3, 0), (17, 3, 0), (12, 3, 0))
TRAINING = Training(epochs=1, batch_size=5, lr=0.05)
ROUNDS = 2


def private_sites(method):
    run_sites = Toy("classification", SIZES, common=0).run_sites(method, (), TRAINING, linear)
    run_sites.privacy = plan_privacy(
        PrivacySettings(unit="image", noise=2.0, delta=1e-3, statistics_noise=0.3, feature_clip=2.0),
        {split.name: len(split.train) for split in run_sites.federation.sites},
        lambda site: [],
        batch_size=TRAINING.batch_size,
        epochs=private_epochs(method, TRAINING),
        rounds=ROUNDS,
        statistics=planned_statistics(method, (), ROUNDS),
    )
    return run_sites


def ledgers(services):
    return [site_ledger(Path(service.hospital.folder), service.hospital.name) for service in services]


@pytest.mark.parametrize("method", [FedAvg(), FedProto()], ids=["fedavg", "fedproto"])
def test_a_private_run_across_hospitals_counts_its_plan_at_each_site(method):
    run_sites = private_sites(method)
    ends = []
    for _ in range(2):
        with loopback_federation(run_sites) as (coordinator, engine, services):
            records = Records()
            progress = run(coordinator, engine, Plan(ROUNDS, seed=coordinator.seed), observers=[records])
            assert [record.failures for record in records.rounds] == [{}] * ROUNDS
            assert all(not record.losses for record in records.rounds)
            for ledger in ledgers(services):
                assert merge(ledger.releases()) == merge(run_sites.privacy.sites[ledger.site].releases)
            ends.append(dict(items(progress.state)))
    one, other = ends
    assert any(not torch.equal(one[path], other[path]) for path in one)  # noise that no seed of the run repeats


def test_a_site_whose_budget_is_spent_stops_and_the_others_go_on():
    run_sites = private_sites(FedProto())
    first, statistics = run_sites.privacy.sites["site-1"].releases
    half = [replace(release, steps=release.steps // 2) for release in (first, statistics)]
    with loopback_federation(run_sites) as (coordinator, engine, services):
        budget = Budget(epsilon=epsilon_of(half, 1e-3) * 1.01, delta=1e-3)
        services[1].hospital = replace(services[1].hospital, budget=budget)
        records = Records()
        run(coordinator, engine, Plan(ROUNDS, seed=coordinator.seed, min_clients=1), observers=[records])
        failures = [record.failures for record in records.rounds]
        assert failures[0] == {}
        assert list(failures[1]) == ["site-1"]
        assert "the privacy budget of this site is spent: it does not train on" in failures[1]["site-1"]
        assert ledgers(services)[1].spent(1e-3) <= budget.epsilon
