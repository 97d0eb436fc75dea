"""Several labels for each image: loss and metrics against scikit-learn, every method that serves it, and those that
refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch.nn import functional as F

from crossward.core.task import example_metrics
from crossward.core.training import Training
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError, RunError
from crossward.methods import METHODS, method_class
from crossward.plugins import PLUGINS, plugin_class
from crossward.tasks import task as make_task
from crossward.testing.short_runs import Records, run_to_end
from crossward.testing.small_options import SMALL_METHOD_OPTIONS, SMALL_PLUGIN_OPTIONS
from crossward.testing.toy import Toy

torch.set_num_threads(1)
TASK = make_task("multi-label", ("effusion", "edema", "mass"))
NEED_ONE_CLASS = {
    "balancefl", "creff", "ds-pfl", "fedbm", "fedcb", "fedcd", "feddf", "fedetf", "fedlc", "fednh", "fednpr",
    "fednpr-per", "fedproc", "fedproto", "fedrod", "fedrs", "kt-pfl", "lc-fed", "pfeddf",
}  # fmt: skip
SERVE = sorted(set(METHODS) - NEED_ONE_CLASS)


@pytest.fixture
def scored() -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(60, 3, generator=rng)
    return logits, (torch.rand(60, 3, generator=rng) < 0.3).to(torch.uint8)


# loss and metrics -----------------------------------------------------------------------------------------------------
def test_the_loss_is_the_binary_cross_entropy_of_each_label(scored):
    logits, y = scored
    p = logits.sigmoid()
    by_hand = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    torch.testing.assert_close(TASK.loss(logits, y.long()), by_hand)
    torch.testing.assert_close(TASK.prediction(logits), p)


def test_metrics_are_those_of_scikit_learn(scored):
    logits, y = scored
    p, truth = TASK.prediction(logits).numpy(), y.numpy()
    found = TASK.metrics(TASK.prediction(logits), y.long())
    guess = p > 0.5
    assert found["auc"] == pytest.approx(sklearn_metrics.roc_auc_score(truth, p, average="macro"))
    assert found["auc_per_class"] == pytest.approx(list(sklearn_metrics.roc_auc_score(truth, p, average=None)))
    assert found["f1"] == pytest.approx(sklearn_metrics.f1_score(truth, guess, average="macro"))
    assert found["recall"] == pytest.approx(list(sklearn_metrics.recall_score(truth, guess, average=None)))
    assert found["precision"] == pytest.approx(sklearn_metrics.precision_score(truth, guess, average="macro"))
    each = [sklearn_metrics.balanced_accuracy_score(truth[:, k], guess[:, k]) for k in range(3)]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(each))
    assert found["accuracy"] == pytest.approx((guess == truth).mean())
    assert found["nll"] == pytest.approx(float(F.binary_cross_entropy(torch.from_numpy(p), y.float())), rel=1e-5)
    assert found["support"] == truth.sum(0).tolist()
    assert found["n"] == 60
    assert TASK.main == "auc"


def test_a_label_that_no_image_or_every_image_has_has_no_auc():
    y = torch.tensor([[1, 0, 1], [1, 0, 0]])
    found = TASK.metrics(torch.tensor([[0.9, 0.1, 0.8], [0.7, 0.2, 0.3]]), y)
    assert found["auc_per_class"] == [None, None, 1.0]
    assert found["auc"] == 1.0
    assert found["f1_per_class"] == [1.0, None, 1.0]
    empty = TASK.metrics(torch.zeros(0, 3), torch.zeros(0, 3))
    assert (empty["auc"], empty["f1"], empty["accuracy"], empty["nll"], empty["n"]) == (None, None, None, None, 0)


def test_predictions_that_are_not_finite_are_refused():
    with pytest.raises(RunError, match="1 of 2 predictions are not finite"):
        TASK.metrics(torch.tensor([[0.1, float("nan"), 0.2], [0.1, 0.2, 0.3]]), torch.zeros(2, 3))


def test_counts_and_vectors(scored):
    _, y = scored
    assert TASK.counts(y.long()).tolist() == y.sum(0).tolist()
    with pytest.raises(RunError, match="one class for each image"):
        TASK.vectors(torch.zeros(2, 4), y[:2])
    assert set(example_metrics(TASK)) >= {"auc", "f1", "accuracy", "auc_per_class"}


def test_a_task_has_two_labels_at_least():
    with pytest.raises(ConfigError):
        make_task("multi-label", ("effusion",))


# methods --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_whether_it_needs_one_class_for_each_image(name):
    assert ("multi-label" in method_class(name).tasks) == (name not in NEED_ONE_CLASS)


def test_plugins_say_so_as_well():
    assert {name for name in PLUGINS if "multi-label" in plugin_class(name).tasks} == {"ft", "prox"}


@pytest.mark.parametrize("name", [*SERVE, "fedavg+ft", "fedavg+prox"])
def test_a_method_that_serves_it_trains_and_is_scored(name):
    base, _, extra = name.partition("+")
    method = method_class(base)(**SMALL_METHOD_OPTIONS.get(base, {}))
    plugins = (plugin_class(extra)(**SMALL_PLUGIN_OPTIONS.get(extra, {})),) if extra else ()
    toy = Toy("multi-label", ((8, 4, 6), (12, 4, 6), (6, 4, 6)), common=0, public=4)
    sites = toy.run_sites(method, plugins, Training(epochs=1, batch_size=4, lr=0.05))
    records = Records()
    run_to_end(sites, LocalEngine(sites), records)
    assert not any(record.failures for record in records.rounds)
    last = records.rounds[-1].evaluation.metrics["test"]
    scores = last["local"]["mean"] if sites.personal else last["global"]
    assert 0 <= scores["auc"] <= 1


def test_labels_are_learnt():
    toy = Toy("multi-label", ((40, 4, 30), (40, 4, 30)), common=0, public=0, absent=False)
    sites = toy.run_sites(method_class("fedavg")(), (), Training(epochs=20, batch_size=8, lr=0.1, momentum=0.9))
    records = Records()
    run_to_end(sites, LocalEngine(sites), records)
    assert records.rounds[-1].evaluation.metrics["test"]["global"]["auc"] > 0.7
