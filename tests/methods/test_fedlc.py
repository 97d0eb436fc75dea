"""FedLC: rounds by hand, its reductions to FedAvg, the margin of a missing class, and its edges."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.method import Method, answer
from crossward.core.plugin import Plugin
from crossward.core.run import Plan, run
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.losses import dice_loss
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedlc import FedLC, margins
from crossward.testing.by_hand import SoftmaxRegression, initial_matrix, regression_per_site, weight_matrix
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))  # the first site has 4, 2 and 0 images of the classes
FULL_BATCH = Training(epochs=2, batch_size=64, lr=0.1)


def test_margins_by_hand():
    result = margins(torch.tensor([0, 1, 16, 81, 10_000, 100_000_000]))
    torch.testing.assert_close(result, torch.tensor([100.0, 1, 1 / 2, 1 / 3, 1 / 10, 1 / 100]))


def gradient(site: SoftmaxRegression, w: Tensor, margin: Tensor) -> Tensor:
    """Of the mean cross entropy of softmax(w x - margin)."""
    error = (site.x @ w.T - margin).softmax(1) - F.one_hot(site.y, len(w))
    return error.T @ site.x / site.n


@pytest.mark.parametrize("tau", [1.0, 0.01])  # with the second, the missing class has a part: its margin is 1
def test_two_rounds_by_hand_and_predictions_without_margins(tau: float):
    run_sites, records = TWO.run_sites(FedLC(tau=tau), training=FULL_BATCH, net=linear), Records()
    sites, w = regression_per_site(run_sites), initial_matrix(run_sites)
    assert [torch.bincount(site.y, minlength=3).tolist() for site in sites] == [[4, 2, 0], [3, 4, 3]]
    for _ in range(2):
        ends = []
        for site, counts in zip(sites, ([4, 2, 1e-8], [3, 4, 3]), strict=True):
            own = w
            for _ in range(2):
                own = own - 0.1 * gradient(site, own, tau * torch.tensor(counts).double() ** -0.25)
            ends.append(own)
        w = 6 / 16 * ends[0] + 10 / 16 * ends[1]
    state = run(run_sites, LocalEngine(run_sites), Plan(2), [records]).state["model"]
    torch.testing.assert_close(weight_matrix(state), w, atol=2e-6, rtol=0)
    test = run_sites.open(0, 0, {}).test
    x = test.take(test.index)[0].flatten(1).double()
    predicted = records.rounds[-1].evaluation.predictions["site-0"]["test"]
    torch.testing.assert_close(predicted.double(), (x @ w[:, :-1].T + w[:, -1]).softmax(1), atol=2e-6, rtol=0)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_with_tau_0_it_is_fedavg_to_the_bit(task: str):
    states = []
    for method in (FedLC(tau=0.0), FedAvg()):
        run_sites = Toy(task, sizes=((6, 2, 2), (9, 2, 2))).run_sites(method)
        states.append(run_to_end(run_sites, LocalEngine(run_sites)))
    assert_same(*states)


def ended(method: Method, toy: Toy, plugins: tuple[Plugin, ...] = ()) -> Weights:
    run_sites = toy.run_sites(method, plugins)
    return run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"]


def test_with_equal_counts_it_is_fedavg():
    even, uneven = Toy(sizes=((6, 2, 1), (9, 3, 3)), absent=False), TWO
    assert (ended(FedLC(), even) - ended(FedAvg(), even)).norm() < 1e-5
    assert (ended(FedLC(), uneven) - ended(FedAvg(), uneven)).norm() > 1e-2


@dataclass(frozen=True)
class Tilt(Plugin):
    def shift(self, site: Site, logits: Tensor) -> Tensor:
        return logits + torch.tensor([0.0, 1.0, 2.0])


def test_a_shift_of_the_logits_does_not_reach_it():
    assert (ended(FedLC(), TWO) - ended(FedLC(), TWO, (Tilt(),))).norm() == 0
    assert (ended(FedAvg(), TWO) - ended(FedAvg(), TWO, (Tilt(),))).norm() > 1e-2
    assert FedLC().allows_for_prior is True


def test_the_first_loss_of_a_segmentation_by_hand():
    """Pixels are counted, and each has the margins; their fourth roots are near each other, so tau is large."""
    toy = Toy("segmentation", sizes=((5, 0, 0),))
    run_sites = toy.run_sites(FedLC(tau=20.0), training=Training(epochs=1, batch_size=64))
    site = run_sites.open(0, 0, {}, fresh=True)
    answer(run_sites.method, site, "train", {"model": Weights.of(run_sites.server(0).new_net())}, seed=0)
    x, y = site.train.take(site.train.index)
    pixels = torch.stack([(y == c).sum() for c in range(3)])
    margin = 20.0 * pixels[:, None, None] ** -0.25
    logits = run_sites.server(0).new_net().train()(x)
    assert 0 < pixels.min() < pixels.max()
    assert site.fits[0].loss == pytest.approx(dice_loss(logits - margin, y).item(), abs=1e-5)
    assert abs(site.fits[0].loss - dice_loss(logits, y).item()) > 1e-3


def test_a_missing_class_is_left_alone():
    moved = []
    for tau in (1.0, 0.0):
        run_sites = Toy(sizes=((12, 0, 0),)).run_sites(FedLC(tau=tau), training=FULL_BATCH, net=linear)
        assert run_sites.open(0, 0, {}).counts.tolist() == [8, 4, 0]
        state = run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"]
        moved.append((weight_matrix(state) - initial_matrix(run_sites)).abs().amax(1))
    assert moved[0][2] == 0
    assert moved[1][2] > 1e-2
    assert moved[0][:2].min() > 1e-2


@pytest.mark.parametrize("task", ["classification", "segmentation"])
@pytest.mark.parametrize("unseen", [False, True])
def test_absent_class_one_sample_no_sample_and_a_class_nobody_has(task: str, unseen: bool):
    toy = Toy(task, sizes=((4, 1, 1), (1, 1, 1), (0, 1, 1)), unseen=unseen)
    run_sites, records = toy.run_sites(FedLC()), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
