"""Membership inference: RMIA's score by hand; it finds images that a network has learnt by heart, and nothing in an
untrained one; what it says of runs that it cannot attack."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parent))
from toy_runs import toy_run

from crossward.audits.audit import audit
from crossward.audits.audited_run import AuditedRun, AuditOptions
from crossward.audits.membership import Suspects, attack_figures, log_confidences, ordered, rmia_ratios, rmia_scores
from crossward.audits.reference_run import halved
from crossward.errors import ConfigError, StorageError
from crossward.runs.result import load


def test_rmia_by_hand():
    # a = 0.5: P(x) = 0.75 * reference + 0.25
    ratios = rmia_ratios(np.array([0.9, 0.5, 0.2]), np.array([0.2, 0.5, 1.0]), a=0.5)
    assert ratios == pytest.approx([0.9 / 0.4, 0.5 / 0.625, 0.2 / 1.0])
    population = np.array([0.1, 0.5, 1.0, 2.0])
    assert rmia_scores(ratios, population, gamma=1.0) == pytest.approx([1.0, 0.5, 0.25])
    assert rmia_scores(ratios, population, gamma=2.0) == pytest.approx([0.75, 0.25, 0.0])  # 0.2 / 0.1 is not above 2


def test_images_of_one_score_are_ordered_by_their_ratio():
    ranks = ordered(np.array([0.5, 1.0, 0.5, 0.5]), np.array([3.0, 1.0, 2.0, 3.0]))
    assert ranks.tolist() == [1, 2, 0, 1]


def suspects(shift: float, n: int = 150, seed: int = 0) -> Suspects:
    rng = np.random.default_rng(seed)
    member = np.arange(2 * n) < n
    return Suspects("north", tuple(map(str, range(2 * n))), member, rng.normal(size=2 * n) + shift * member)


def test_figures_of_scores_that_tell_members():
    auc, hundredth, thousandth = attack_figures("loss", suspects(2.0).loss, suspects(2.0), {}, seed=0)
    assert 0.85 < auc.low < auc.value < auc.high < 1
    assert auc.value == pytest.approx(0.921, abs=0.04)  # Phi(2 / sqrt 2)
    assert hundredth.value > 0.2
    assert hundredth.low > 0.01
    assert thousandth.value is None
    assert "150 images that were not trained on are too few" in thousandth.how
    assert (auc.baseline, hundredth.baseline) == (0.5, 0.01)


def test_figures_of_scores_that_tell_nothing():
    auc, hundredth, _ = attack_figures("loss", suspects(0.0, seed=1).loss, suspects(0.0, seed=1), {}, seed=0)
    assert auc.low < 0.5 < auc.high
    assert hundredth.low < 0.01 + 1e-9 or hundredth.value < 0.05


def test_a_thousand_others_are_enough_for_one_false_alarm_in_a_thousand():
    many = suspects(1.0, n=1000)
    _, _, thousandth = attack_figures("loss", many.loss, many, {}, seed=0)
    assert thousandth.value is not None


def test_patients_are_drawn_whole():
    tellable = suspects(1.0)
    groups = {name: str(int(name) // 10) for name in tellable.ids}
    alone = next(iter(attack_figures("loss", tellable.loss, tellable, {}, seed=0)))
    together = next(iter(attack_figures("loss", np.repeat(tellable.loss[::10], 10), tellable, groups, seed=0)))
    assert together.high - together.low > 1.5 * (alone.high - alone.low)


# on runs --------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def learnt_by_heart(tmp_path_factory):
    training = {"epochs": 40, "lr": 0.003, "optimizer": "adam"}
    return toy_run(tmp_path_factory.mktemp("heart"), train=training, method={"name": "local"}, data={"difficulty": 6.0})


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    return toy_run(tmp_path_factory.mktemp("untrained"), train={"lr": 1e-9})


def figure(finding, name, site=""):
    return next(each for each in finding.measurements if each.name == name and each.site == site)


def test_a_network_that_has_learnt_its_images_by_heart_gives_them_away(learnt_by_heart):
    [finding] = audit(learnt_by_heart.folder, ["membership"], AuditOptions(train_reference=True, which="last"))
    assert finding.status == "measured"
    for attack in ("loss", "RMIA"):
        auc = figure(finding, f"{attack}: AUC")
        assert auc.low > 0.6
        assert auc.baseline == 0.5
    assert {each.site for each in finding.measurements} == {"", "hospital-1", "hospital-2"}
    assert "better than by guessing" in finding.found
    assert "not measurably" not in finding.found
    again = AuditedRun(load(learnt_by_heart.folder), AuditOptions())  # the reference is kept
    assert (again.result.folder / "audit" / "reference" / "run.json").exists()


def test_an_untrained_network_gives_nothing_away(untrained):
    [finding] = audit(untrained.folder, ["membership"])
    auc = figure(finding, "loss: AUC")
    assert auc.low < 0.5 < auc.high
    assert "not measurably better than by guessing" in finding.found
    assert any("RMIA was not measured: there is no reference network" in note for note in finding.notes)
    stored = untrained.folder / "audit.json"
    assert "RMIA was not measured" in stored.read_text()


def test_a_reference_that_was_trained_on_other_images_is_refused(untrained, tmp_path):
    other = toy_run(tmp_path, data={"seed": 5})
    [finding] = audit(untrained.folder, ["membership"], AuditOptions(reference=other.folder))
    assert finding.status == "not measured"
    assert "was trained on other images" in finding.found


def test_confidence_is_the_probability_of_the_truth(untrained):
    run = AuditedRun(untrained, AuditOptions())
    collection = run.federation.collection
    network = untrained.deployed(which="last")
    expected = network.probabilities(collection.images[:5])[torch.arange(5), collection.targets[:5]]
    found = np.exp(log_confidences(network, collection.images[:5], collection.targets[:5]))
    assert found == pytest.approx(expected.numpy(), rel=1e-4)


def test_half_of_the_images_are_whole_patients(untrained):
    federation = AuditedRun(untrained, AuditOptions()).federation
    half = halved(federation, torch.Generator().manual_seed(0))
    groups = federation.collection.groups
    for before, after in zip(federation.sites, half.sites, strict=True):
        kept = {groups[row] for row in after.train.tolist()}
        left = {groups[row] for row in before.train.tolist()} - kept
        assert len(left) > 0
        assert abs(len(kept) - len(left)) <= 1
        assert not kept & {groups[row] for row in {*before.train.tolist()} - {*after.train.tolist()}}


def test_unknown_attacks_and_unfinished_runs_are_refused(untrained, tmp_path):
    with pytest.raises(ConfigError, match="no such attacks"):
        audit(untrained.folder, ["memberhsip"])
    unfinished = toy_run(tmp_path)
    (unfinished.folder / "run.json").write_text(
        (unfinished.folder / "run.json").read_text().replace('"status": "finished"', '"status": "interrupted"')
    )
    with pytest.raises(StorageError, match="has not finished"):
        audit(unfinished.folder)


def test_networks_that_were_pruned_are_said(tmp_path):
    pruned = toy_run(tmp_path)
    for file in (pruned.folder / "weights").rglob("*.safetensors"):
        file.unlink()
    [finding] = audit(pruned.folder, ["membership"])
    assert finding.status == "not measured"
    assert "no best network" in finding.found or "cannot read" in finding.found
