"""Evaluation: both views by hand, on sites whose metric is the share of predictions that equal the target."""

from __future__ import annotations

import json

import pytest
import torch

from crossward.core.engine import SERVER, Outcome
from crossward.core.evaluation import evaluate, mean, metric_at, score_predictions, worst
from crossward.core.method import RoundContext
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.local import Local
from crossward.plugins.finetune import Finetune
from crossward.testing.toy import Toy

TRUTH = {0: {"val": [1, 1], "test": [1, 1]}, 1: {"val": [1, 1, 1, 1], "test": [1]}, 2: {"val": [], "test": []}}
COMMON = {"val": [2, 2, 2, 2], "test": [2, 2]}


def as_tensors(**replies):
    return {name: {split: torch.tensor(p) for split, p in reply.items()} for name, reply in replies.items()}


def named(*replies):
    return as_tensors(**{f"clinic-{i}": reply for i, reply in enumerate(replies)})


def test_local_view_by_hand(clinic):
    predictions = named({"val": [1, 0]}, {"val": [1, 1, 1, 0]})
    views = score_predictions(clinic(TRUTH), predictions, "val", full=False)["val"]
    assert views["local"]["sites"]["clinic-0"] == {"score": 0.5, "nll": 0.5, "n": 2, "full": [0.0]}
    assert views["local"]["mean"] == {"score": (0.5 + 0.75) / 2, "nll": (0.5 + 0.25) / 2, "n": 6, "full": [0.0]}
    assert views["local"]["worst"] == {"score": 0.5, "nll": 0.5}
    assert list(views["local"]["sites"]) == ["clinic-0", "clinic-1"]


def test_global_view_is_the_servers_own_set(clinic):
    sites = clinic({**TRUTH, SERVER: COMMON})
    predictions = named({"val": [1, 1]}) | as_tensors(server={"val": [2, 2, 2, 0]})
    views = score_predictions(sites, predictions, "val", full=True)["val"]
    assert views["global"] == {"score": 0.75, "nll": 0.25, "n": 4, "full": [1.0]}
    assert views["local"]["mean"]["score"] == 1.0
    assert list(views["local"]["sites"]) == ["clinic-0"]  # the server is no site


def test_global_view_of_personal_networks_is_their_mean_on_the_common_set(clinic):
    sites = clinic({**TRUTH, SERVER: COMMON}, personal=True)
    predictions = named({"val": [0, 0], "common_val": [2, 2, 2, 2]}, {"common_val": [2, 0, 0, 0]})
    views = score_predictions(sites, predictions, "val", full=False)["val"]
    assert views["global"] == {"score": (1 + 0.25) / 2, "nll": 0.375, "n": 8, "full": [0.0]}
    assert views["local"]["mean"]["score"] == 0.0


def test_global_view_without_a_common_set_pools_the_sites(clinic):
    views = score_predictions(clinic(TRUTH), named({"val": [1, 0]}, {"val": [1, 1, 1, 0]}), "val", full=False)["val"]
    assert views["global"]["score"] == pytest.approx(4 / 6)  # the mean over sites is 0.625
    assert views["global"]["n"] == 6


def test_personal_networks_without_a_common_set_have_no_global_view(clinic):
    views = score_predictions(
        clinic(TRUTH, personal=True), named({"val": [1, 0]}, {"val": [1, 1, 1, 0]}), "val", full=False
    )["val"]
    assert set(views) == {"local"}


def test_nobody_has_such_a_set(clinic):
    assert score_predictions(clinic(TRUTH), named({"test": [1, 1]}), "val", full=False) == {}
    assert score_predictions(clinic(TRUTH), {}, "val", full=False) == {}


def test_splits_are_kept_apart(clinic):
    predictions = named({"val": [1, 1], "test": [0, 0]})
    assert score_predictions(clinic(TRUTH), predictions, "val", full=False)["val"]["global"]["score"] == 1
    assert score_predictions(clinic(TRUTH), predictions, "test", full=False)["test"]["global"]["score"] == 0


def test_mean_by_hand():
    first = {"f1": 0.5, "auc": None, "recall": [1.0, None, None], "confusion": [[1, 0], [2, 3]], "n": 6, "hd95": 4.0}
    second = {"f1": 1.0, "auc": 0.8, "recall": [0.5, 0.25, None], "confusion": [[4, 1], [0, 0]], "n": 5}
    assert mean([first, second]) == {
        "f1": 0.75,
        "auc": 0.8,  # the undefined is left out
        "recall": [0.75, 0.25, None],
        "confusion": [[5, 1], [2, 3]],
        "n": 11,
        "hd95": 4.0,
    }
    assert mean([{"auc": None}, {"auc": None}]) == {"auc": None}
    assert mean([{"recall": None}, {"recall": [0.5]}]) == {"recall": [0.5]}
    assert mean(iter([{"support": [3, 0]}, {"support": [1, 2]}])) == {"support": [4, 2]}
    assert mean([]) == {}


def test_worst_by_hand():
    every = [
        {"f1": 0.5, "ece": 0.1, "nll": 0.2, "hd95": 3.0, "auc": None, "n": 6, "recall": [1.0]},
        {"f1": 0.9, "ece": 0.3, "nll": 0.1, "hd95": None, "auc": 0.7, "n": 5, "recall": [0.0]},
    ]
    assert worst(iter(every)) == {"f1": 0.5, "ece": 0.3, "nll": 0.2, "hd95": 3.0, "auc": 0.7}
    assert worst([{"auc": None}]) == {}


def test_the_worst_of_a_segmentation_by_metric():
    every = [
        {"dice": 0.5, "dice_positive": 0.4, "false_positive_rate": 0.1, "hd95_penalised": 9.0},
        {"dice": 0.9, "dice_positive": 0.8, "false_positive_rate": 0.6, "hd95_penalised": 3.0},
    ]
    expected = {"dice": 0.5, "dice_positive": 0.4, "false_positive_rate": 0.6, "hd95_penalised": 9.0}
    assert worst(iter(every)) == expected


