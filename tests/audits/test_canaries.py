"""Canaries: the bound against published figures and an independent formula; that it stays below the claimed epsilon of
private runs, is large where there is no noise, and catches noise that is smaller than claimed."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parent))
from spot_federation import CLASSES, federation, linear

from crossward.audits.canaries import CanaryRun, plant, run_with_canaries
from crossward.audits.canary_bound import bound_from_scores, epsilon_lower_bound, middle_of, refutation_p
from crossward.audits.finding import DoesNotApply, NotMeasured
from crossward.audits.gradient_canaries import choose_coordinates, run_with_gradient_canaries
from crossward.config.reading import config_from
from crossward.errors import ConfigError
from crossward.privacy import dp_sgd
from crossward.runs.build import assemble

SEEDS = range(5)


# the bound ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "delta", "published"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
    ids=["appendix D", "section 7"],
)
def test_the_bound_is_the_published_one(canaries, guesses, right, delta, published):
    assert epsilon_lower_bound(canaries, guesses, right, delta) == pytest.approx(published, abs=1e-3)


@pytest.mark.parametrize(("guesses", "right"), [(100, 100), (64, 50), (300, 200)])
def test_without_delta_it_is_the_logit_of_clopper_and_pearsons_bound(guesses, right):
    from scipy.stats import binomtest

    low = binomtest(right, guesses, alternative="greater").proportion_ci(0.95, "exact").low
    assert epsilon_lower_bound(guesses, guesses, right, 0.0) == pytest.approx(math.log(low / (1 - low)), abs=1e-6)


def test_the_p_value_by_hand():
    # three canaries, two guesses, both right, epsilon = log 3: W ~ Binomial(2, 3/4)
    tail = 9 / 16
    below = [6 / 16, 7 / 16]  # P(2 > W >= 1), P(2 > W >= 0)
    by_hand = tail + 2 * 3 * 0.01 * max(below[0] / 1, below[1] / 2)
    assert refutation_p(3, 2, 2, math.log(3), 0.01) == pytest.approx(by_hand)


def test_guesses_no_better_than_chance_refute_nothing():
    assert epsilon_lower_bound(100, 100, 52, 1e-5) == 0
    assert epsilon_lower_bound(100, 100, 0, 1e-5) == 0


def test_chance_refutes_a_true_epsilon_of_0_no_more_often_than_it_may():
    rng = np.random.default_rng(0)
    refuted = [bound_from_scores(rng.normal(size=64), rng.random(64) < 0.5, 0.0).epsilon > 0 for _ in range(300)]
    assert sum(refuted) <= 25  # 5 % of 300 are 15; 25 or more have a probability of 1 %


def test_impossible_counts_are_refused():
    with pytest.raises(ConfigError, match="cannot be"):
        refutation_p(10, 5, 6, 1.0, 0.0)
    with pytest.raises(ConfigError, match="too few"):
        bound_from_scores(np.zeros(1), np.zeros(1, bool), 0.0)


def test_the_middle_lies_between_two_groups_of_unequal_size():
    assert 2 < middle_of(np.array([9.0, 1.0, 1.2, 8.0, 8.5, 9.5, 2.0, 8.8])) < 8


# planting -------------------------------------------------------------------------------------------------------------
def test_canaries_that_the_coin_chooses_are_trained_on_and_no_other():
    before = federation()
    planted = plant(before, 0, 64, "spots", seed=3)
    trained = planted.federation.sites[0].train
    assert torch.equal(trained[: len(before.sites[0].train)], before.sites[0].train)
    assert trained[len(before.sites[0].train) :].tolist() == planted.rows[planted.included].tolist()
    assert 16 < planted.included.sum() < 48
    images = planted.federation.collection.images[planted.rows]
    assert (images == 255).flatten(1).sum(1).tolist() == [1] * 64
    assert len({*map(tuple, images.flatten(1).tolist())}) == 64


def test_mislabelled_canaries_are_held_out_no_more():
    before = federation(sites=2)
    planted = plant(before, 1, 20, "mislabelled", seed=0)
    after = planted.federation
    held_out = sum(len(split.test) for split in after.sites)
    assert held_out == sum(len(split.test) for split in before.sites) - 20
    new = after.collection
    same = (new.images[planted.rows][:, None] == before.collection.images[None]).flatten(2).all(2)
    classes = before.collection.targets[same.float().argmax(1)]
    assert bool((classes != new.targets[planted.rows]).all())


def test_more_canaries_than_there_is_room_for_are_refused():
    with pytest.raises(NotMeasured, match="256 spots, not 257"):
        plant(federation(), 0, 257, "spots", 0)
    with pytest.raises(NotMeasured, match="16 held-out images"):
        plant(federation(), 0, 17, "mislabelled", 0)


# runs -----------------------------------------------------------------------------------------------------------------
def canary_run(
    seed: int, privacy: dict, method: str = "fedavg", sites: int = 1, options: dict | None = None, **more
) -> CanaryRun:
    planted = plant(federation(sites=sites), 0, 128, "spots", seed)
    settings = {
        "run": {"rounds": 2, "seed": seed},
        "method": {"name": method} | (options or {}),
        "text": {"encoder": "random", "concepts": {name: name for name in CLASSES}},
        "net": {"name": "spot_federation:linear"},
        "train": {"batch_size": 16, "lr": 0.1, "epochs": 2},
        "engine": {"device": "cpu"},
        "privacy": privacy | more,
    }
    return run_with_canaries(assemble(config_from(settings), planted.federation), planted)


def bound(run: CanaryRun) -> float:
    return bound_from_scores(run.scores, run.included, run.delta).epsilon


@pytest.mark.parametrize("noise", [1.5, pytest.param(0.5, marks=pytest.mark.e2e)])
def test_the_bound_never_exceeds_the_claimed_epsilon(noise):
    pytest.importorskip("dp_accounting")
    privacy = {"unit": "image", "noise": noise, "delta": 1e-4}
    for seed in SEEDS:
        run = canary_run(seed, privacy)
        assert run.epsilon is not None
        assert bound(run) <= run.epsilon


def test_without_noise_every_canary_is_found():
    for seed in SEEDS:
        run = canary_run(seed, {})
        assert run.epsilon is None
        assert bound(run) > 3
        assert run.seen == "the site's update of every round"


FEDBM = {"cycle": 1, "iterations": 2, "generator_width": 0.1, "synthetic": 4}


@pytest.mark.parametrize(("method", "options"), [("fedcb", {}), ("fedbm", FEDBM)])
def test_canaries_are_found_behind_a_classifier_that_is_text(method, options):
    """The attacker knows the text, which the server sends beside the weights; noise hides canaries all the same."""
    pytest.importorskip("dp_accounting")
    assert bound(canary_run(0, {}, method=method, options=options)) > 2
    private = canary_run(0, {"unit": "image", "noise": 1.5, "delta": 1e-4}, method=method, options=options)
    assert private.epsilon is not None
    assert bound(private) <= private.epsilon


def test_noise_that_is_smaller_than_claimed_is_caught(monkeypatch):
    """The accounting says noise 1.5, the sums have a hundredth of it."""
    pytest.importorskip("dp_accounting")
    honest = dp_sgd.gaussian_like
    monkeypatch.setattr(dp_sgd, "gaussian_like", lambda like, deviation, rng: honest(like, deviation / 100, rng))
    run = canary_run(0, {"unit": "image", "noise": 1.5, "delta": 1e-4})
    assert run.epsilon is not None
    assert bound(run) > run.epsilon


def test_secure_sums_leave_the_attacker_the_network_of_all_sites():
    run = canary_run(0, {"secure_aggregation": True}, sites=3)
    assert run.seen == "the network of all sites, round by round"
    assert bound(run) > 1


def test_a_method_that_sends_no_weights_is_said():
    with pytest.raises(NotMeasured, match="fedproto sends no weights"):
        canary_run(0, {}, method="fedproto", sites=2)


# gradient canaries ----------------------------------------------------------------------------------------------------
def gradient_run(seed: int, noise: float, unit: str = "image", canaries: int = 128) -> CanaryRun:
    images = federation()
    if unit == "patient":
        groups = tuple(f"patient {number // 2}" for number in range(len(images.collection)))
        images = replace(images, collection=replace(images.collection, groups=groups))
    settings = {
        "run": {"rounds": 2, "seed": seed},
        "net": {"name": "spot_federation:linear"},
        "train": {"batch_size": 16, "lr": 0.1, "epochs": 2},
        "engine": {"device": "cpu"},
        "privacy": {"unit": unit, "noise": noise, "delta": 1e-4},
    }
    return run_with_gradient_canaries(assemble(config_from(settings), images), 0, canaries, seed)


@pytest.mark.parametrize(("unit", "noise"), [("image", 1.5), ("patient", 2.0)])
def test_the_bound_from_gradients_never_exceeds_the_claimed_epsilon(unit, noise):
    pytest.importorskip("dp_accounting")
    for seed in SEEDS:
        run = gradient_run(seed, noise, unit)
        assert run.epsilon is not None
        assert bound(run) <= run.epsilon


def test_gradient_canaries_find_that_noise_is_smaller_than_claimed(monkeypatch):
    pytest.importorskip("dp_accounting")
    honest = dp_sgd.gaussian_like
    monkeypatch.setattr(dp_sgd, "gaussian_like", lambda like, deviation, rng: honest(like, deviation / 100, rng))
    for seed in SEEDS:
        run = gradient_run(seed, 1.5)
        assert run.epsilon is not None
        assert bound(run) > run.epsilon


def test_gradient_canaries_move_their_own_coordinates_alone(monkeypatch):
    """Almost without noise, the score of a canary is rate x steps x clip / batch on average; of the others, 0."""
    pytest.importorskip("dp_accounting")
    honest = dp_sgd.gaussian_like
    monkeypatch.setattr(dp_sgd, "gaussian_like", lambda like, deviation, rng: honest(like, 1e-6, rng))
    run = gradient_run(0, 2.0)
    inside = run.scores[run.included]
    units = 128 + len(inside)
    steps = 2 * 2 * -(-units // 16)
    expected = 0.1 * (1 / 16) * steps * 16 / units
    assert inside.mean() == pytest.approx(expected, rel=0.15)
    assert np.median(np.abs(run.scores[~run.included])) < expected / 4  # images move biases, too


def test_gradient_canaries_need_noise_on_gradients():
    settings = {"net": {"name": "spot_federation:linear"}, "engine": {"device": "cpu"}}
    prepared = assemble(config_from(settings), federation())
    with pytest.raises(DoesNotApply, match="the run has none"):
        run_with_gradient_canaries(prepared, 0, 8, 0)


def test_coordinates_are_different_and_all_parameters_have_some():
    net = linear(1, 3, 4)
    chosen = choose_coordinates(dict(net.named_parameters()), 51, torch.Generator().manual_seed(0))
    assert len({*chosen}) == 51  # 48 weights and 3 biases: all of them
    assert {each.name for each in chosen} == {"head.weight", "head.bias"}
    assert max(each.place for each in chosen if each.name == "head.bias") == 2
