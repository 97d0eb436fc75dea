"""ft: each site predicts with a copy fitted to its own data; the copy is neither sent nor kept."""

from __future__ import annotations

import pytest
import torch

from crossward.core.cohort import Cohort
from crossward.core.method import Method
from crossward.core.run import Plan, Progress, run
from crossward.core.seeds import derive
from crossward.core.training import Training
from crossward.core.tree import encode
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.fedavg import FedAvg
from crossward.methods.local import Local
from crossward.methods.scaffold import Scaffold
from crossward.plugins.finetune import Finetune
from crossward.testing.by_hand import regression_per_site
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))


def test_predictions_are_those_of_a_fit_on_the_broadcast_model():
    run_sites = TWO.run_sites(FedAvg(), (Finetune(epochs=3),))
    records, engine = Records(), LocalEngine(run_sites)
    end = run(run_sites, engine, Plan(1, seed=run_sites.seed), [records])
    site = run_sites.open(1, 0, {}, fresh=True)
    end.state["model"].into(site.model)
    site.rng.manual_seed(derive(run_sites.seed, "predict", 0, 0, 1))
    site.fit(epochs=3)
    predicted = records.rounds[0].evaluation.predictions["site-1"]
    assert torch.equal(predicted["val"], site.predict(site.model, site.val))
    assert torch.equal(predicted["test"], site.predict(site.model, site.test))
    assert torch.equal(predicted["common_test"], site.predict(site.model, site.common["test"]))


def test_two_steps_by_hand():
    """Two epochs of a full batch of softmax regression, from what the server broadcasts."""
    run_sites = TWO.run_sites(FedAvg(), (Finetune(epochs=2),), Training(batch_size=64, lr=0.1), linear)
    server = Weights.of(run_sites.server(0).new_net())
    cohort = Cohort(run_sites, LocalEngine(run_sites), 0, [0, 1], keep=False)
    replies = cohort.ask("predict", {"model": server})
    sites = regression_per_site(run_sites)
    for i, site in enumerate(sites):
        w = torch.cat([server["head.weight"], server["head.bias"][:, None]], 1).double()
        for _ in range(2):
            w = w - 0.1 * site.gradient(w)
        x, _ = run_sites.open(i, 0, {}).test.take(run_sites.federation.sites[i].test)
        p = (x.flatten(1).double() @ w[:, :-1].T + w[:, -1]).softmax(1)
        torch.testing.assert_close(replies[i]["test"].double(), p, atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", [FedAvg(), Scaffold(), Local(), FedAvg(buffers="local")], ids=str)
@pytest.mark.parametrize("keep_state", [False, True])
def test_the_copy_is_neither_sent_nor_kept(method: Method, keep_state: bool):
    """State and memory are as without the plugin, round after round, and a reply holds predictions only."""
    training = Training(epochs=2, batch_size=4, lr=0.05, momentum=0.5, keep_state=keep_state)
    ends = []
    for plugins in ((), (Finetune(),)):
        run_sites = TWO.run_sites(method, plugins, training)
        engine = RecordingEngine(LocalEngine(run_sites))
        end = run_to_end(run_sites, engine)
        ends.append({"state": end["state"], "memory": end["memory"]})
    assert_same(*ends)
    names = {name for job, reply in engine.replies if job.step == "predict" for name in reply}
    assert names == {"val", "test", "common_test"}


def test_predicting_again_changes_nothing():
    run_sites = TWO.run_sites(Scaffold(), (Finetune(),))
    engine = LocalEngine(run_sites)
    end: Progress = run(run_sites, engine, Plan(1))
    before, replies = encode(engine.memory[0]) + encode(end.state), []
    for _ in range(2):
        cohort = Cohort(run_sites, engine, 0, [0], keep=False)
        replies.append(encode(dict(cohort.ask("predict", end.state)[0])))
    assert replies[0] == replies[1]
    assert encode(engine.memory[0]) + encode(end.state) == before


def test_it_makes_every_site_its_own_model():
    assert TWO.run_sites(FedAvg(), (Finetune(),)).personal
    assert not TWO.run_sites(FedAvg()).personal


def test_a_site_without_training_data_predicts_with_what_it_was_sent():
    run_sites, records = Toy(sizes=((6, 2, 2), (0, 2, 2))).run_sites(FedAvg(), (Finetune(),)), Records()
    state = run(run_sites, LocalEngine(run_sites), Plan(1), [records]).state
    site = run_sites.open(1, 0, {}, fresh=True)
    state["model"].into(site.model)
    expected = site.predict(site.model, site.test)
    assert torch.equal(records.rounds[0].evaluation.predictions["site-1"]["test"], expected)


def test_what_is_deployed_is_what_predicted():
    run_sites = TWO.run_sites(FedAvg(), (Finetune(),))
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(1)).state
    deployed = Cohort(run_sites, engine, 0, [0], keep=False).ask("deploy", state)[0]
    predicted = Cohort(run_sites, engine, 0, [0], keep=False).ask("predict", state)[0]
    site = run_sites.open(0, 0, {}, fresh=True)
    deployed["model"].into(site.model)
    assert torch.equal(predicted["test"], site.predict(site.model, site.test))
