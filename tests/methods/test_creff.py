"""CReFF: gradients in closed form, the matching, rounds by hand, FedAvg's body to the bit, what is sent, its edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.cohort import Cohort
from crossward.core.method import RoundContext, restore_predictor
from crossward.core.net import Net
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.tree import Tree, sizes
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError
from crossward.methods.creff import CReFF, distance, gradients, like, matrix
from crossward.methods.fedavg import FedAvg
from crossward.plugins.finetune import Finetune
from crossward.runs.sites import RunSites
from crossward.testing.by_hand import regression_per_site
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, classifier, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))  # the first site lacks the last class: 4, 2, 0 and 3, 4, 3 images
SMALL = CReFF(features_per_class=5, draws=2, draw_size=2, match_steps=4, retrain_epochs=3)


def context(run_sites: RunSites, round: int = 0) -> RoundContext:
    return RoundContext(round, 1, len(run_sites.ids), run_sites.task, run_sites.server(round))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ones(z: Tensor) -> Tensor:
    return F.pad(z, (0, 1), value=1.0)


def by_autograd(phi: Tensor, z: Tensor, c: int) -> Tensor:
    """What `gradients` must be, with a graph to differentiate further."""
    w, b = phi[:, :-1].clone().requires_grad_(), phi[:, -1].clone().requires_grad_()
    loss = F.cross_entropy(F.linear(z, w, b), torch.full((len(z),), c))
    of_w, of_b = torch.autograd.grad(loss, (w, b), create_graph=True)
    return torch.cat([of_w, of_b[:, None]], 1)


def matched_once(phi: Tensor, v: Tensor, c: int, wanted: Tensor) -> Tensor:
    """The features of a class after a step at the rate 0.1."""
    z = v.clone().requires_grad_()
    a = by_autograd(phi, z, c)
    rows = [(a[k, :-1], wanted[k, :-1]) for k in range(len(a))] + [(a[:, -1], wanted[:, -1])]
    apart = sum(1 - (x @ y) / (x.norm() * y.norm() + 1e-6) for x, y in rows)
    return v - 0.1 * torch.autograd.grad(apart, z)[0]


def test_gradients_in_closed_form_are_autograds():
    phi, z, classes = drawn(3, 5), drawn(3, 7, 4, seed=1), [2, 0, 1]
    expected = torch.stack([by_autograd(phi, z[i], c).detach() for i, c in enumerate(classes)])
    torch.testing.assert_close(gradients(phi, z, torch.tensor(classes)), expected)
    torch.testing.assert_close(gradients(phi, z[0], torch.tensor(2)), expected[0])


def test_distance_by_hand():
    a = torch.tensor([[3.0, 4.0, 1.0], [1.0, 0.0, 0.0]])  # two rows of weights; the biases are the last column
    assert distance(a, 2 * a).item() == pytest.approx(0, abs=1e-5)
    assert distance(a, -a).item() == pytest.approx(6, abs=1e-5)  # 2 for each row and for the biases
    b = torch.tensor([[4.0, 3.0, 0.0], [0.0, 1.0, 1.0]])
    assert distance(a, b).item() == pytest.approx((1 - 24 / 25) + 1 + 1, abs=1e-5)
    nothing = torch.zeros(2, 3, requires_grad=True)  # is at distance 1, and does no harm
    assert distance(nothing, a).item() == 3.0
    assert torch.isfinite(torch.autograd.grad(distance(nothing, a), nothing)[0]).all()


def test_matching_reduces_the_distance_and_leaves_absent_classes_alone():
    phi, real, classes = 0.1 * drawn(3, 9), drawn(3, 20, 8, seed=1) + 1, torch.tensor([0, 2])
    wanted, features, results = gradients(phi, real, torch.arange(3)), drawn(3, 10, 8, seed=2), []
    for steps in (0, 1, 10, 100):
        matched = CReFF(match_steps=steps)._matched(features, phi, wanted, torch.tensor([True, False, True]))
        results.append(distance(gradients(phi, matched[classes], classes), wanted[classes]).item())
        assert torch.equal(matched[1], features[1])
        if steps == 1:
            torch.testing.assert_close(matched[2], matched_once(phi, features[2], 2, wanted[2]))
        assert steps or torch.equal(matched, features)
    assert results[3] < results[2] < results[1] < results[0]
    assert results[3] < results[0] / 2


def test_the_re_training_by_hand():
    """14 features in batches of 4, 4, 4 and 2, two epochs."""
    features, rng = drawn(2, 7, 4).float(), torch.Generator().manual_seed(3)
    phi = (2 * torch.rand(2, 5, generator=rng) - 1) / 2  # within 1 / sqrt(4) of 0, as nn.Linear begins
    z, y = ones(features.flatten(0, 1)), torch.arange(14) // 7
    for _ in range(2):
        for rows in torch.randperm(14, generator=rng).split(4):
            error = (z[rows] @ phi.T).softmax(1) - F.one_hot(y[rows], 2)
            phi = phi - 0.5 * error.T @ z[rows] / len(rows)
    method, rng = CReFF(retrain_epochs=2, retrain_batch=4, retrain_lr=0.5), torch.Generator().manual_seed(3)
    retrained = method._retrained(features, torch.ones(2, dtype=torch.bool), rng)
    torch.testing.assert_close(retrained, phi, atol=1e-5, rtol=0)


def test_two_rounds_by_hand():
    """toy.linear: features are pixels, and all draws are whole classes. One step of matching, one of re-training."""
    method = CReFF(features_per_class=4, match_steps=1, retrain_epochs=1, retrain_batch=64, retrain_lr=0.3)
    run_sites = TWO.run_sites(method, training=Training(epochs=1, batch_size=64, lr=0.1), net=linear)
    sites, state = regression_per_site(run_sites), method.start(context(run_sites))
    w = phi = matrix(state["model"]).double()
    v = state["features"].double()
    for round in range(2):
        for c in range(3):  # with the classifier that was sent; sites that have the class count alike
            held = [site.x[site.y == c, :-1] for site in sites if (site.y == c).any()]
            real = sum(by_autograd(phi, z, c) for z in held).detach() / len(held)
            v = v.index_copy(0, torch.tensor([c]), matched_once(phi, v[c], c, real)[None])
        w = sum(site.n * (w - 0.1 * site.gradient(w)) for site in sites) / 16
        fresh = (2 * torch.rand(3, 65, generator=run_sites.server(round).rng).double() - 1) / 8
        z = ones(v.flatten(0, 1))
        error = (z @ fresh.T).softmax(1) - F.one_hot(torch.arange(12) // 4, 3)
        phi = fresh - 0.3 * error.T @ z / 12
    end = run(run_sites, LocalEngine(run_sites), Plan(2)).state
    torch.testing.assert_close(matrix(end["model"]).double(), w, atol=1e-5, rtol=0)
    torch.testing.assert_close(end["features"].double(), v, atol=1e-5, rtol=0)
    torch.testing.assert_close(matrix(end["classifier"]).double(), phi, atol=1e-5, rtol=0)
    assert (v - state["features"]).abs().max() > 1e-3


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_the_model_is_fedavgs_to_the_bit(buffers: str):
    """So neither the draws nor the server's fits disturb local training; nor does the re-trained head enter it."""
    training, ends = Training(2, 4, lr=0.05, momentum=0.5, keep_state=True), []
    for method in (replace(SMALL, buffers=buffers), FedAvg(buffers=buffers)):
        run_sites = TWO.run_sites(method, training=training)
        ends.append(run_to_end(run_sites, LocalEngine(run_sites)))
    own, plain = ends
    assert_same({"model": own["state"]["model"]}, plain["state"])
    assert_same(own["memory"], plain["memory"])
    head = plain["state"]["model"].only(own["state"]["classifier"])
    assert (own["state"]["classifier"] - head).norm() > 1e-2


