"""FedRS: rounds by hand, its reductions to FedAvg, which classes count as missing, and its edges."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.core.method import answer
from crossward.core.plugin import Plugin, RunFacts
from crossward.core.run import Plan, run
from crossward.core.site import Site
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.engines.local import LocalEngine
from crossward.losses import dice_loss
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedrs import FedRS
from crossward.plugins.bsm import Bsm
from crossward.plugins.prox import Prox
from crossward.runs.sites import RunSites
from crossward.testing.by_hand import SoftmaxRegression, initial_matrix, regression_per_site, weight_matrix
from crossward.testing.short_runs import Records, assert_finite, assert_same, run_to_end
from crossward.testing.toy import Toy, linear

torch.set_num_threads(1)
TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))  # the first site has 4, 2 and 0 images of the classes
FULL_BATCH = Training(epochs=2, batch_size=64, lr=0.1)


def gradient(site: SoftmaxRegression, w: Tensor, scale: Tensor) -> Tensor:
    """Of the mean cross entropy of softmax(scale * w x)."""
    error = (scale * (site.x @ w.T)).softmax(1) - F.one_hot(site.y, len(w))
    return (scale * error).T @ site.x / site.n


def test_two_rounds_by_hand_and_predictions_without_the_factor():
    run_sites, records = TWO.run_sites(FedRS(alpha=0.3), training=FULL_BATCH, net=linear), Records()
    sites, w = regression_per_site(run_sites), initial_matrix(run_sites)
    assert [torch.bincount(site.y, minlength=3).tolist() for site in sites] == [[4, 2, 0], [3, 4, 3]]
    for _ in range(2):
        ends = []
        for site, scale in zip(sites, ([1.0, 1.0, 0.3], [1.0, 1.0, 1.0]), strict=True):
            own = w
            for _ in range(2):
                own = own - 0.1 * gradient(site, own, torch.tensor(scale).double())
            ends.append(own)
        w = 6 / 16 * ends[0] + 10 / 16 * ends[1]
    state = run(run_sites, LocalEngine(run_sites), Plan(2), [records]).state["model"]
    torch.testing.assert_close(weight_matrix(state), w, atol=2e-6, rtol=0)
    test = run_sites.open(0, 0, {}).test
    x = test.take(test.index)[0].flatten(1).double()
    predicted = records.rounds[-1].evaluation.predictions["site-0"]["test"]
    torch.testing.assert_close(predicted.double(), (x @ w[:, :-1].T + w[:, -1]).softmax(1), atol=2e-6, rtol=0)


def ended(method: FedRS | FedAvg, toy: Toy) -> Weights:
    run_sites = toy.run_sites(method)
    return run(run_sites, LocalEngine(run_sites), Plan(2)).state["model"]


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_with_alpha_1_it_is_fedavg_to_the_bit(task: str):
    states = []
    for method in (FedRS(alpha=1.0, least=5), FedAvg()):
        run_sites = Toy(task, sizes=((6, 2, 2), (9, 2, 2))).run_sites(method)
        states.append(run_to_end(run_sites, LocalEngine(run_sites)))
    assert_same(*states)


# with bsm -----------------------------------------------------------------------------------------------------------


def test_with_bsm_it_is_fedavg_with_bsm_but_for_rounding():
    """The logit of a missing class is 20.7 lower already: whatever factor it has, softmax gives it nothing."""
    toy = Toy(sizes=((12, 0, 0), (20, 0, 0)), common=0)
    models = []
    for method, plugins in ((FedRS(), (Bsm(),)), (FedAvg(), (Bsm(),)), (FedRS(), ())):
        run_sites = toy.run_sites(method, plugins)
        models.append(run(run_sites, LocalEngine(run_sites), Plan(3)).state["model"])
    restricted, plain, without = models
    assert (restricted - plain).norm() < 1e-6
    assert (without - plain).norm() > 1e-2


def test_a_caution_is_told_with_bsm():
    [told] = FedRS().cautions(RunFacts({}, plugins=(Prox(), Bsm())))
    assert told == "fedrs with bsm trains as fedavg with bsm does: bsm alone leaves missing classes no part in softmax"


@pytest.mark.parametrize(
    ("method", "plugin"),
    [(FedRS(), Prox()), (FedRS(), Bsm(strength=0.1)), (FedRS(alpha=1.0), Bsm()), (FedRS(least=3), Bsm())],
    ids=["without bsm", "weak bsm", "no restriction", "classes with samples restricted"],
)
def test_no_caution_is_told_where_it_makes_a_difference_or_says_itself_that_it_does_not(method: FedRS, plugin: Plugin):
    assert method.cautions(RunFacts({}, plugins=(plugin,))) == []


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_a_site_with_all_classes_trains_as_in_fedavg(task: str):
    whole, lacking = Toy(task, sizes=((7, 1, 1),), absent=False), Toy(task, sizes=((7, 1, 1),), unseen=True)
    assert (ended(FedRS(), whole) - ended(FedAvg(), whole)).norm() == 0
    assert (ended(FedRS(), lacking) - ended(FedAvg(), lacking)).norm() > 1e-4


@dataclass(frozen=True)
class Tilt(Plugin):
    def shift(self, site: Site, logits: Tensor) -> Tensor:
        return logits + torch.tensor([0.0, 1.0, 2.0])


def first_loss(run_sites: RunSites) -> tuple[float, Tensor, Tensor]:
    """Of the first site's fit, in which it takes one step; and the logits and targets it was made of."""
    site = run_sites.open(0, 0, {}, fresh=True)
    answer(run_sites.method, site, "train", {"model": Weights.of(run_sites.server(0).new_net())}, seed=0)
    x, y = site.train.take(site.train.index)
    return site.fits[0].loss, run_sites.server(0).new_net().train()(x), y


