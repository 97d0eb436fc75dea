"""FedProto: rounds by hand, its reduction to local training, both tasks, what travels, and nearest prototypes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossward.core.cohort import Cohort
from crossward.core.method import RoundContext, restore_predictor
from crossward.core.net import Net
from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError
from crossward.methods.fedproto import FAR, FedProto, distances
from crossward.methods.local import Local
from crossward.runs.sites import RunSites
from crossward.testing.by_hand import SoftmaxRegression, regression_per_site
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import CLASSES, SIDE, Toy, classifier, linear, other_classifier

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))  # the first site lacks the last class
PIXELS = Toy("segmentation", sizes=((3, 1, 1), (5, 2, 2)))


def context(run_sites: RunSites) -> RoundContext:
    return RoundContext(0, 1, len(run_sites.ids), run_sites.task, run_sites.server(0))


def two_layers() -> nn.Module:
    body = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 4))
    return Net(body, nn.Linear(4, len(CLASSES)), width=4)


@dataclass(frozen=True)
class Layers:
    """two_layers as matrices with the bias in the last column: z = x a^T, logits = z b^T."""

    a: Tensor  # (4, D + 1)
    b: Tensor  # (K, 5)

    @classmethod
    def of(cls, w: Weights) -> Layers:
        a = torch.cat([w["body.1.weight"], w["body.1.bias"][:, None]], 1)
        b = torch.cat([w["head.weight"], w["head.bias"][:, None]], 1)
        return cls(a.double(), b.double())

    def stepped(self, site: SoftmaxRegression, c: Tensor, known: Tensor, weight: float, lr: float) -> Layers:
        """Eq. 7 on all data at once: cross entropy, and the mean over the 4 features of the known samples."""
        z = site.x @ self.a.T
        one = torch.cat([z, torch.ones(site.n, 1)], 1)
        error = ((one @ self.b.T).softmax(1) - F.one_hot(site.y, len(CLASSES))) / site.n
        held = known[site.y].double()[:, None]
        dz = error @ self.b[:, :-1] + weight * held * 2 * (z - c[site.y]) / (4 * held.sum().clamp_min(1))
        return Layers(self.a - lr * dz.T @ site.x, self.b - lr * error.T @ one)

    def prototypes(self, site: SoftmaxRegression) -> tuple[Tensor, Tensor]:
        z, of = site.x @ self.a.T, F.one_hot(site.y, len(CLASSES)).double()
        return of.T @ z / of.sum(0).clamp_min(1)[:, None], of.sum(0)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_three_rounds_by_hand(weighting: str):
    method = FedProto(weight=0.7, weighting=weighting)
    run_sites = TWO.run_sites(method, training=Training(epochs=2, batch_size=64, lr=0.05), net=two_layers)
    sites = regression_per_site(run_sites)
    own = [Layers.of(Weights.of(run_sites.open(i, 0, {}).model)) for i in (0, 1)]
    c, known = torch.zeros(3, 4).double(), torch.zeros(3, dtype=torch.bool)
    for _ in range(3):
        for i, site in enumerate(sites):
            for _ in range(2):
                own[i] = own[i].stepped(site, c, known, 0.7, 0.05)
        (c_0, n_0), (c_1, n_1) = (layers.prototypes(site) for layers, site in zip(own, sites, strict=True))
        assert (n_0.tolist(), n_1.tolist()) == ([4, 2, 0], [3, 4, 3])
        share = torch.tensor([4 / 7, 2 / 6, 0] if weighting == "samples" else [0.5, 0.5, 0])[:, None]
        c, known = share.double() * c_0 + (1 - share.double()) * c_1, torch.ones(3, dtype=torch.bool)
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(3)).state
    torch.testing.assert_close(state["prototypes"].double(), c, atol=1e-5, rtol=0)
    assert state["known"].tolist() == [True] * 3
    for i in (0, 1):
        result = Layers.of(engine.memory[i]["_personal"])
        torch.testing.assert_close(result.a, own[i].a, atol=1e-5, rtol=0)
        torch.testing.assert_close(result.b, own[i].b, atol=1e-5, rtol=0)


def test_the_pull_is_the_mean_over_the_samples_whose_class_has_a_prototype():
    """The head is zero, so that only the pull moves the body; a class without a prototype does not even count."""
    run_sites = TWO.run_sites(FedProto(), training=Training(epochs=1, batch_size=64, lr=0.1), net=two_layers)
    site = run_sites.open(1, 0, {}, fresh=True)
    nn.init.zeros_(site.model.head.weight)
    before, data = Layers.of(Weights.of(site.model)), regression_per_site(run_sites)[1]
    c, known = torch.randn(3, 4), torch.tensor([True, False, False])
    FedProto(weight=2.0).train(site, {"prototypes": c, "known": known})
    x = data.x[data.y == 0]
    expected = before.a - 0.1 * 2.0 * 2 * (x @ before.a.T - c[0].double()).T @ x / (4 * 3)
    torch.testing.assert_close(Layers.of(Weights.of(site.model)).a, expected, atol=1e-5, rtol=0)


# reductions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("toy", [TWO, PIXELS], ids=["classification", "segmentation"])
def test_without_weight_it_is_local_training_to_the_bit(toy: Toy):
    memories = []
    for method in (FedProto(weight=0.0), Local()):
        run_sites = toy.run_sites(method)
        memory = run_to_end(run_sites, LocalEngine(run_sites))["memory"]
        memories.append({site: tree["_personal"] for site, tree in memory.items()})
    assert_same(*memories)


# what travels --------------------------------------------------------------------------------------------------------


def test_only_prototypes_and_counts_travel():
    run_sites, records = TWO.run_sites(FedProto()), Records()
    engine = RecordingEngine(LocalEngine(run_sites))
    state = run(run_sites, engine, Plan(2), [records]).state
    assert set(state) == {"prototypes", "known"}
    replies = [reply for job, reply in engine.replies if job.step == "train"]
    assert [set(reply) for reply in replies] == [{"prototypes", "counts"}] * 4
    assert replies[0]["counts"].tolist() == [4, 2, 0]
    assert replies[0]["prototypes"].shape == (3, 16)
    assert replies[0]["prototypes"][2].tolist() == [0.0] * 16
    items = {(traffic.direction, traffic.item) for record in records.rounds for traffic in record.traffic}
    assert items == {("down", "prototypes"), ("down", "known"), ("up", "prototypes"), ("up", "counts")}


@pytest.mark.parametrize(("toy", "width"), [(TWO, 16), (PIXELS, 5)])
def test_the_state_is_whole_before_the_first_round(toy: Toy, width: int):
    state = FedProto().start(context(toy.run_sites(FedProto())))
    assert state["prototypes"].shape == (3, width)
    assert state["known"].tolist() == [False] * 3


def test_prototypes_of_pixels():
    """The mean over all pixels of a class of the trained network's features."""
    run_sites = PIXELS.run_sites(FedProto())
    site = run_sites.open(0, 0, {}, fresh=True)
    reply = FedProto().train(site, FedProto().start(context(run_sites)))
    x, y = site.train.take(site.train.index)
    site.model.eval()
    with torch.no_grad():
        z = site.model.features(x)  # (3, 5, 8, 8)
    assert reply["counts"].sum() == 3 * SIDE * SIDE
    for k in range(3):
        rows = torch.stack([z[:, d][y == k] for d in range(5)], 1)
        assert reply["counts"][k] == len(rows)
        torch.testing.assert_close(reply["prototypes"][k], rows.mean(0), atol=1e-5, rtol=1e-5)


