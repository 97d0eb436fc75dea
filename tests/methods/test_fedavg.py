"""FedAvg: a round by hand, its weights, and the policies for BatchNorm statistics."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from crossward.core import select
from crossward.core.method import RoundContext
from crossward.core.net import Net
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.testing.by_hand import initial_matrix, regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, run_to_end
from crossward.testing.toy import Toy, linear

ONE_STEP = Training(epochs=1, batch_size=64, lr=0.1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))


def test_one_round_by_hand():
    run_sites = TWO.run_sites(FedAvg(), training=ONE_STEP, net=linear)
    a, b = regression_per_site(run_sites)
    w = initial_matrix(run_sites)
    w_a, w_b = w - 0.1 * a.gradient(w), w - 0.1 * b.gradient(w)
    model = run(run_sites, LocalEngine(run_sites), Plan(1)).state["model"]
    assert (a.n, b.n) == (6, 10)
    torch.testing.assert_close(weight_matrix(model), 6 / 16 * w_a + 10 / 16 * w_b, atol=1e-6, rtol=0)
    assert (weight_matrix(model) - w).abs().max() > 1e-2


def test_two_rounds_of_two_epochs_by_hand():
    run_sites = TWO.run_sites(FedAvg(), training=replace(ONE_STEP, epochs=2), net=linear)
    w = initial_matrix(run_sites)
    sites = regression_per_site(run_sites)
    for _ in range(2):
        local = [w, w]
        for _ in range(2):
            local = [w_k - 0.1 * site.gradient(w_k) for w_k, site in zip(local, sites, strict=True)]
        w = 6 / 16 * local[0] + 10 / 16 * local[1]
    model = run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"]
    torch.testing.assert_close(weight_matrix(model), w, atol=1e-6, rtol=0)


def test_the_mean_is_weighted_by_sample_counts():
    run_sites = TWO.run_sites(FedAvg())
    context = RoundContext(0, 1, 2, run_sites.task, run_sites.server(0))
    replies = {i: {"model": Weights({"w": torch.tensor([v])}), "n": n} for i, v, n in ((0, 1.0, 1), (1, 5.0, 3))}
    state = FedAvg().aggregate({"model": Weights({"w": torch.zeros(1)})}, replies, context)
    assert state["model"]["w"].item() == 4.0  # (1 * 1 + 5 * 3) / 4


def test_the_mean_is_over_those_who_answered():
    run_sites = TWO.run_sites(FedAvg(), training=ONE_STEP, net=linear)
    _, b = regression_per_site(run_sites)
    w = initial_matrix(run_sites)
    model = run(run_sites, DroppingEngine(LocalEngine(run_sites), 0, 0, "train"), Plan(1)).state["model"]
    torch.testing.assert_close(weight_matrix(model), w - 0.1 * b.gradient(w), atol=1e-6, rtol=0)


def test_without_local_data_a_client_is_not_asked():
    """The others' result is that of a federation without it."""
    three = Toy(sizes=((6, 2, 2), (0, 2, 2), (10, 2, 2))).run_sites(FedAvg(), training=ONE_STEP, net=linear)
    engine, records = RecordingEngine(LocalEngine(three)), Records()
    result = run(three, engine, Plan(1), [records])
    assert {job.site for job, _ in engine.replies if job.step == "train"} == {0, 2}
    assert records.rounds[0].cohort == ["site-0", "site-2"]
    assert "site-1" in records.rounds[0].evaluation.predictions
    a, b = regression_per_site(three)
    w = initial_matrix(three)
    expected = w - 0.1 * (6 * a.gradient(w) + 10 * b.gradient(w)) / 16
    torch.testing.assert_close(weight_matrix(result.state["model"]), expected, atol=1e-6, rtol=0)


def test_a_class_absent_at_a_client_still_gets_its_gradient():
    """Its bias falls there by lr * mean probability, whatever the images are."""
    run_sites = Toy(sizes=((6, 0, 0),), absent=True).run_sites(FedAvg(), training=ONE_STEP, net=linear)
    (a,) = regression_per_site(run_sites)
    assert 2 not in a.y
    w = initial_matrix(run_sites)
    result = run(run_sites, LocalEngine(run_sites), Plan(1)).state["model"]["head.bias"][2]
    p = (a.x @ w.T).softmax(1)[:, 2].mean()
    assert result.item() == pytest.approx((w[2, -1] - 0.1 * p).item(), abs=1e-6)


@pytest.mark.parametrize("toy", [Toy(sizes=((1, 1, 1), (3, 1, 1))), Toy(sizes=((4, 1, 1),) * 2, unseen=True)])
def test_one_sample_and_a_class_nobody_has(toy: Toy):
    run_sites = toy.run_sites(FedAvg(), training=ONE_STEP, net=linear)
    records = Records()
    end = run_to_end(run_sites, LocalEngine(run_sites), records)
    assert_finite(end)
    w = initial_matrix(run_sites)
    sites, n = regression_per_site(run_sites), sum(site.n for site in regression_per_site(run_sites))
    for _ in records.rounds:
        w = sum(site.n / n * (w - 0.1 * site.gradient(w)) for site in sites)
    torch.testing.assert_close(weight_matrix(end["state"]["model"]), w, atol=1e-6, rtol=0)


def normalised_vectors() -> nn.Module:
    """BatchNorm over (B, 4): one value per channel and image, as in a projection or a deep stage of 1 x 1 pixels."""
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3), width=4)


def test_a_site_of_one_sample_where_batchnorm_sees_one_value_per_channel():
    run_sites = Toy(sizes=((1, 1, 1), (6, 1, 1))).run_sites(FedAvg(), net=normalised_vectors)
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))


def statistics(weights: Weights) -> list[str]:
    return [name for name in weights if "running" in name]


def trained(policy: str):
    run_sites = Toy(sizes=((6, 2, 2), (10, 2, 2))).run_sites(FedAvg(buffers=policy))
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(1)).state
    sent = {job.site: reply for job, reply in engine.replies if job.step == "train"}
    return run_sites, engine, state["model"], sent


def test_buffers_average():
    _, engine, model, sent = trained("average")
    for name in statistics(model):
        expected = (6 * sent[0]["model"][name] + 10 * sent[1]["model"][name]) / 16
        torch.testing.assert_close(model[name], expected)
    assert len(statistics(model)) == 2
    assert not engine.memory


def test_buffers_local():
    run_sites, engine, model, sent = trained("local")
    names = select.buffers.names(run_sites.server(0).new_net())
    assert not statistics(model)
    assert not statistics(sent[0]["model"])
    kept = [engine.memory[i]["_personal"] for i in (0, 1)]
    assert [list(weights) for weights in kept] == [names, names]
    assert not torch.equal(kept[0][names[0]], kept[1][names[0]])


def test_buffers_server():
    _, engine, model, sent = trained("server")
    mean, variance = statistics(model)
    assert torch.equal(model[mean], torch.zeros(4))  # as the server's network was made
    assert torch.equal(model[variance], torch.ones(4))
    assert not statistics(sent[0]["model"])
    assert not engine.memory
