"""Local training: a round by hand at each site, nothing sent, and central training when there is one site."""

from __future__ import annotations

import torch
from torch import nn

from crossward.core.run import Plan, run
from crossward.core.seeds import seeded
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.central import Central
from crossward.methods.local import Local
from crossward.testing.by_hand import initial_matrix, regression_per_site, weight_matrix
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, classifier, linear

ONE_STEP = Training(epochs=1, batch_size=64, lr=0.1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))


def alike() -> nn.Module:
    """The same initial weights wherever it is built."""
    with seeded(3):
        return classifier()


def alike_linear() -> nn.Module:
    with seeded(3):
        return linear()


def test_two_rounds_by_hand():
    run_sites = TWO.run_sites(Local(), training=ONE_STEP, net=alike_linear)
    engine = LocalEngine(run_sites)
    run(run_sites, engine, Plan(2))
    for i, site in enumerate(regression_per_site(run_sites)):
        w = initial_matrix(run_sites)
        for _ in range(2):
            w = w - 0.1 * site.gradient(w)
        torch.testing.assert_close(weight_matrix(engine.memory[i]["_personal"]), w, atol=1e-6, rtol=0)


def test_nothing_is_sent_and_the_server_knows_nothing():
    run_sites, records = TWO.run_sites(Local()), Records()
    progress = run(run_sites, LocalEngine(run_sites), Plan(2), [records])
    assert progress.state == {}
    assert [record.traffic for record in records.rounds] == [[], []]
    assert run_sites.personal


def test_sites_begin_with_weights_of_their_own():
    run_sites = TWO.run_sites(Local(), net=linear)
    a, b = (weight_matrix(Weights.of(run_sites.open(i, 0, {}).model)) for i in (0, 1))
    again = weight_matrix(Weights.of(run_sites.open(0, 0, {}).model))
    assert torch.equal(a, again)
    assert not torch.equal(a, b)


def test_a_site_is_the_same_whoever_else_is_there():
    memories = []
    for sizes in (((6, 2, 2), (10, 2, 2)), ((6, 2, 2),)):
        run_sites = Toy(sizes=sizes, common=0, public=18 - 14 * (len(sizes) - 1)).run_sites(Local())
        memories.append(run_to_end(run_sites, LocalEngine(run_sites))["memory"]["0"])
    assert_same(*memories)


def test_with_one_site_it_is_central_training():
    ends = []
    for method in (Local(), Central()):
        run_sites = Toy(sizes=((9, 3, 3),)).run_sites(method, net=alike)
        end = run_to_end(run_sites, LocalEngine(run_sites))
        model = end["memory"]["0"]["_personal"] if isinstance(method, Local) else end["state"]["model"]
        ends.append({"model": model})
    assert_same(*ends)


def test_a_site_without_training_data_predicts_with_what_it_began_with():
    run_sites, records = Toy(sizes=((6, 2, 2), (0, 2, 2))).run_sites(Local()), Records()
    engine = LocalEngine(run_sites)
    run(run_sites, engine, Plan(1), [records])
    assert list(engine.memory) == [0]
    site = run_sites.open(1, 0, {}, fresh=True)
    expected = site.predict(site.model, site.test)
    assert torch.equal(records.rounds[0].evaluation.predictions["site-1"]["test"], expected)


def test_one_sample_and_a_class_nobody_has():
    run_sites = Toy(sizes=((1, 1, 1), (4, 1, 1)), unseen=True).run_sites(Local())
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))