# aggregation ---------------------------------------------------------------------------------------------------------

OLD = {"prototypes": torch.tensor([[9.0], [8], [7], [0]]), "known": torch.tensor([False, True, True, False])}
REPLIES = {
    0: {"prototypes": torch.tensor([[1.0], [4], [0], [0]]), "counts": torch.tensor([3.0, 1, 0, 0])},
    1: {"prototypes": torch.tensor([[5.0], [0], [0], [0]]), "counts": torch.tensor([1.0, 0, 0, 0])},
}


@pytest.mark.parametrize(("weighting", "first"), [("uniform", 3.0), ("samples", 2.0)])
def test_aggregation_by_hand(weighting: str, first: float):
    """Class 0 at both sites, 1 at one; 2 at none now but earlier, 3 never."""
    new = FedProto(weighting=weighting).aggregate(OLD, REPLIES, None)
    assert new["prototypes"].flatten().tolist() == [first, 4.0, 7.0, 0.0]
    assert new["known"].tolist() == [True, True, True, False]


def test_one_sample_is_its_own_prototype():
    run_sites = Toy(sizes=((1, 1, 1), (4, 1, 1))).run_sites(FedProto())
    site = run_sites.open(0, 0, {}, fresh=True)
    reply = FedProto().train(site, FedProto().start(context(run_sites)))
    x, y = site.train.take(site.train.index)
    site.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(reply["prototypes"][y], site.model.features(x))
    assert reply["counts"].sum() == 1