def test_without_re_training_it_predicts_as_fedavg_to_the_bit():
    results = []
    for method in (replace(SMALL, match_steps=0, retrain_epochs=0), replace(SMALL, retrain_epochs=0), FedAvg()):
        run_sites, records = TWO.run_sites(method), Records()
        run(run_sites, LocalEngine(run_sites), Plan(2), [records])
        results.append(records.rounds[-1].evaluation.predictions)
    assert_same(results[0], results[2])
    assert_same(results[1], results[2])


def test_matching_is_what_teaches_a_classifier_that_has_never_seen_a_real_feature():
    real, classes, seen = drawn(3, 30, 8) + 4 * torch.eye(8)[:3, None], torch.arange(3), torch.ones(3, dtype=torch.bool)
    right = []
    for steps in (0, 100):
        method, rng = CReFF(match_steps=steps, retrain_epochs=60, retrain_lr=0.1), torch.Generator().manual_seed(0)
        phi, features = 0.3 * drawn(3, 9, seed=1), drawn(3, 10, 8, seed=2)
        for _ in range(3):
            features = method._matched(features, phi, gradients(phi, real, classes), seen)
            phi = method._retrained(features.float(), seen, rng).double()
        right.append(((ones(real) @ phi.T).argmax(2) == classes[:, None]).double().mean())
    assert right[0] < 0.5
    assert right[1] > 0.9


