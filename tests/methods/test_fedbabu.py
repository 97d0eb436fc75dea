"""FedBABU: the federation of random-frozen to the bit, its two views, and fine-tuning that leaves no trace."""

from __future__ import annotations

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from crossward.core import select
from crossward.core.cohort import Cohort
from crossward.core.method import answer, restore_predictor
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.tree import encode
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedbabu import FedBABU
from crossward.methods.random_frozen import RandomFrozen
from crossward.plugins.finetune import Finetune
from crossward.testing.by_hand import initial_matrix, regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
PARTS = ["full", "head", "body"]


@pytest.mark.parametrize("part", ["full", "head"])
def test_both_views_by_hand(part: str):
    """Two steps of softmax regression on a site's own data for its own patients, none for the federation's."""
    method = FedBABU(finetune_epochs=2, finetune=part)
    run_sites = TWO.run_sites(method, training=Training(batch_size=64, lr=0.1), net=linear)
    begun = Weights.of(run_sites.server(0).new_net())
    replies = Cohort(run_sites, LocalEngine(run_sites), 0, [0, 1], keep=False).ask("predict", {"model": begun})
    for i, data in enumerate(regression_per_site(run_sites)):
        site, w = run_sites.open(i, 0, {}), initial_matrix(run_sites)
        once = w - 0.1 * data.gradient(w)
        tuned = once - 0.1 * data.gradient(once)
        for found, samples, v in (("test", site.test, tuned), ("common_test", site.common["test"], w)):
            x = samples.take(samples.index)[0].flatten(1).double()
            p = (x @ v[:, :-1].T + v[:, -1]).softmax(1)
            torch.testing.assert_close(replies[i][found].double(), p, atol=1e-6, rtol=0)
        assert set(replies[i]) == {"val", "test", "common_test"}


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_the_federation_and_its_global_view_are_those_of_random_frozen_to_the_bit(task: str):
    ends, seen = [], []
    for method in (FedBABU(), RandomFrozen()):
        run_sites, records = Toy(task, sizes=((6, 2, 2), (10, 2, 2))).run_sites(method), Records()
        end = run_to_end(run_sites, LocalEngine(run_sites), records)
        ends.append({"state": end["state"], "memory": end["memory"]})
        seen.append(records.rounds[-1].evaluation.predictions)
    assert_same(*ends)
    for name in ("site-0", "site-1"):
        assert torch.equal(seen[0][name]["common_test"], seen[1]["server"]["test"])


def test_what_is_tuned_as_the_body_is_what_random_frozen_would_train_next():
    training = Training(epochs=3, batch_size=4, lr=0.05)
    run_sites = TWO.run_sites(RandomFrozen(), training=training)
    down = {"model": Weights.of(run_sites.server(0).new_net())}
    trained = run_sites.open(1, 0, {}, fresh=True)
    answer(RandomFrozen(), trained, "train", down, seed=7)
    expected = trained.predict(trained.model, trained.test)
    site = TWO.run_sites(FedBABU(), training=training).open(1, 0, {}, fresh=True)
    result = answer(FedBABU(finetune_epochs=3, finetune="body"), site, "predict", down, seed=7)
    assert torch.equal(result["test"], expected)


def test_what_is_tuned_in_full_is_fedavg_with_fine_tuning_from_there():
    down = {"model": Weights.of(TWO.run_sites(FedAvg()).server(0).new_net())}
    results = []
    for method, plugins in ((FedBABU(finetune_epochs=4), ()), (FedAvg(), (Finetune(epochs=4),))):
        site = TWO.run_sites(method, plugins).open(0, 0, {}, fresh=True)
        results.append(answer(method, site, "predict", down, seed=3)["test"])
    assert torch.equal(*results)


@pytest.mark.parametrize("part", PARTS)
def test_fine_tuning_moves_its_part_alone(part: str):
    """Parameters and BatchNorm statistics."""
    run_sites = TWO.run_sites(FedBABU(finetune=part))
    sent, site = Weights.of(run_sites.server(0).new_net()), run_sites.open(0, 0, {}, fresh=True)
    run_sites.method.predictor(site, {"model": sent}, "local")
    after = Weights.of(site.model)
    moved = {name for name in sent if not torch.equal(sent[name], after[name])}
    body, head = ({*where.names(site.model)} for where in (select.body, select.head))
    assert moved == {"full": body | head, "head": head, "body": body}[part]
    run_sites.method.predictor(site, {"model": sent}, "global")
    assert_same({"model": Weights.of(site.model)}, {"model": sent})


