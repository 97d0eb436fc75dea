"""LC-Fed: sites that drop out, come late, never train or are alone, and what a site deploys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.method import PERSONAL, answer, restored
from crossward.core.run import Plan, cohorts, run
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.experiment.hospitals import Hospitals
from crossward.methods.lc_fed import LCFed
from crossward.nets.parts.calibration import selection_of
from crossward.testing.rehearsal import Records, assert_finite, finished
from crossward.testing.taps import Losing
from crossward.testing.toy import Toy

TWO = Toy("segmentation", sizes=((6, 2, 2), (10, 2, 2)))


def test_a_site_that_drops_out_keeps_its_last_head():
    hospitals = TWO.hospitals(LCFed())
    records = Records()
    engine = Losing(LocalEngine(hospitals), 0, 1, "train")  # site 0, in the second round
    run(hospitals, engine, Plan(2, evaluate_every=0), [records])
    one, two = (record.progress.state for record in records.seen)
    assert all(torch.equal(one["heads"]["0"][n], t) for n, t in two["heads"]["0"].items())
    assert (one["heads"]["1"] - two["heads"]["1"]).norm() > 1e-3
    assert torch.equal(two["heads"]["1"]["weight"], engine.memory[1][PERSONAL]["head.weight"])
    assert torch.equal(two["heads"]["0"]["weight"], engine.memory[0][PERSONAL]["head.weight"])


def predicted(hospitals: Hospitals, i: int, memory: Tree, sent: Tree) -> Tensor:
    """By hand: the class of each pixel of a site's test images."""
    site = hospitals.open(i, 0, {}, fresh=True)
    memory.get(PERSONAL, Weights({})).into(site.model)
    sent["model"].into(site.model)
    site.model.body[1].site.copy_(F.one_hot(torch.tensor(i), len(hospitals.ids)))
    site.model.eval()
    x, _ = site.test.take(site.test.index)
    with torch.no_grad():
        z = site.model.features(x)
        others = [F.conv2d(z, w["weight"], w["bias"]) for k, w in sent["heads"].items() if k != str(i)]
        return site.model.calibration(z, site.model.head(z), others).argmax(1)


def test_newcomers_and_sites_without_training_data_predict_with_initial_heads():
    """Site 3 has no training images and never takes part, one of the others not in this round."""
    toy = Toy("segmentation", sizes=((6, 2, 3), (10, 2, 3), (8, 2, 3), (0, 2, 3)))
    hospitals, records, plan = toy.hospitals(LCFed()), Records(), Plan(1, participation=0.67)
    engine = LocalEngine(hospitals)
    state = run(hospitals, engine, plan, [records]).state
    asked = cohorts(plan, [0, 1, 2])[0]
    assert [*state["heads"]] == [str(i) for i in asked]
    assert len(asked) == 2
    told = records.seen[0].evaluation.predictions
    for i in range(4):
        memory = engine.memory[i] if i in asked else {}
        assert torch.equal(told[f"site-{i}"]["test"].long(), predicted(toy.hospitals(LCFed()), i, memory, state))


def test_a_site_that_comes_late_is_shown_the_heads_of_those_before_it():
    toy = Toy("segmentation", sizes=((6, 2, 2), (10, 2, 2), (8, 2, 2)))
    hospitals, records = toy.hospitals(LCFed()), Records()
    plan = Plan(6, participation=0.34, evaluate_every=0)
    run(hospitals, LocalEngine(hospitals), plan, [records])
    met: set[int] = set()
    for asked, record in zip(cohorts(plan, [0, 1, 2]), records.seen, strict=True):
        met |= {*asked}
        assert {*record.progress.state["heads"]} == {str(i) for i in met}
        assert not record.failures
    assert len(met) > 1


def test_one_site_alone():
    hospitals = Toy("segmentation", sizes=((6, 2, 2),)).hospitals(LCFed(contrast=0.1))
    engine = LocalEngine(hospitals)
    end = finished(hospitals, engine)
    assert_finite(end)
    assert [*end["state"]["heads"]] == ["0"]
    torch.testing.assert_close(end["state"]["heads"]["0"]["weight"], end["memory"]["0"][PERSONAL]["head.weight"])


def test_what_a_site_deploys_predicts_as_the_site():
    """Whatever number it has where it is deployed: the network knows whose it is."""
    hospitals = TWO.hospitals(LCFed())
    engine = LocalEngine(hospitals)
    state = run(hospitals, engine, Plan(2, evaluate_every=0)).state
    site = hospitals.open(1, 2, dict(engine.memory[1]), fresh=True)
    kept = answer(hospitals.method, site, "deploy", state, 1)
    other = hospitals.open(0, 0, {}, fresh=True)
    predict, images = restored(hospitals.method, other, kept), site.test
    expected = predicted(hospitals, 1, engine.memory[1], state)
    assert torch.equal(other.predict(predict, images).long(), expected)
    assert selection_of(other.model).number == 1


@pytest.mark.parametrize("unseen", [False, True])
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(unseen: bool):
    toy = Toy("segmentation", sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1)), unseen=unseen)
    hospitals, records = toy.hospitals(LCFed()), Records()
    assert_finite(finished(hospitals, LocalEngine(hospitals), records))
    assert [record.failures for record in records.seen] == [{}, {}]