def test_a_class_nobody_has_stays_unknown():
    run_sites = replace(TWO, unseen=True).run_sites(FedProto())
    state = run(run_sites, LocalEngine(run_sites), Plan(2)).state
    assert state["known"].tolist() == [True, True, False]
    assert state["prototypes"][2].tolist() == [0.0] * 16


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("sizes", [((1, 1, 1), (0, 1, 1), (3, 1, 1)), ((4, 1, 1),) * 2])
def test_one_sample_no_sample_and_a_class_nobody_has(task: str, sizes: tuple[tuple[int, int, int], ...]):
    run_sites = Toy(task, sizes, unseen=True).run_sites(FedProto())
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))


def test_features_of_another_width_are_refused():
    """Before round 1; bodies may differ."""
    FedProto().check_nets({"a": classifier(), "b": other_classifier()})
    with pytest.raises(ConfigError, match="different numbers") as error:
        FedProto().check_nets({"a": classifier(), "b": linear()})
    assert error.value.details == ("a: 16", "b: 64")


# prediction ----------------------------------------------------------------------------------------------------------


def test_distances_by_hand():
    c = torch.tensor([[0.0, 0], [3, 4]])
    assert distances(torch.tensor([[0.0, 0], [3, 0]]), c).tolist() == [[0, 25], [9, 16]]
    z = torch.tensor([[[[3.0, 6]], [[4.0, 0]]]])  # (1, 2, 1, 2): an image of two pixels, (3, 4) and (6, 0)
    assert distances(z, c).tolist() == [[[[25, 36]], [[0, 25]]]]


def prototypes(width: int, known: list[bool]) -> Tree:
    rng = torch.Generator().manual_seed(0)
    return {"prototypes": torch.randn(3, width, generator=rng), "known": torch.tensor(known)}


def test_before_there_is_a_prototype_the_sites_own_head_decides():
    run_sites = TWO.run_sites(FedProto())
    site = run_sites.open(0, 0, {}, fresh=True)
    assert FedProto().predictor(site, FedProto().start(context(run_sites))) is site.model


@pytest.mark.parametrize("view", ["local", "global"])
def test_the_nearest_prototype_decides(view: str):
    site = TWO.run_sites(FedProto()).open(0, 0, {}, fresh=True)
    down = prototypes(16, [True, True, True])
    x, _ = site.test.take(site.test.index)
    site.model.eval()
    with torch.no_grad():
        logits = FedProto().predictor(site, down, view)(x)
        gaps = torch.cdist(site.model.features(x), down["prototypes"])
    torch.testing.assert_close(logits, -gaps.square(), atol=1e-4, rtol=1e-4)


def test_a_class_without_a_prototype_is_never_predicted_and_breaks_no_metric():
    site = TWO.run_sites(FedProto()).open(0, 0, {}, fresh=True)
    down = prototypes(16, [True, False, True])
    x, y = site.train.take(site.train.index)
    site.model.eval()
    logits = FedProto().predictor(site, down)(x)
    assert (logits[:, 1] == FAR).all()
    p = site.predict(FedProto().predictor(site, down), site.train)
    assert p[:, 1].tolist() == [0.0] * 6
    torch.testing.assert_close(p.sum(1), torch.ones(6))
    assert site.task.metrics(p, y)["recall"][1] == 0.0