def sent(method: CReFF, toy: Toy) -> tuple[Tree, dict[int, Tree]]:
    """The state after one round, and what the clients sent in it."""
    run_sites = toy.run_sites(method)
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(1, evaluate_every=0)).state
    return state, {job.site: reply for job, reply in engine.replies}


def test_what_travels():
    began, (_, replies) = SMALL.start(context(TWO.run_sites(SMALL))), sent(SMALL, TWO)
    assert set(began) == {"model", "classifier", "features", "seen"}
    assert began["features"].shape == (3, 5, 16)
    assert 0.8 < began["features"].std() < 1.2
    assert set(SMALL.broadcast(began)) == {"model", "classifier"}
    assert_same(
        {**began["classifier"]}, {**began["model"].only(["head.weight", "head.bias"])}
    )  # at first the net's own head
    assert set(replies[0]) == set(replies[1]) == {"model", "n", "gradients", "classes"}
    assert sizes(replies[1])["gradients"] == 4 * 3 * (16 * 3 + 3)  # bytes: C x (dC + C) floats
    assert replies[1]["classes"].tolist() == [0, 1, 2]
    assert replies[0]["gradients"].shape == (2, 3, 17)  # nothing is said of the class it lacks
    assert replies[0]["classes"].tolist() == [0, 1]


def at_a_site(method: CReFF, toy: Toy = TWO, site: int = 1) -> tuple[Tree, Tensor, Tensor, Tensor]:
    """What the site tells, the classifier it was sent, and its features in eval mode before training."""
    run_sites, phi = toy.run_sites(method), drawn(3, 17, seed=9).float()
    down = method.broadcast(method.start(context(run_sites)))
    down["classifier"] = like(down["classifier"], phi)
    here = run_sites.open(site, 0, {}, fresh=True)
    reply = method.train(here, down)
    down["model"].into(here.model)
    ((z, y),) = here.vectors(here.train)
    return reply, phi, z, y


def test_gradients_are_of_what_was_sent_and_means_over_draws_without_replacement():
    reply, phi, z, y = at_a_site(CReFF(draws=3))  # a draw is the whole class
    for c in range(3):
        expected = by_autograd(phi, z[y == c], c).detach()
        torch.testing.assert_close(reply["gradients"][c], expected, atol=1e-5, rtol=0)
    reply, phi, z, y = at_a_site(CReFF(draws=2, draw_size=2))
    mine = z[y == 1]  # four images: six pairs
    pairs = [by_autograd(phi, mine[[i, j]], 1).detach() for i in range(4) for j in range(i)]
    assert min((reply["gradients"][1] - (a + b) / 2).abs().max() for a in pairs for b in pairs) < 1e-5


def test_one_image_is_its_class_and_its_features_can_be_told():
    reply, phi, z, y = at_a_site(CReFF(), Toy(sizes=((1, 1, 1), (4, 1, 1))), site=0)
    assert reply["classes"].tolist() == y.tolist()
    result = reply["gradients"][0]
    torch.testing.assert_close(result, by_autograd(phi, z, int(y)).detach(), atol=1e-5, rtol=0)
    torch.testing.assert_close(result[0, :-1] / result[0, -1], z[0], atol=1e-4, rtol=0)