@pytest.mark.parametrize("part", PARTS)
def test_the_tuned_copy_is_neither_kept_nor_sent(part: str):
    run_sites = TWO.run_sites(FedBABU(finetune=part))
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(2)).state
    assert not engine.edited
    assert not list(engine.memory)
    assert {name for job, reply in engine.replies if job.step == "train" for name in reply["model"]} == {
        "body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var",
    }  # fmt: skip
    before = encode(state)
    again = [Cohort(run_sites, engine, 1, [0], keep=False).ask("predict", state)[0] for _ in range(2)]
    assert_same(*map(dict, again))
    assert encode(state) == before


def test_sites_predict_for_themselves():
    assert TWO.run_sites(FedBABU()).personal


def test_a_site_without_training_data_predicts_with_the_global_model():
    run_sites, records = Toy(sizes=((6, 2, 2), (0, 2, 2))).run_sites(FedBABU()), Records()
    state = run(run_sites, LocalEngine(run_sites), Plan(1), [records]).state
    site = run_sites.open(1, 0, {}, fresh=True)
    state["model"].into(site.model)
    expected = site.predict(site.model, site.test)
    assert torch.equal(records.rounds[0].evaluation.predictions["site-1"]["test"], expected)


def test_what_is_deployed_is_what_predicted_and_is_not_tuned_again():
    run_sites = TWO.run_sites(FedBABU())
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(1)).state
    exported = Cohort(run_sites, engine, 0, [0], keep=False).ask("deploy", state)[0]
    predicted = Cohort(run_sites, engine, 0, [0], keep=False).ask("predict", state)[0]
    site = run_sites.open(0, 0, {}, fresh=True)  # has training data, which must not matter
    assert torch.equal(predicted["test"], site.predict(restore_predictor(run_sites.method, site, exported), site.test))
    assert not site.fits


def test_fine_tuning_starts_at_the_rate_of_the_round():
    """One full-batch step from the same weights goes half as far when the schedule has halved the rate."""
    training = Training(batch_size=64, lr=0.1, schedule="round", gamma=0.5)
    run_sites = TWO.run_sites(FedBABU(finetune_epochs=1), training=training, net=linear)
    sent, moved = Weights.of(run_sites.server(0).new_net()), []
    for round in (0, 1):
        site = run_sites.open(0, round, {}, fresh=True)
        run_sites.method.predictor(site, {"model": sent})
        moved.append(weight_matrix(Weights.of(site.model) - sent))
    torch.testing.assert_close(moved[1], moved[0] / 2, atol=1e-7, rtol=0)


def test_a_rate_of_its_own_is_the_same_in_every_round():
    """Two full-batch steps of 0.05 from the same weights, in whichever round, by hand."""
    training = Training(batch_size=64, lr=0.1, schedule="milestones", gamma=0.1, milestones=(2,))
    run_sites = TWO.run_sites(FedBABU(finetune_epochs=2, finetune_lr=0.05), training=training, net=linear)
    sent, data = Weights.of(run_sites.server(0).new_net()), regression_per_site(run_sites)[0]
    w = initial_matrix(run_sites)
    once = w - 0.05 * data.gradient(w)
    expected = once - 0.05 * data.gradient(once)
    for round in (0, 1):
        site = run_sites.open(0, round, {}, fresh=True)
        run_sites.method.predictor(site, {"model": sent})
        torch.testing.assert_close(weight_matrix(Weights.of(site.model)).double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("options", [{"finetune_epochs": 0}, {"finetune": "tail"}, {"finetune_lr": 0.0}], ids=str)
def test_options_are_checked(options: dict[str, object]):
    with pytest.raises(ValidationError):
        TypeAdapter(FedBABU).validate_python(options)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(task: str, unseen: bool, part: str):
    toy = Toy(task, sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1)), unseen=unseen)
    run_sites, records = toy.run_sites(FedBABU(finetune=part, finetune_epochs=1)), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