def trained(toy: Toy = TWO) -> tuple[RunSites, LocalEngine, Tree]:
    """After a round, in which the first site had no images of the last class."""
    run_sites = toy.run_sites(FedProto())
    engine = LocalEngine(run_sites)
    return run_sites, engine, run(run_sites, engine, Plan(1, evaluate_every=0)).state


def test_a_site_predicts_its_own_classes_for_its_own_patients():
    """As in the authors' code. The prototype of class 2 comes from the other site."""
    run_sites, engine, state = trained()
    assert state["known"].tolist() == [True] * 3
    site = run_sites.open(0, 0, engine.memory[0])
    predictor = FedProto().predictor(site, state)
    logits = predictor(site.test.take(site.test.index)[0])
    assert (logits[:, 2] == FAR).all()
    assert (logits[:, :2] > FAR).all()


def test_a_site_predicts_all_classes_for_patients_from_anywhere():
    run_sites, engine, state = trained()
    site = run_sites.open(0, 0, engine.memory[0])
    predictor = FedProto().predictor(site, state, "global")
    assert (predictor(site.test.take(site.test.index)[0]) > FAR).all()
    assert FedProto.two_views


def test_a_site_that_has_not_taken_part_predicts_all_classes():
    run_sites, _, state = trained()
    site = run_sites.open(0, 0, {}, fresh=True)
    assert (FedProto().predictor(site, state)(site.test.take(site.test.index)[0]) > FAR).all()


def test_a_site_whose_classes_have_no_prototype_yet_predicts_the_others():
    """Its first reply was lost."""
    run_sites, engine, state = trained()
    site = run_sites.open(0, 0, engine.memory[0])
    down = state | {"known": torch.tensor([False, False, True])}
    logits = FedProto().predictor(site, down)(site.test.take(site.test.index)[0])
    assert logits.argmax(1).tolist() == [2, 2]


def test_every_pixel_goes_to_its_nearest_prototype():
    site = PIXELS.run_sites(FedProto()).open(1, 0, {}, fresh=True)
    down = prototypes(5, [True, True, False])
    x, _ = site.test.take(site.test.index)
    site.model.eval()
    with torch.no_grad():
        logits = FedProto().predictor(site, down)(x)
        z = site.model.features(x)
    assert logits.shape == (2, 3, SIDE, SIDE)
    assert (logits[:, 2] == FAR).all()
    rows = z.permute(0, 2, 3, 1).reshape(-1, 5)
    expected = torch.cdist(rows, down["prototypes"][:2]).argmin(1).view(2, SIDE, SIDE)
    assert torch.equal(logits.argmax(1), expected)


@pytest.mark.parametrize("toy", [TWO, PIXELS], ids=["classification", "segmentation"])
def test_each_site_is_scored_with_its_own_network_and_the_global_prototypes(toy: Toy):
    run_sites, records = toy.run_sites(FedProto()), Records()
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(2), [records]).state
    evaluation = records.rounds[-1].evaluation
    assert set(evaluation.predictions) == {"site-0", "site-1"}
    for i in (0, 1):
        site = run_sites.open(i, 0, {}, fresh=True)
        engine.memory[i]["_personal"].into(site.model)
        site.model.eval()
        with torch.no_grad():
            z = site.model.features(site.common["test"].take(site.common["test"].index)[0])
        nearest = site.task.prediction(-distances(z, state["prototypes"]))
        predicted = evaluation.predictions[f"site-{i}"]["common_test"]
        torch.testing.assert_close(predicted, nearest, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("toy", [TWO, PIXELS], ids=["classification", "segmentation"])
def test_what_is_deployed_is_what_predicted(toy: Toy):
    """The prototypes come back with the network."""
    run_sites = toy.run_sites(FedProto())
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(2)).state
    predicted = Cohort(run_sites, engine, 0, [1], keep=False).ask("predict", state)[1]["test"]
    exported = Cohort(run_sites, engine, 0, [1], keep=False).ask("deploy", state)[1]
    assert set(exported["down"]) == {"prototypes", "known"}
    elsewhere = run_sites.open(1, 0, {}, fresh=True)
    assert torch.equal(elsewhere.predict(restore_predictor(FedProto(), elsewhere, exported), elsewhere.test), predicted)