@pytest.mark.parametrize(
    ("least", "scale"), [(1, [1.0, 1.0, 0.4]), (2, [1.0, 1.0, 0.4]), (3, [1.0, 0.4, 0.4]), (5, [0.4, 0.4, 0.4])]
)
@pytest.mark.parametrize("plugins", [(), (Tilt(),)], ids=["plain", "shifted"])
def test_missing_is_below_least_and_plugins_shift_what_is_restricted(
    least: int, scale: list[float], plugins: tuple[Plugin, ...]
):
    method = FedRS(alpha=0.4, least=least)
    result, logits, y = first_loss(TWO.run_sites(method, plugins, Training(epochs=1, batch_size=64)))
    tilt = torch.tensor([0.0, 1.0, 2.0]) if plugins else 0.0
    assert result == pytest.approx(F.cross_entropy(logits * torch.tensor(scale) + tilt, y).item(), abs=1e-5)


def test_the_first_loss_of_a_segmentation_by_hand():
    toy = Toy("segmentation", sizes=((5, 0, 0),), unseen=True)
    result, logits, y = first_loss(toy.run_sites(FedRS(alpha=0.4), training=Training(epochs=1, batch_size=64)))
    scale = torch.tensor([1.0, 1.0, 0.4])[:, None, None]
    assert y.unique().tolist() == [0, 1]
    assert result == pytest.approx(dice_loss(logits * scale, y).item(), abs=1e-5)
    assert abs(result - dice_loss(logits, y).item()) > 1e-3


def test_with_alpha_0_the_weights_of_a_missing_class_stay():
    moved = []
    for alpha in (0.0, 1.0):
        run_sites = Toy(sizes=((12, 0, 0),)).run_sites(FedRS(alpha=alpha), training=FULL_BATCH, net=linear)
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
    run_sites, records = toy.run_sites(FedRS()), Records()
    assert_finite(run_to_end(run_sites, LocalEngine(run_sites), records))
    assert [record.failures for record in records.rounds] == [{}, {}]
