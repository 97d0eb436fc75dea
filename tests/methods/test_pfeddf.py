"""pFedDF: FedDF's federation to the bit; a site predicts with the network that it ended its training with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from crossward.core.method import answer, restore_predictor
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.methods.feddf import FedDF
from crossward.methods.pfeddf import OWN, PFedDF
from crossward.plugins.finetune import Finetune
from crossward.runs.sites import RunSites
from crossward.testing.by_hand import initial_matrix, regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, classifier, linear

torch.set_num_threads(1)
THREE = Toy(sizes=((6, 2, 2), (9, 2, 2), (8, 2, 2)), public=7)
SMALL = PFedDF(distil_steps=3, distil_batch=3)
NETS = [None, (classifier, linear, classifier)]


def predicted(run_sites: RunSites, site: int, weights: Weights) -> Tensor:
    """Of the site's test set."""
    here = run_sites.open(site, 0, {}, fresh=True)
    weights.into(here.model)
    return here.predict(here.model, here.test)


def watched(
    run_sites: RunSites, rounds: int, lost: tuple[int, int] | None = None
) -> tuple[Tree, Records, RecordingEngine]:
    engine = LocalEngine(run_sites)
    tap, records = RecordingEngine(engine if lost is None else DroppingEngine(engine, *lost, "train")), Records()
    return run(run_sites, tap, Plan(rounds), [records]).state, records, tap


@pytest.mark.parametrize("net", NETS, ids=["alike", "mixed"])
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_the_federation_is_feddfs_to_the_bit(net: object, buffers: str):
    results = []
    training = Training(2, 4, lr=0.05, momentum=0.5, keep_state=True)
    for method_class in (PFedDF, FedDF):
        run_sites = THREE.run_sites(
            method_class(distil_steps=3, distil_batch=3, buffers=buffers), training=training, net=net
        )
        state, _, tap = watched(run_sites, 2)
        sent = {f"{job.round} {job.site}": reply for job, reply in tap.replies if job.step == "train"}
        results.append({"state": state, "sent": sent})
    assert_same(*results)


@pytest.mark.parametrize("net", NETS, ids=["alike", "mixed"])
def test_a_site_predicts_with_what_it_ended_its_training_with(net: object):
    run_sites = THREE.run_sites(SMALL, net=net)
    state, records, tap = watched(run_sites, 2)
    last = {job.site: reply["model"] for job, reply in tap.replies if job.step == "train" and job.round == 1}
    for i in range(3):
        result = records.rounds[1].evaluation.predictions[f"site-{i}"]["test"]
        assert torch.equal(result, predicted(run_sites, i, last[i]))
        fused = state["model"] if net is None else state["model"][net[i].__name__]
        assert not torch.equal(result, predicted(run_sites, i, fused))


def test_a_round_by_hand():
    """toy.linear and one step of plain SGD: each site has what FedDF would have it send."""
    run_sites = THREE.run_sites(SMALL, training=Training(epochs=1, batch_size=64, lr=0.1), net=linear)
    engine = LocalEngine(run_sites)
    run(run_sites, engine, Plan(1))
    w = initial_matrix(run_sites)
    for i, site in enumerate(regression_per_site(run_sites)):
        torch.testing.assert_close(weight_matrix(engine.memory[i][OWN]), w - 0.1 * site.gradient(w), atol=2e-6, rtol=0)


def test_who_is_absent_keeps_its_network_and_who_was_never_there_has_the_fused_one():
    toy = replace(THREE, sizes=((6, 2, 2), (9, 2, 2), (0, 2, 2)))
    run_sites = toy.run_sites(SMALL)
    state, records, tap = watched(run_sites, 2, lost=(0, 1))
    sent = {(job.round, job.site): reply.get("model") for job, reply in tap.replies if job.step == "train"}
    predictions = records.rounds[1].evaluation.predictions
    assert torch.equal(predictions["site-0"]["test"], predicted(run_sites, 0, sent[0, 0]))
    assert torch.equal(predictions["site-1"]["test"], predicted(run_sites, 1, sent[1, 1]))
    assert torch.equal(predictions["site-2"]["test"], predicted(run_sites, 2, state["model"]))


def test_what_is_deployed_predicts_as_before_and_keeps_its_fine_tuning():
    run_sites = THREE.run_sites(SMALL, (Finetune(epochs=1),))
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(1)).state
    exported = answer(SMALL, run_sites.open(0, 0, dict(engine.memory[0])), "deploy", SMALL.broadcast(state), seed=7)
    site = run_sites.open(0, 0, {}, fresh=True)
    restore_predictor(SMALL, site, exported)
    assert_same({"model": Weights.of(site.model)}, {"model": exported["model"]})
    assert (Weights.of(site.model) - engine.memory[0][OWN]).norm() > 1e-3


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_one_image_no_image_and_a_class_nobody_has(task: str):
    run_sites, records = Toy(task, sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1)), unseen=True).run_sites(SMALL), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
