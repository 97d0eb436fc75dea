"""FedETF: rounds by hand, what travels, its reduction to plain cross entropy, and its edges."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.cohort import Cohort
from crossward.core.method import Method, RoundContext, export_predictor, restore_predictor
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, run
from crossward.core.seeds import seeded
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.errors import ConfigError
from crossward.losses import log_prior
from crossward.methods.fedetf import FedETF, SimplexHead, simplex
from crossward.runs.sites import RunSites
from crossward.testing.by_hand import SoftmaxRegression, regression_per_site
from crossward.testing.engine_wrappers import RecordingEngine
from crossward.testing.short_runs import Records, assert_finite, run_to_end
from crossward.testing.toy import CLASSES, Toy, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))  # the first site lacks the last class


@dataclass(frozen=True)
class Projection:
    """toy.linear as FedETF builds it, as matrices: u = x p^T, v = u / |u|, logits s v m."""

    p: Tensor  # (K, D + 1), the bias in its last column
    s: Tensor
    m: Tensor  # (K, K)

    @classmethod
    def of(cls, weights: Weights) -> Projection:
        p = torch.cat([weights["body.1.weight"], weights["body.1.bias"][:, None]], 1)
        return cls(p.double(), weights["head.scale"].double(), weights["head.frame"].double())

    def stepped(self, site: SoftmaxRegression, lr: float) -> Projection:
        """One step on the balanced softmax over all data, its gradient worked out by hand."""
        counts = torch.bincount(site.y, minlength=len(CLASSES)).clamp_min(1).double()
        u = site.x @ self.p.T
        size = u.norm(dim=1, keepdim=True)
        v = u / size
        error = (self.s * v @ self.m + counts.log()).softmax(1) - F.one_hot(site.y, len(CLASSES))
        ds = (error * (v @ self.m)).sum() / site.n
        dv = self.s * error @ self.m.T / site.n
        du = (dv - v * (v * dv).sum(1, keepdim=True)) / size  # only what is across v turns it
        return Projection(self.p - lr * du.T @ site.x, self.s - lr * ds, self.m)


def test_two_rounds_by_hand():
    run_sites = TWO.run_sites(FedETF(), training=Training(epochs=2, batch_size=64, lr=0.1), net=linear)
    sites, server = regression_per_site(run_sites), Projection.of(Weights.of(run_sites.server(0).new_net()))
    first = server
    assert [torch.bincount(site.y, minlength=3).tolist() for site in sites] == [[4, 2, 0], [3, 4, 3]]
    for _ in range(2):
        ends = [server.stepped(site, 0.1).stepped(site, 0.1) for site in sites]
        one, other = ends
        server = Projection(6 / 16 * one.p + 10 / 16 * other.p, 6 / 16 * one.s + 10 / 16 * other.s, server.m)
    result = Projection.of(run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"])
    torch.testing.assert_close(result.p, server.p, atol=2e-6, rtol=0)
    torch.testing.assert_close(result.s, server.s, atol=2e-6, rtol=0)
    assert (result.p - first.p).norm() > 0.01
    assert (result.s - first.s).abs() > 1e-3


def test_the_frame_is_sent_and_never_returned_or_changed():
    run_sites = TWO.run_sites(FedETF())
    engine = RecordingEngine(LocalEngine(run_sites))
    net = run_sites.server(0).new_net()
    state = run(run_sites, engine, Plan(2)).state
    frame = Weights.of(net)["head.frame"]
    assert torch.equal(state["model"]["head.frame"], frame)
    for _, reply in [r for r in engine.replies if r[0].step == "train"]:
        assert set(reply) == {"model", "n"}
        assert set(reply["model"]) == set(Weights.of(net)) - {"head.frame"}
    torch.testing.assert_close(frame.T @ frame, 1.5 * (torch.eye(3) - 1 / 3), atol=1e-5, rtol=0)


def test_a_site_trains_and_predicts_with_the_servers_frame():
    run_sites = TWO.run_sites(FedETF())
    site = run_sites.open(0, 0, {}, fresh=True)
    server = FedETF().start(context(run_sites))
    assert not torch.allclose(site.model.head.frame, server["model"]["head.frame"], atol=0.01)
    FedETF().train(site, server)
    assert torch.equal(site.model.head.frame, server["model"]["head.frame"])


def context(run_sites: RunSites) -> RoundContext:
    return RoundContext(0, 1, len(run_sites.ids), run_sites.task, run_sites.server(0))


# reductions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain(FedETF):
    """The same network with the task's own loss."""

    def train(self, site: Site, down: Tree) -> Tree:
        return Method.train(self, site, down)


@dataclass(frozen=True)
class Unbalancing(Plugin):
    """Takes the prior away again."""

    def shift(self, site: Site, logits: Tensor) -> Tensor:
        return logits - log_prior(site.counts, least=1)


def ended(method: Method, toy: Toy, plugins: tuple[Plugin, ...] = ()) -> Weights:
    run_sites = toy.run_sites(method, plugins)
    return run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"]


