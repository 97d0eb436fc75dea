"""FedSM: SoftPull, the selector and the super model by hand; FedAvg and Local within it to the bit; its edges."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.method import PERSONAL, answer, restore_predictor
from crossward.core.net import Net, NetSpec
from crossward.core.optimiser_memory import OPTIMISER
from crossward.core.run import Plan, run
from crossward.core.store import TreeStore
from crossward.core.training import Training
from crossward.core.tree import Tree, sizes
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedsm import GLOBAL, FedSM, by_group, chosen, new_selector, pulled, stepped
from crossward.methods.local import Local
from crossward.runs.sites import RunSites
from crossward.testing.by_hand import initial_matrix, regression_per_site, weight_matrix
from crossward.testing.engine_wrappers import DroppingEngine, RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, classifier, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))
THREE = Toy(sizes=((6, 2, 3), (9, 2, 3), (8, 2, 3)))
FULL_BATCH = Training(epochs=1, batch_size=64, lr=0.1)
KEPT = Training(2, 4, lr=0.05, momentum=0.5, keep_state=True)
SMALL = FedSM(selector_steps=1)


def dropping() -> nn.Module:
    net = classifier()
    return Net(nn.Sequential(net.body, nn.Dropout(0.3)), net.head, net.width)


def vector(*values: float) -> Weights:
    return Weights({"w": torch.tensor(values)})


# the parts -----------------------------------------------------------------------------------------------------------


def test_softpull_by_hand():
    models = {"0": vector(1.0, 0.0), "1": vector(4.0, 1.0), "4": vector(7.0, 8.0)}
    pulled_models = pulled(models, 0.6)  # each of the others has a share of 0.2
    torch.testing.assert_close(pulled_models["0"]["w"], torch.tensor([0.6 + 0.2 * 11, 0.2 * 9]))
    torch.testing.assert_close(pulled_models["1"]["w"], torch.tensor([2.4 + 0.2 * 8, 0.6 + 0.2 * 8]))
    torch.testing.assert_close(pulled_models["4"]["w"], torch.tensor([4.2 + 0.2 * 5, 4.8 + 0.2 * 1]))
    for third in pulled(models, 1 / 3).values():  # all alike: the plain mean
        torch.testing.assert_close(third["w"], torch.tensor([4.0, 3.0]))
    assert all(torch.equal(w["w"], models[k]["w"]) for k, w in pulled(models, 1.0).items())
    assert pulled({"2": models["1"]}, 0.6)["2"] is models["1"]


def test_the_servers_step_is_adams():
    x = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimiser, w = torch.optim.Adam([x], lr=0.1), vector(1.0, -2.0, 3.0)
    state: Tree = {"selector": w, "moments": {"first": w.zeros(), "second": w.zeros(), "steps": 0}}
    for g in (vector(0.5, -1.0, 0.0), vector(2.0, 1e-3, 0.0), vector(-1.0, 4.0, 1.0)):
        x.grad = g["w"].clone()
        optimiser.step()
        state = stepped(state["selector"], g, state["moments"], 0.1)
        torch.testing.assert_close(state["selector"]["w"], x.detach())
    assert state["moments"]["steps"] == 3


@pytest.mark.parametrize("site", [0, 1, 2], ids=["one image", "five", "nine"])
def test_a_site_tells_the_gradient_over_all_its_images(site: int):
    run_sites = Toy(sizes=((1, 1, 1), (5, 1, 1), (9, 1, 1))).run_sites(SMALL, training=KEPT)
    here, net = run_sites.open(site, 0, {}, fresh=True), new_selector(1, 3)
    x, _ = here.train.take(here.train.index)
    loss = F.cross_entropy(net(x), torch.full((len(x),), site))
    expected = torch.autograd.grad(loss, list(net.parameters()))
    reply = answer(SMALL, here, "recognise", {"selector": Weights.of(net)}, seed=3)  # in batches of 4
    assert reply["n"] == len(x)
    for name, gradient in zip(dict(net.named_parameters()), expected, strict=True):
        torch.testing.assert_close(reply["gradient"][name], gradient, atol=1e-5, rtol=1e-4)
    assert here.memory == {}


def test_who_is_chosen():
    scores = torch.tensor([[0.95, 0.03, 0.02], [0.05, 0.92, 0.03], [0.5, 0.3, 0.2], [0.0, 0.1, 0.9]])
    known = torch.tensor([0, 2])
    assert chosen(scores, known, 0.9).tolist() == [0, GLOBAL, GLOBAL, GLOBAL]  # 0.9 is not above 0.9; 1 is not known
    assert chosen(scores, known, 0.0).tolist() == [0, GLOBAL, 0, 2]
    assert chosen(scores, known, 1.1).tolist() == [GLOBAL] * 4
    assert chosen(scores, known[:0], 0.0).tolist() == [GLOBAL] * 4


def test_each_image_is_predicted_by_the_network_of_its_group():
    x, groups = torch.arange(10.0).view(5, 2), torch.tensor([3, GLOBAL, 3, 0, GLOBAL])
    logits = by_group(x, groups, lambda k: lambda some: some * (k + 2))  # type: ignore[arg-type, return-value]
    assert torch.equal(logits, x * torch.tensor([5.0, 1.0, 5.0, 2.0, 1.0])[:, None])


def test_it_must_know_how_many_sites_there_are():
    with pytest.raises(ConfigError, match="how many sites"):
        FedSM().build(linear(), NetSpec(1, 8, 3))


# rounds --------------------------------------------------------------------------------------------------------------


def test_two_rounds_by_hand():
    method = FedSM(keep=0.6, selector_steps=2, selector_lr=0.01)
    run_sites = TWO.run_sites(method, training=FULL_BATCH, net=linear)
    sites, w = regression_per_site(run_sites), initial_matrix(run_sites)
    personal, net = [w, w], run_sites.server(0).new_net().selector
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(2):
        for _ in range(2):  # the selector learns from all images together
            adam.zero_grad()
            x = torch.cat([site.x[:, :-1] for site in sites]).float().view(-1, 1, 8, 8)
            F.cross_entropy(net(x), torch.tensor([0] * 6 + [1] * 10)).backward()
            adam.step()
        w = sum(site.n * (w - 0.1 * site.gradient(w)) for site in sites) / 16
        a, b = (w_k - 0.1 * site.gradient(w_k) for w_k, site in zip(personal, sites, strict=True))
        personal = [0.6 * a + 0.4 * b, 0.6 * b + 0.4 * a]
    state = run(run_sites, LocalEngine(run_sites), Plan(2)).state
    torch.testing.assert_close(weight_matrix(state["model"]), w, atol=2e-6, rtol=0)
    for k, w_k in enumerate(personal):
        torch.testing.assert_close(weight_matrix(state["personal"][str(k)]), w_k, atol=2e-6, rtol=0)
    assert (personal[0] - personal[1]).abs().max() > 1e-3
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(state["selector"][name], parameter.detach(), atol=1e-3, rtol=0)
    assert state["moments"]["steps"] == 4


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_the_global_model_is_fedavgs_to_the_bit(buffers: str):
    ends = []
    for method in (replace(SMALL, buffers=buffers), FedAvg(buffers=buffers)):
        run_sites = TWO.run_sites(method, training=KEPT, net=dropping)
        ends.append(run_to_end(run_sites, LocalEngine(run_sites)))
    own, plain = ends
    assert_same({"model": own["state"]["model"]}, plain["state"])
    for k, memory in own["memory"].items():
        assert set(memory.pop("personal")) == {OPTIMISER} | ({PERSONAL} if buffers == "local" else set())
        assert_same(dict(sorted(memory.items())), dict(sorted(plain["memory"][k].items())))


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_with_keep_1_personalised_models_are_trained_by_their_sites_alone_to_the_bit(buffers: str):
    """As the method `local` trains them from the same initial weights."""
    method = replace(SMALL, keep=1.0, buffers=buffers)
    run_sites = TWO.run_sites(method, training=KEPT, net=dropping)
    engine, other = LocalEngine(run_sites), TWO.run_sites(Local(), training=KEPT, net=dropping)
    state, memory = run(run_sites, engine, Plan(3)).state, TreeStore()
    began = Weights.of(other.server(0).new_net())
    memory.update({i: {PERSONAL: began} for i in other.ids})
    run(other, LocalEngine(other, memory=memory), Plan(3))
    for i in (0, 1):
        kept = engine.memory[i]["personal"]
        result = Weights({**state["personal"][str(i)], **kept.get(PERSONAL, {})})
        assert all(torch.equal(result[name], tensor) for name, tensor in memory[i][PERSONAL].items())
        assert_same(kept[OPTIMISER]["1"], memory[i][OPTIMISER]["0"])
    assert (state["personal"]["0"] - state["personal"]["1"]).norm() > 1e-2


def test_only_its_own_model_goes_to_a_site_that_trains():
    run_sites, records = THREE.run_sites(SMALL), Records()
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(1), [records]).state
    assert set(SMALL.broadcast(state)) == {"model", "personal", "selector"}
    assert set(state["personal"]) == {"0", "1", "2"}
    traffic = {(t.step, t.direction, t.item): t.bytes for t in records.rounds[0].traffic}
    model, chooser = sizes(state)["model"], sizes(state)["selector"]
    assert traffic["train", "down", "personal"] == traffic["train", "up", "personal"] == 3 * model
    assert traffic["train", "down", "model"] == 3 * model
    assert traffic["recognise", "down", "selector"] == traffic["recognise", "up", "gradient"] == 3 * chooser
    assert {step for step, _, _ in traffic} == {"recognise", "train"}
    sent = [set(reply) for job, reply in engine.replies if job.step == "train"]
    assert sent == [{"model", "personal", "n"}] * 3


def test_a_client_that_is_absent_keeps_its_personalised_model_and_a_late_one_starts_at_the_beginning():
    run_sites = THREE.run_sites(replace(SMALL, keep=1.0), training=FULL_BATCH, net=linear)
    ends = [
        run(run_sites, DroppingEngine(LocalEngine(run_sites), 1, lost, "train"), Plan(2)).state["personal"]
        for lost in (0, 1)
    ]
    w, site = initial_matrix(run_sites), regression_per_site(run_sites)[1]
    for end in ends:  # one round less, be it the first or the second
        torch.testing.assert_close(weight_matrix(end["1"]), w - 0.1 * site.gradient(w), atol=2e-6, rtol=0)
    once = run(run_sites, DroppingEngine(LocalEngine(run_sites), 1, 0, "train"), Plan(1)).state["personal"]
    assert set(once) == {"0", "2"}


@pytest.mark.parametrize("step", ["recognise", "train"])
def test_who_is_lost_between_two_questions_is_left_out_of_the_rest(step: str):
    run_sites, records = THREE.run_sites(FedSM(selector_steps=2)), Records()
    state = run(run_sites, DroppingEngine(LocalEngine(run_sites), 0, 0, step), Plan(2), [records]).state
    assert [list(record.failures) for record in records.rounds] == [["site-0"], []]
    assert set(state["personal"]) == {"0", "1", "2"}
    assert_finite(state)


# the super model -----------------------------------------------------------------------------------------------------


def run_and_predict(method: FedSM | FedAvg, toy: Toy = THREE) -> tuple[RunSites, Tree, Tree]:
    run_sites, records = toy.run_sites(method), Records()
    state = run(run_sites, LocalEngine(run_sites), Plan(2), [records]).state
    return run_sites, state, records.rounds[-1].evaluation.predictions


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_above_1_no_selector_is_sure_enough_and_predictions_are_fedavgs_to_the_bit(task: str):
    toy = replace(THREE, task=task)
    assert_same(run_and_predict(replace(SMALL, gamma=1.1), toy)[2], run_and_predict(FedAvg(), toy)[2])


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_at_0_the_model_of_the_chosen_site_predicts_each_image(task: str):
    run_sites, state, predictions = run_and_predict(
        replace(SMALL, gamma=0.0, selector_lr=0.05), replace(THREE, task=task)
    )
    server = run_sites.open(-1, 0, {})
    x, _ = server.test.take(server.test.index)
    net = run_sites.server(0).new_net()
    state["selector"].into(net.selector)
    with torch.no_grad():
        mine = net.selector(x).argmax(1)
        expected = []
        for image, k in zip(x, mine, strict=True):
            state["personal"][str(int(k))].into(net)
            expected.append(net.eval()(image[None]))
    wanted = run_sites.task.prediction(torch.cat(expected))
    torch.testing.assert_close(predictions["server"]["test"], wanted)


def test_the_selector_learns_to_tell_sites_apart():
    """Each has images of its own brightness."""
    run_sites = replace(THREE, sizes=((12, 2, 6),) * 3).run_sites(FedSM(), net=linear)
    federation = run_sites.federation
    images = federation.collection.images.clone()
    for split, light in zip(federation.sites, (0, 90, 180), strict=True):
        for rows in (split.train, split.test):
            images[rows] = (images[rows] // 4 + light).to(torch.uint8)
    run_sites.federation = replace(federation, collection=replace(federation.collection, images=images))
    state = run(run_sites, LocalEngine(run_sites), Plan(8, evaluate_every=0)).state  # 40 steps
    net, right = new_selector(1, 3), []
    state["selector"].into(net)
    for i in run_sites.ids:
        site = run_sites.open(i, 0, {})
        right.append((net(site.test.take(site.test.index)[0]).argmax(1) == i).double().mean())
    assert torch.stack(right).mean() > 0.9


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_what_is_deployed_predicts_as_the_site_did(buffers: str):
    method = FedSM(selector_steps=1, gamma=0.34, buffers=buffers)
    run_sites, engine = THREE.run_sites(method), LocalEngine(THREE.run_sites(method))
    down = method.broadcast(run(run_sites, engine, Plan(2)).state)
    memory = engine.memory.get(1, {})
    expected: Tensor = answer(method, run_sites.open(1, 1, dict(memory)), "predict", down, seed=5)["test"]
    exported = answer(method, run_sites.open(1, 1, dict(memory)), "deploy", down, seed=5)
    site = run_sites.open(1, 1, {}, fresh=True)
    predictor = restore_predictor(method, site, exported)
    assert torch.equal(site.predict(predictor, site.test), expected)


# edges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_one_image_no_image_and_a_class_nobody_has(task: str, gamma: float):
    toy = Toy(task, sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1)), unseen=True)
    run_sites, records = toy.run_sites(replace(SMALL, gamma=gamma)), Records()
    end = run_to_end(run_sites, LocalEngine(run_sites), records)
    assert_finite(end)
    assert set(end["state"]["personal"]) == {"0", "2"}  # the site without images has no model, and is never chosen
    assert [record.failures for record in records.rounds] == [{}, {}]


def test_a_federation_of_one():
    run_sites = Toy(sizes=((6, 2, 2),)).run_sites(SMALL, training=KEPT)
    state = run(run_sites, LocalEngine(run_sites), Plan(2)).state
    assert_same({"model": state["personal"]["0"]}, {"model": state["model"]})


@pytest.mark.parametrize(
    "options", [{"keep": 1.1}, {"gamma": -0.1}, {"selector_steps": 0}, {"selector_lr": 0}], ids=str
)
def test_options_are_checked(options: dict[str, object]):
    with pytest.raises(ValidationError):
        TypeAdapter(FedSM).validate_python(options)


# the selector ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [8, 28, 65])
def test_the_selector_scores_every_site_for_images_of_any_size(size: int):
    assert new_selector(3, 7)(torch.zeros(2, 3, size, size)).shape == (2, 7)


def test_the_selector_has_no_batchnorm():
    """Two images that differ in brightness alone keep differing, whatever else is in their batch."""
    net = new_selector(1, 2)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules())
    x = torch.ones(2, 1, 16, 16) * torch.tensor([0.5, 1.0]).view(2, 1, 1, 1)
    alone = torch.cat([net(x[:1]), net(x[1:])])
    torch.testing.assert_close(net(x), alone, atol=1e-5, rtol=1e-5)
    assert (alone[0] - alone[1]).abs().max() > 1e-3


def test_the_selectors_signal_keeps_its_size_at_first():
    torch.manual_seed(0)
    x = torch.randn(64, 3, 28, 28)
    assert 0.05 < new_selector(3, 6)(x).std() < 5
