"""LC-Fed: sites that drop out, come late, never train or are alone, and what a site deploys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.method import PERSONAL, answer, restore_predictor
from crossward.core.run import Plan, cohorts, run
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.lc_fed.calibration import selection_of
from crossward.methods.lc_fed.method import LCFed
from crossward.runs.sites import RunSites
from crossward.testing.engine_wrappers import DroppingEngine
from crossward.testing.short_runs import Records, assert_finite, run_to_end
from crossward.testing.toy import Toy

TWO = Toy("segmentation", sizes=((6, 2, 2), (10, 2, 2)))


def test_a_site_that_drops_out_keeps_its_last_head():
    run_sites = TWO.run_sites(LCFed())
    records = Records()
    engine = DroppingEngine(LocalEngine(run_sites), 0, 1, "train")  # site 0, in the second round
    run(run_sites, engine, Plan(2, evaluate_every=0), [records])
    one, two = (record.progress.state for record in records.rounds)
    assert all(torch.equal(one["heads"]["0"][n], t) for n, t in two["heads"]["0"].items())
    assert (one["heads"]["1"] - two["heads"]["1"]).norm() > 1e-3
    assert torch.equal(two["heads"]["1"]["weight"], engine.memory[1][PERSONAL]["head.weight"])
    assert torch.equal(two["heads"]["0"]["weight"], engine.memory[0][PERSONAL]["head.weight"])


def predicted(run_sites: RunSites, i: int, memory: Tree, sent: Tree) -> Tensor:
    """By hand: the class of each pixel of a site's test images."""
    site = run_sites.open(i, 0, {}, fresh=True)
    memory.get(PERSONAL, Weights({})).into(site.model)
    sent["model"].into(site.model)
    site.model.body[1].site.copy_(F.one_hot(torch.tensor(i), len(run_sites.ids)))
    site.model.eval()
    x, _ = site.test.take(site.test.index)
    with torch.no_grad():
        z = site.model.features(x)
        others = [F.conv2d(z, w["weight"], w["bias"]) for k, w in sent["heads"].items() if k != str(i)]
        return site.model.calibration(z, site.model.head(z), others).argmax(1)


def test_newcomers_and_sites_without_training_data_predict_with_initial_heads():
    """Site 3 has no training images and never takes part, one of the others not in this round."""
    toy = Toy("segmentation", sizes=((6, 2, 3), (10, 2, 3), (8, 2, 3), (0, 2, 3)))
    run_sites, records, plan = toy.run_sites(LCFed()), Records(), Plan(1, participation=0.67)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, plan, [records]).state
    asked = cohorts(plan, [0, 1, 2])[0]
    assert [*state["heads"]] == [str(i) for i in asked]
    assert len(asked) == 2
    told = records.rounds[0].evaluation.predictions
    for i in range(4):
        memory = engine.memory[i] if i in asked else {}
        assert torch.equal(told[f"site-{i}"]["test"].long(), predicted(toy.run_sites(LCFed()), i, memory, state))


def test_a_site_that_comes_late_is_shown_the_heads_of_those_before_it():
    toy = Toy("segmentation", sizes=((6, 2, 2), (10, 2, 2), (8, 2, 2)))
    run_sites, records = toy.run_sites(LCFed()), Records()
    plan = Plan(6, participation=0.34, evaluate_every=0)
    run(run_sites, LocalEngine(run_sites), plan, [records])
    met: set[int] = set()
    for asked, record in zip(cohorts(plan, [0, 1, 2]), records.rounds, strict=True):
        met |= {*asked}
        assert {*record.progress.state["heads"]} == {str(i) for i in met}
        assert not record.failures
    assert len(met) > 1


def test_one_site_alone():
    run_sites = Toy("segmentation", sizes=((6, 2, 2),)).run_sites(LCFed(contrast=0.1))
    engine = LocalEngine(run_sites)
    end = run_to_end(run_sites, engine)
    assert_finite(end)
    assert [*end["state"]["heads"]] == ["0"]
    torch.testing.assert_close(end["state"]["heads"]["0"]["weight"], end["memory"]["0"][PERSONAL]["head.weight"])


def test_what_a_site_deploys_predicts_as_the_site():
    """Whatever number it has where it is deployed: the network knows whose it is."""
    run_sites = TWO.run_sites(LCFed())
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(2, evaluate_every=0)).state
    site = run_sites.open(1, 2, dict(engine.memory[1]), fresh=True)
    kept = answer(run_sites.method, site, "deploy", state, 1)
    other = run_sites.open(0, 0, {}, fresh=True)
    predict, images = restore_predictor(run_sites.method, other, kept), site.test
    expected = predicted(run_sites, 1, engine.memory[1], state)
    assert torch.equal(other.predict(predict, images).long(), expected)
    assert selection_of(other.model).number == 1


@pytest.mark.parametrize("unseen", [False, True])
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(unseen: bool):
    toy = Toy("segmentation", sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1)), unseen=unseen)
    run_sites, records = toy.run_sites(LCFed()), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
