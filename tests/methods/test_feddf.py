"""FedDF: rounds by hand, FedAvg without steps, labels out of reach, architectures that differ, BatchNorm, its edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from crossward.core.method import RoundContext, answer, restore_predictor
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.tree import Tree, sizes
from crossward.core.weights import Weights, mean
from crossward.engines.local import LocalEngine
from crossward.methods import feddf
from crossward.methods.fedavg import FedAvg
from crossward.methods.feddf import FedDF, Teachers, divergence, model_of
from crossward.plugins.finetune import Finetune
from crossward.runs.sites import RunSites
from crossward.testing.by_hand import initial_matrix, regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, classifier, linear, other_segmenter, segmenter

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
THREE = Toy(sizes=((6, 2, 2), (9, 2, 2), (8, 2, 2)), public=7)
MIXED = (classifier, linear, classifier)
SMALL = FedDF(distil_steps=3, distil_batch=3)


def context(run_sites: RunSites, round: int = 0) -> RoundContext:
    return RoundContext(round, 1, len(run_sites.ids), run_sites.task, run_sites.server(round))


def replies(run_sites: RunSites) -> tuple[Tree, dict[int, Tree]]:
    """The state after a round, and what the clients sent in it."""
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(1, evaluate_every=0)).state
    return state, {job.site: reply for job, reply in engine.replies}


def logits(net: nn.Module, weights: Weights, x: Tensor) -> Tensor:
    weights.into(net)
    with torch.no_grad():
        result: Tensor = net.eval()(x)
    return result


def consulted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Whose networks are asked from now on."""
    asked, network = [], Teachers._network
    monkeypatch.setattr(Teachers, "_network", lambda self, client: asked.append(client) or network(self, client))
    return asked


def public(run_sites: RunSites) -> Tensor:
    result = run_sites.server(0).public
    return result.take(result.index)[0]


def test_divergence_by_hand():
    teacher, student = torch.tensor([[log(0.75), log(0.25)], [0.0, 0.0]]), torch.zeros(2, 2)
    expected = (0.75 * log(1.5) + 0.25 * log(0.5)) / 2
    assert divergence(teacher, student).item() == pytest.approx(expected)
    maps = torch.stack([teacher, teacher], 2)  # (B, K, pixels): the mean over pixels
    assert divergence(maps, torch.zeros(2, 2, 2)).item() == pytest.approx(expected)
    assert divergence(teacher, teacher + 3).item() == pytest.approx(0, abs=1e-7)