def test_with_equal_counts_it_is_plain_cross_entropy():
    even, uneven = Toy(sizes=((6, 2, 1), (9, 3, 3)), absent=False), Toy(sizes=((6, 2, 2), (10, 2, 2)))
    assert (ended(FedETF(), even) - ended(Plain(), even)).norm() < 1e-5
    assert (ended(FedETF(), uneven) - ended(Plain(), uneven)).norm() > 1e-3


def test_without_the_balanced_loss_it_is_plain_cross_entropy():
    assert (ended(FedETF(balanced=False), TWO) - ended(Plain(), TWO)).norm() == 0
    assert not FedETF(balanced=False).allows_for_prior


def test_its_loss_has_its_own_shift_and_no_other():
    assert (ended(FedETF(), TWO, (Unbalancing(),)) - ended(FedETF(), TWO)).norm() == 0


# prediction ----------------------------------------------------------------------------------------------------------


def test_inference_takes_the_class_whose_vector_is_nearest_and_knows_no_prior():
    run_sites, records = TWO.run_sites(FedETF()), Records()
    state = run(run_sites, LocalEngine(run_sites), Plan(2), [records]).state
    site = run_sites.open(0, 0, {}, fresh=True)
    predicted = records.rounds[-1].evaluation.predictions["site-0"]["test"]
    x, _ = site.test.take(site.test.index)
    for view in ("local", "global"):
        assert torch.equal(site.predict(FedETF().predictor(site, state, view), site.test), predicted)
    with torch.no_grad():
        v, m = site.model.features(x), state["model"]["head.frame"]
        torch.testing.assert_close(v.norm(dim=1), torch.ones(len(v)))
        torch.testing.assert_close((state["model"]["head.scale"] * v @ m).softmax(1), predicted)
        assert torch.equal((v @ m).argmax(1), predicted.argmax(1))
    assert not run_sites.personal


def test_what_is_deployed_is_what_predicted():
    run_sites = TWO.run_sites(FedETF())
    engine = LocalEngine(run_sites)
    state = run(run_sites, engine, Plan(1)).state
    predicted = Cohort(run_sites, engine, 0, [1], keep=False).ask("predict", state)[1]["test"]
    exported = export_predictor(FedETF(), run_sites.open(1, 0, {}), state)
    elsewhere = run_sites.open(1, 0, {}, fresh=True)
    assert torch.equal(elsewhere.predict(restore_predictor(FedETF(), elsewhere, exported), elsewhere.test), predicted)


# edges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "toy", [Toy(sizes=((1, 1, 1), (0, 1, 1), (3, 1, 1))), Toy(sizes=((4, 1, 1),) * 2, unseen=True)]
)
def test_one_sample_no_sample_and_a_class_nobody_has(toy: Toy):
    run_sites = toy.run_sites(FedETF())
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites)))


# the head -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("k", [2, 3, 8, 60])
def test_all_classes_are_equally_far_apart(k: int):
    """M^T M = K / (K - 1) (I - 1 1^T / K): ones on the diagonal, -1 / (K - 1) elsewhere."""
    m = simplex(k)
    expected = torch.full((k, k), -1 / (k - 1)).fill_diagonal_(1.0)
    torch.testing.assert_close(m.T @ m, expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(m.T @ m, k / (k - 1) * (torch.eye(k) - 1 / k), atol=2e-6, rtol=0)
    torch.testing.assert_close(m.sum(1), torch.zeros(k), atol=1e-5, rtol=0)


def test_two_classes_are_opposite_and_three_at_120_degrees():
    a, b = simplex(2).T
    torch.testing.assert_close(a, -b)
    a, b, _ = simplex(3).T
    assert math.degrees(math.acos(float(a @ b))) == pytest.approx(120, abs=1e-3)


def test_the_frame_is_drawn_anew_for_each_seed():
    drawn = []
    for seed in (0, 0, 1):
        with seeded(seed):
            drawn.append(simplex(4))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.allclose(drawn[0], drawn[2], atol=0.01)


@pytest.mark.parametrize("k", [0, 1])
def test_fewer_than_two_classes_are_refused(k: int):
    with pytest.raises(ConfigError, match=f"at least two classes, not {k}"):
        simplex(k)


def test_logits_of_a_feature_that_has_collapsed_to_its_class():
    """s for its own class, -s / (K - 1) for the others."""
    head = SimplexHead(5)
    torch.nn.init.constant_(head.scale, 2.0)
    logits = head(head.frame.detach().T)
    torch.testing.assert_close(logits, torch.full((5, 5), -0.5).fill_diagonal_(2.0), atol=1e-5, rtol=0)


def test_logits_of_the_head_by_hand():
    head = SimplexHead(2)
    head.frame.data = torch.tensor([[0.6, -0.6], [0.8, -0.8]])
    head.scale.data = torch.tensor(10.0)
    torch.testing.assert_close(head(torch.tensor([[1.0, 0.0], [0.0, -1.0]])), torch.tensor([[6.0, -6], [-8, 8]]))


def test_only_the_scale_is_trained_and_both_are_weights():
    head = SimplexHead(3)
    assert {name: p.requires_grad for name, p in head.named_parameters()} == {"frame": False, "scale": True}
    assert head.scale.item() == 1.0
    head(torch.eye(3)).square().sum().backward()
    assert head.frame.grad is None
    assert head.scale.grad is not None
