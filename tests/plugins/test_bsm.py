"""bsm: its shift by hand, rounds by hand, cross entropy for an even prior, and no second helping of the prior."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from crossward.core.run import Plan, run
from crossward.core.training import Training
from crossward.engines.local import LocalEngine
from crossward.losses import log_prior, per_class
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedcb import FedCB
from crossward.methods.fedetf import FedETF
from crossward.methods.fedrod import FedRoD
from crossward.plugins.bsm import Bsm
from crossward.testing.by_hand import initial_matrix, regression_per_site, weight_matrix
from crossward.testing.short_runs import assert_same, run_to_end
from crossward.testing.toy import Toy, linear

TWO = Toy(sizes=((6, 2, 2), (10, 2, 2)))  # the first site lacks class 2


def test_a_class_that_is_missing_is_shifted_by_the_logarithm_of_a_billionth():
    site = TWO.run_sites(FedAvg(), (Bsm(),)).open(0, 0, {})
    assert site.counts.tolist() == [4, 2, 0]
    shift = Bsm().shift(site, torch.zeros(1, 3))[0]
    torch.testing.assert_close(shift, torch.tensor([4 / 6, 2 / 6, 1e-9]).log(), atol=1e-5, rtol=0)
    assert math.isclose(shift[2], -20.723, abs_tol=1e-3)


def test_an_even_prior_is_cross_entropy():
    logits, y = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3, 0])
    shifted = logits + log_prior(torch.full((4,), 7))
    torch.testing.assert_close(F.cross_entropy(shifted, y), F.cross_entropy(logits, y))


def test_two_rounds_by_hand():
    run_sites = TWO.run_sites(FedAvg(), (Bsm(),), Training(epochs=2, batch_size=64, lr=0.1), linear)
    sites, w = regression_per_site(run_sites), initial_matrix(run_sites)
    end = run(run_sites, LocalEngine(run_sites), Plan(2))
    for _ in range(2):
        ends = []
        for site in sites:
            own, prior = w, torch.log(torch.bincount(site.y, minlength=3) / site.n + 1e-9)
            for _ in range(2):
                error = (site.x @ own.T + prior).softmax(1) - F.one_hot(site.y, 3)
                own = own - 0.1 * error.T @ site.x / site.n
            ends.append(own)
        w = sum(site.n * own for site, own in zip(sites, ends, strict=True)) / sum(site.n for site in sites)
    torch.testing.assert_close(weight_matrix(end.state["model"]), w, atol=1e-6, rtol=0)


def test_pixels_are_counted_in_segmentation():
    site = Toy("segmentation").run_sites(FedAvg(), (Bsm(),)).open(0, 0, {})
    logits = torch.zeros(2, 3, 8, 8)
    expected = torch.log(site.counts / site.counts.sum() + 1e-9)
    torch.testing.assert_close(Bsm().shift(site, logits), expected.view(3, 1, 1).expand(2, 3, 8, 8))


def test_strength_scales_the_prior_and_zero_is_nothing():
    site = TWO.run_sites(FedAvg()).open(1, 0, {})
    half = Bsm(strength=0.5).shift(site, torch.zeros(1, 3))
    torch.testing.assert_close(half[0], 0.5 * log_prior(site.counts))
    plain, plugged = TWO.run_sites(FedAvg()), TWO.run_sites(FedAvg(), (Bsm(strength=0.0),))
    assert_same(run_to_end(plugged, LocalEngine(plugged)), run_to_end(plain, LocalEngine(plain)))


@pytest.mark.parametrize("method", [FedETF(), FedCB(tau=5.0, balanced=True)], ids=["fedetf", "fedcb"])
def test_a_method_that_allows_for_the_prior_is_left_as_it_is(method: FedETF | FedCB):
    assert method.allows_for_prior
    plain, plugged = TWO.run_sites(method), TWO.run_sites(method, (Bsm(),))
    assert_same(run_to_end(plugged, LocalEngine(plugged)), run_to_end(plain, LocalEngine(plain)))


def test_fedrods_generic_half_is_left_as_it_is():
    ends = []
    for plugins in ((), (Bsm(),)):
        run_sites = TWO.run_sites(FedRoD(), plugins, Training(epochs=2, batch_size=64, lr=0.1), linear)
        engine = LocalEngine(run_sites)
        ends.append((run(run_sites, engine, Plan(2)).state["model"], engine.memory[1]["_personal"]))
    (generic, personal), (also_generic, shifted) = ends
    assert_same({"m": generic}, {"m": also_generic})
    assert not torch.equal(personal["p_head.bias"], shifted["p_head.bias"])


def test_along_meets_the_classes():
    assert per_class(torch.arange(3.0), torch.zeros(2, 3)).shape == (3,)
    assert per_class(torch.arange(3.0), torch.zeros(2, 3, 4, 4)).shape == (3, 1, 1)