def test_two_rounds_by_hand():
    """toy.linear, one step at each site; then two steps of Adam on all public images, at the rates 0.02 and 0.01."""
    method = FedDF(distil_steps=2, distil_lr=0.02, distil_batch=64)
    run_sites = TWO.run_sites(method, training=Training(epochs=1, batch_size=64, lr=0.1), net=linear)
    sites, w = regression_per_site(run_sites), initial_matrix(run_sites)
    x = public(run_sites).flatten(1).double()
    x = torch.cat([x, torch.ones(len(x), 1)], 1)  # (6, 65)
    for _ in range(2):
        trained = [w - 0.1 * site.gradient(w) for site in sites]
        wanted = (sum(x @ w_k.T for w_k in trained) / 2).softmax(1)  # teachers count alike
        w = (6 * trained[0] + 10 * trained[1]) / 16
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for t, rate in ((1, 0.02), (2, 0.01)):
            g = ((x @ w.T).softmax(1) - wanted).T @ x / len(x)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            w = w - rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    matrix = weight_matrix(run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"])
    torch.testing.assert_close(matrix, w, atol=2e-4, rtol=0)
    assert (matrix - initial_matrix(run_sites)).abs().max() > 0.03


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_without_steps_it_is_fedavg_to_the_bit(buffers: str):
    training, ends, predictions = Training(2, 4, lr=0.05, momentum=0.5, keep_state=True), [], []
    for method in (FedDF(distil_steps=0, buffers=buffers), FedAvg(buffers=buffers)):
        run_sites, records = TWO.run_sites(method, training=training), Records()
        ends.append(run_to_end(run_sites, LocalEngine(run_sites), records))
        predictions.append([record.evaluation.predictions for record in records.rounds])
    assert_same(*ends)
    assert_same({"0": predictions[0][0], "1": predictions[0][1]}, {"0": predictions[1][0], "1": predictions[1][1]})


def test_the_student_comes_closer_to_its_teachers():
    training, gaps = Training(epochs=20, batch_size=4, lr=0.5), []  # so that the sites part
    for steps in (0, 10, 100):
        run_sites = THREE.run_sites(
            replace(SMALL, distil_steps=steps, distil_batch=7, distil_lr=0.01), training=training
        )
        state, sent = replies(run_sites)
        net, x = run_sites.server(0).new_net(), public(run_sites)
        teacher = sum(logits(net, reply["model"], x) for reply in sent.values()) / 3
        gaps.append(divergence(teacher, logits(net, state["model"], x)).item())
    assert gaps[2] < gaps[1] < gaps[0]
    assert gaps[2] < gaps[0] / 3


def test_labels_of_the_public_set_are_never_used():
    ends = []
    for label in (None, 0):
        run_sites = TWO.run_sites(SMALL)
        if label is not None:
            collection, rows = run_sites.federation.collection, run_sites.federation.public
            assert (collection.targets[rows] != label).any()
            targets = collection.targets.index_fill(0, rows, label)
            run_sites.federation = replace(run_sites.federation, collection=replace(collection, targets=targets))
        ends.append(run_to_end(run_sites, LocalEngine(run_sites)))
    assert_same(*ends)


# architectures that differ -------------------------------------------------------------------------------------------


def nets_of(run_sites: RunSites) -> Mapping[str, nn.Module]:
    return {net: run_sites.server(0).new_net(net) for net in ("classifier", "linear")}


def test_each_architecture_is_averaged_over_its_own_clients():
    run_sites = THREE.run_sites(FedDF(distil_steps=0), net=MIXED)
    state, sent = replies(run_sites)
    assert set(state["model"]) == {"classifier", "linear"}
    assert_same({"model": state["model"]["linear"]}, {"model": sent[1]["model"]})
    averaged = mean([sent[0]["model"], sent[2]["model"]], [6.0, 8.0])
    assert_same({"model": state["model"]["classifier"]}, {"model": averaged})


def test_each_architecture_is_taught_by_all_clients():
    """A step of Adam is as long as its rate, and its sign is that of the gradient: towards the mean of all three."""
    run_sites = THREE.run_sites(FedDF(distil_steps=1, distil_batch=64, distil_lr=0.01), net=MIXED)
    state, sent = replies(run_sites)
    nets, x = nets_of(run_sites), public(run_sites)
    each = [logits(nets[net.__name__], sent[i]["model"], x) for i, net in enumerate(MIXED)]
    wanted = (sum(each) / 3).softmax(1)
    error = each[1].softmax(1) - wanted  # the linear student starts as the only linear client ended
    gradient = torch.cat([error.T @ x.flatten(1), error.sum(0)[:, None]], 1) / len(x)
    moved = weight_matrix(state["model"]["linear"]) - weight_matrix(sent[1]["model"])
    clear = gradient.abs() > 1e-5
    assert clear.double().mean() > 0.9
    torch.testing.assert_close(moved[clear].float(), -0.01 * gradient[clear].sign(), atol=1e-4, rtol=0)
    before = mean([sent[0]["model"], sent[2]["model"]], [6.0, 8.0])
    assert (state["model"]["classifier"] - before).norm() > 1e-3


def test_an_architecture_whose_clients_are_absent_keeps_its_model():
    run_sites = THREE.run_sites(SMALL, net=MIXED)
    began = SMALL.start(context(run_sites))["model"]
    state = run(run_sites, DroppingEngine(LocalEngine(run_sites), 1, 0, "train"), Plan(1)).state["model"]
    assert_same({"model": state["linear"]}, {"model": began["linear"]})
    assert (state["classifier"] - began["classifier"]).norm() > 1e-3


def test_a_site_is_sent_its_own_architecture_alone():
    run_sites, records = THREE.run_sites(SMALL, net=MIXED), Records()
    run(run_sites, LocalEngine(run_sites), Plan(1), [records])
    began = SMALL.start(context(run_sites))["model"]
    down = next(t for t in records.rounds[0].traffic if t.direction == "down")
    assert down.bytes == 2 * sizes(began)["classifier"] + sizes(began)["linear"]
    assert set(sizes(began)) == {"classifier", "linear"}


def test_each_site_predicts_with_its_own_architecture_and_deploys_that_alone():
    run_sites, records = THREE.run_sites(SMALL, (Finetune(epochs=1),), net=MIXED), Records()
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(1), [records]).state
    for i, net in enumerate(MIXED):
        site = run_sites.open(i, 0, {}, fresh=True)
        predictor = SMALL.predictor(site, SMALL.broadcast(state))
        expected = logits(nets_of(run_sites)[net.__name__], state["model"][net.__name__], public(run_sites))
        site.model.eval()
        torch.testing.assert_close(predictor(public(run_sites)).detach(), expected)
        exported = answer(SMALL, run_sites.open(i, 0, {}, fresh=True), "deploy", SMALL.broadcast(state), seed=7)
        assert exported["down"] == {}
        other = run_sites.open(i, 0, {}, fresh=True)
        predicted = restore_predictor(SMALL, other, exported)(public(run_sites))
        assert (predicted - expected).abs().max() > 1e-4  # fine-tuned, which is what was kept
        assert_same({"model": Weights.of(other.model)}, {"model": exported["model"]})