def test_a_class_nobody_has_keeps_its_features_and_is_not_learnt():
    toy, method = replace(TWO, unseen=True), replace(SMALL, retrain_epochs=40, retrain_lr=0.5)
    state, _ = sent(method, toy)
    began, features = method.start(context(toy.run_sites(method)))["features"], state["features"]
    assert state["seen"].tolist() == [True, True, False]
    assert torch.equal(features[2], began[2])
    assert (features[:2] - began[:2]).abs().max() > 1e-4
    logits = ones(features[:2].flatten(0, 1)) @ matrix(state["classifier"]).T
    assert (logits.argmax(1) != 2).all()
    others = torch.cat([features[:2], features[2:] + 100])
    classifiers = [method._retrained(f, state["seen"], torch.Generator().manual_seed(5)) for f in (features, others)]
    assert torch.equal(*classifiers)


def test_a_class_that_is_absent_from_a_round_keeps_its_features_which_are_still_used():
    run_sites, result = TWO.run_sites(SMALL), drawn(3, 3, 17, seed=4).float()
    states = [SMALL.start(context(run_sites))]
    for round, held in enumerate(([0, 2], [0, 1])):
        reply = {"model": states[0]["model"], "n": 1, "classes": torch.tensor(held), "gradients": result[held]}
        states.append(SMALL.aggregate(states[-1], {0: reply}, context(run_sites, round)))
    assert [state["seen"].tolist() for state in states[1:]] == [[True, False, True], [True, True, True]]
    assert torch.equal(states[2]["features"][2], states[1]["features"][2])
    assert not torch.equal(states[2]["features"][0], states[1]["features"][0])
    expected = SMALL._retrained(states[2]["features"], torch.ones(3, dtype=torch.bool), run_sites.server(1).rng)
    assert torch.equal(matrix(states[2]["classifier"]), expected)


@pytest.mark.parametrize("options", [{}, {"match_steps": 0}, {"retrain_epochs": 0}, {"features_per_class": 1}])
def test_one_image_no_image_and_a_class_nobody_has(options: dict):
    run_sites = Toy(sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1)), unseen=True).run_sites(replace(SMALL, **options))
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))


def with_head(head: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Net(classifier().body, head(), 16)


@pytest.mark.parametrize("head", [
    lambda: nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)),
    lambda: nn.Sequential(nn.Linear(16, 3), nn.Dropout()),
    lambda: nn.Linear(16, 3, bias=False),
    lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 3)),
    nn.Sequential,
])  # fmt: skip
def test_heads_that_are_not_one_linear_layer_are_refused(head: Callable[[], nn.Module]):
    with pytest.raises(ConfigError, match="CReFF needs a net whose head is one linear layer") as refused:
        run(run_sites := TWO.run_sites(CReFF(), net=with_head(head)), LocalEngine(run_sites), Plan(1))
    assert refused.value.details[0].startswith("head: ")


@pytest.mark.parametrize("head", [lambda: nn.Linear(16, 3), lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 3))])
def test_the_body_with_the_re_trained_classifier_predicts(head: Callable[[], nn.Module]):
    run_sites, records = TWO.run_sites(SMALL, net=with_head(head)), Records()
    state = run(run_sites, LocalEngine(run_sites), Plan(2), [records]).state
    predictions, site = records.rounds[-1].evaluation.predictions, run_sites.open(0, 0, {}, fresh=True)
    state["model"].into(site.model)
    ((z, _),) = site.vectors(site.test)
    expected = (ones(z) @ matrix(state["classifier"]).T).softmax(1)
    torch.testing.assert_close(predictions["site-0"]["test"], expected, atol=1e-5, rtol=0)
    assert set(predictions) == {"site-0", "site-1", "server"}  # one network for all


def test_what_is_deployed_has_the_re_trained_head_as_it_was_fine_tuned():
    run_sites = TWO.run_sites(SMALL, (Finetune(epochs=1),))
    engine = LocalEngine(run_sites)
    down = SMALL.broadcast(run(run_sites, engine, Plan(1)).state)
    exported = Cohort(run_sites, engine, 0, [1], keep=False).ask("deploy", down)[1]
    assert (exported["model"].only(down["classifier"]) - down["classifier"]).norm() > 1e-4
    site = TWO.run_sites(SMALL).open(1, 0, {}, fresh=True)
    predicted = site.predict(restore_predictor(SMALL, site, exported), site.test)
    exported["model"].into(site.model)
    assert torch.equal(predicted, site.predict(site.model, site.test))