def test_at():
    metrics = {"val": {"local": {"mean": {"f1": 0.5, "auc": None, "n": 3}}, "global": {"f1": 0.25}}}
    assert metric_at(metrics, "val", "local", "f1") == 0.5
    assert metric_at(metrics, "val", "global", "f1") == 0.25
    assert metric_at(metrics, "val", "local", "auc") is None
    assert metric_at(metrics, "val", "local", "n") is None  # a count is no metric to select by
    assert metric_at(metrics, "val", "global", "other") is None
    assert metric_at(metrics, "test", "local", "f1") is None
    assert metric_at({}, "val", "global", "f1") is None


def test_evaluate_asks_those_who_have_something_to_predict(clinic, script):
    truth = {0: {"val": [1]}, 1: {}, 2: {"val": [1]}, SERVER: {"val": [1]}}
    engine = script(lambda job, down: {"val": torch.tensor([down["says"]])} if job.site != 2 else "its scanner broke")
    evaluation = evaluate(clinic(truth), engine, {"says": 1}, 3)
    asked = [(job.site, job.step, job.round, job.keep) for job in engine.jobs]
    assert asked == [(site, "predict", 3, False) for site in (SERVER, 0, 2)]
    assert evaluation.failures == {"clinic-2": "its scanner broke"}
    assert {n: reply["val"].tolist() for n, reply in evaluation.predictions.items()} == {"server": [1], "clinic-0": [1]}
    assert evaluation.metrics["val"]["global"]["score"] == 1.0
    engine.jobs.clear()
    evaluate(clinic(truth, personal=True), engine, {"says": 1}, 3)
    assert [job.site for job in engine.jobs] == [0, 2]  # the server has no network of its own


def test_evaluate_gives_no_test_metrics(clinic, script):
    engine = script(lambda job, down: {"val": torch.tensor([1, 1]), "test": torch.tensor([1, 1])})
    evaluation = evaluate(clinic({0: TRUTH[0]}), engine, {}, 0)
    assert set(evaluation.metrics) == {"val"}
    assert evaluation.metrics["val"]["global"]["full"] == [0.0]  # the costly ones come later
    assert set(evaluation.predictions["clinic-0"]) == {"val", "test"}


@pytest.mark.parametrize(
    ("method", "plugins", "expected"),
    [
        (FedAvg(), (), {"server": {"test"}}),
        (Local(), (), {}),
        (FedAvg(buffers="local"), (), {}),
        (FedAvg(), (Finetune(epochs=1),), {}),
    ],
)
def test_who_predicts_on_the_common_set(method, plugins, expected):
    run_sites = Toy().run_sites(method, plugins)
    engine = LocalEngine(run_sites)
    start = method.start(RoundContext(0, 1, 4, run_sites.task, run_sites.server(0)))
    evaluation = evaluate(run_sites, engine, method.broadcast(start), 0)
    own = {"val", "test"} if expected else {"val", "test", "common_test"}
    sites = {f"site-{i}": own for i in range(4)}
    assert {name: set(reply) for name, reply in evaluation.predictions.items()} == expected | sites
    tested = score_predictions(run_sites, evaluation.predictions, "test", full=True)["test"]
    assert tested["global"]["n"] == (6 if expected else 4 * 6)
    assert tested["local"]["mean"]["n"] == 4 + 4 + 5 + 4
    assert list(engine.memory) == []  # nothing done to predict is kept


def test_remote_sites_evaluate_themselves(clinic):
    sites = clinic({0: {"val": [1]}, 1: {"val": [1]}}, remote=True)
    metrics = {0: {"val": {"f1": 0.5, "n": 2}}, 1: {"val": {"f1": 1.0, "n": 2}, "test": {"f1": 0.25, "n": 2}}}

    class SendsMetrics:
        def perform(self, jobs, payload):
            assert [job.step for job in jobs] == ["judge"] * 2
            yield from (Outcome(job, {"metrics": json.dumps(metrics[job.site])}) for job in jobs)

    evaluation = evaluate(sites, SendsMetrics(), {}, 0)
    assert evaluation.predictions == {}
    assert evaluation.metrics["val"]["local"]["mean"] == {"f1": 0.75, "n": 4}
    assert evaluation.metrics["val"]["local"]["worst"] == {"f1": 0.5}
    assert evaluation.metrics["test"]["local"]["sites"] == {sites.name(1): {"f1": 0.25, "n": 2}}
    assert "global" not in evaluation.metrics["val"]


@pytest.mark.parametrize("sent", ["{", "[1]", "7", '{"val": 3}', '{"val": [1]}', "[" * 10**5, 7, "1" * 5000])
def test_metrics_that_cannot_be_read_are_that_sites_failure(clinic, sent):
    sites = clinic({i: {"val": [1]} for i in range(3)}, remote=True)
    good = json.dumps({"val": {"f1": 0.5}})

    class SendsMetrics:
        def perform(self, jobs, payload):
            yield from (Outcome(job, {"metrics": sent if job.site == 1 else good}) for job in jobs)

    evaluation = evaluate(sites, SendsMetrics(), {}, 0)
    assert {*evaluation.metrics["val"]["local"]["sites"]} == {sites.name(0), sites.name(2)}
    assert list(evaluation.failures) == [sites.name(1)]


def test_a_count_in_the_place_of_a_share_is_not_summed():
    assert mean([{"accuracy": 1}, {"accuracy": 0.5}])["accuracy"] == 0.75
    assert mean([{"n": 1}, {"n": 3}])["n"] == 4