def test_networks_of_any_kind_are_accepted():
    SMALL.check_nets({"a": classifier(), "b": linear()})
    assert model_of(weights := Weights({}), "any") is weights


# BatchNorm, segmentation ---------------------------------------------------------------------------------------------


def test_statistics_of_the_student_move_from_the_average_towards_the_public_set():
    run_sites = THREE.run_sites(replace(SMALL, distil_steps=1, distil_batch=7, distil_lr=1e-6))
    state, sent = replies(run_sites)
    averaged = mean([sent[i]["model"] for i in range(3)], [6.0, 9.0, 8.0])
    net, x = run_sites.server(0).new_net(), public(run_sites)
    averaged.into(net)
    with torch.no_grad():
        seen = net.body[0](x).mean((0, 2, 3))
    expected = 0.9 * averaged["body.1.running_mean"] + 0.1 * seen
    torch.testing.assert_close(state["model"]["body.1.running_mean"], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("buffers", ["local", "server"])
def test_statistics_that_are_not_sent_are_measured_on_the_public_set(buffers: str):
    method = replace(SMALL, buffers=buffers)
    run_sites = THREE.run_sites(method)
    state, sent = replies(run_sites)
    assert "body.1.running_mean" not in sent[0]["model"]
    assert ("body.1.running_mean" in state["model"]) == (buffers == "server")
    ctx = context(run_sites)
    averages = {"classifier": method.start(ctx)["model"]}
    teachers = method._teachers(averages, sent, ctx)
    net, x, every = run_sites.server(0).new_net(), public(run_sites), []
    for i in range(3):
        sent[i]["model"].into(net)
        z = net.body[0](x)
        torch.testing.assert_close(teachers.statistics[i]["body.1.running_mean"], z.mean((0, 2, 3)))
        Weights({**sent[i]["model"], **teachers.statistics[i]}).into(net)
        every.append(net.eval()(x))
    torch.testing.assert_close(teachers.logits(lambda architecture: [x]), sum(every).detach() / 3)


@pytest.mark.parametrize("most", [7 * 3 * 8 * 8, 7 * 3 * 8 * 8 - 1])
def test_in_segmentation_teachers_may_be_asked_batch_by_batch_and_say_the_same(
    monkeypatch: pytest.MonkeyPatch, most: int
):
    monkeypatch.setattr(feddf, "MOST_LOGITS", most)
    run_sites = replace(THREE, task="segmentation").run_sites(SMALL, net=(segmenter, segmenter, segmenter))
    state, sent = replies(run_sites)
    ctx = context(run_sites)
    teachers = SMALL._teachers({"segmenter": state["model"]}, sent, ctx)
    x, places = public(run_sites), torch.tensor([4, 1, 2])
    every = teachers.logits(lambda architecture: [x])
    assert every.shape == (7, 3, 8, 8)
    teacher_logits = SMALL._teacher_logits(teachers, ctx)
    asked = consulted(monkeypatch)
    torch.testing.assert_close(teacher_logits(x[places], places), every[places], atol=1e-5, rtol=1e-5)
    assert asked == ([] if most == every.numel() else [0, 1, 2])


def test_teachers_are_asked_once_in_a_round_for_all_architectures(monkeypatch: pytest.MonkeyPatch):
    asked = consulted(monkeypatch)
    for task, net in (("classification", MIXED), ("segmentation", (segmenter, other_segmenter, segmenter))):
        run_sites = replace(THREE, task=task).run_sites(SMALL, net=net)
        run(run_sites, LocalEngine(run_sites), Plan(1, evaluate_every=0))
        assert sorted(asked) == [0, 1, 2]
        asked.clear()


# edges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("public", [1, 4])
def test_one_image_no_image_and_a_class_nobody_has(task: str, public: int):
    toy = Toy(task, sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1)), unseen=True, public=public)
    run_sites, records = toy.run_sites(SMALL), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]


@pytest.mark.parametrize("options", [{"distil_steps": -1}, {"distil_lr": 0}, {"distil_batch": 1}], ids=str)
def test_options_are_checked(options: dict[str, object]):
    with pytest.raises(ValidationError):
        TypeAdapter(FedDF).validate_python(options)
