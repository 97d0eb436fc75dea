"""Epsilon is what dp-accounting says, composed as one would by hand; noise for an epsilon keeps within it."""

from __future__ import annotations

import math

import pytest

dp = pytest.importorskip("dp_accounting")

from crossward.errors import ConfigError  # noqa: E402
from crossward.privacy.accounting import Release, check_delta, epsilon_of, merge, noise_for  # noqa: E402

DELTA = 1e-5


def independent_epsilon(*parts):
    """Straight from dp-accounting, one event after the other: (noise, rate, steps), a rate of None without sampling."""
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    for noise, rate, steps in parts:
        event = dp.GaussianDpEvent(noise)
        accountant.compose(event if rate is None else dp.PoissonSampledDpEvent(rate, event), steps)
    return accountant.get_epsilon(DELTA)


def test_the_published_figures():
    """q = 0.1, sigma = 1.1, 80 steps: 5.32 by PLD, 5.98 by RDP, a little more by whole orders alone."""
    release = Release(1.1, 0.1, 80)
    assert epsilon_of([release], DELTA) == pytest.approx(5.318, abs=1e-3)
    assert epsilon_of([release], DELTA, "rdp") == pytest.approx(6.0, abs=0.05)


def test_several_runs_compose():
    releases = [
        Release(2.0, 0.2, 30),
        Release(3.0, 0.1, 40),
        Release(2.0, 0.2, 20),
        Release(9.0, 1.0, 3, sampled=False),
    ]
    expected = independent_epsilon((2.0, 0.2, 50), (3.0, 0.1, 40), (9.0, None, 3))
    assert epsilon_of(releases, DELTA) == pytest.approx(expected, rel=1e-6)
    assert epsilon_of(releases, DELTA, "rdp") >= epsilon_of(releases, DELTA)
    assert epsilon_of(releases[:2], DELTA) < epsilon_of(releases, DELTA)


def test_equal_releases_are_counted_together():
    assert merge([Release(1.0, 0.5, 2), Release(2.0, 0.5, 1), Release(1.0, 0.5, 3)]) == (
        Release(1.0, 0.5, 5),
        Release(2.0, 0.5, 1),
    )


def test_an_epsilon_beyond_any_use_is_a_bound_that_is_had_at_once():
    hopeless = Release(0.01, 1.0, 2, sampled=False)
    assert 5_000 < epsilon_of([hopeless], DELTA) == epsilon_of([hopeless], DELTA, "rdp") < 1e6


def test_nothing_released_costs_nothing():
    assert epsilon_of([], DELTA) == 0.0


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "sampled"),
    [(3.0, 0.1, 200, True), (0.5, 0.3, 40, True), (8.0, 1.0, 20, False), (30.0, 0.3, 10, True)],
)
def test_the_noise_for_an_epsilon_keeps_within_it_and_wastes_little(epsilon, rate, steps, sampled):
    noise = noise_for(epsilon, DELTA, rate, steps, sampled)
    reached = independent_epsilon((noise, rate if sampled else None, steps))
    assert 0.98 * epsilon <= reached <= epsilon


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, math.inf])
def test_noise_that_gives_no_guarantee_is_refused(noise):
    with pytest.raises(ConfigError, match="no guarantee"):
        Release(noise, 0.1)


def test_sampling_that_takes_everything_is_no_sampling():
    with pytest.raises(ConfigError, match="protects nothing"):
        Release(1.0, 1.0)
    assert Release(1.0, 1.0, sampled=False).steps == 1


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, math.nan])
def test_rates_that_are_none_are_refused(rate):
    with pytest.raises(ConfigError, match="rate"):
        Release(1.0, rate)


def test_steps_that_are_none_are_refused():
    with pytest.raises(ConfigError, match="steps"):
        Release(1.0, 0.5, 0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_epsilon_that_is_none_is_refused(epsilon):
    with pytest.raises(ConfigError, match="epsilon"):
        noise_for(epsilon, DELTA, 0.1, 10)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_that_is_none_is_refused(delta):
    with pytest.raises(ConfigError, match="delta"):
        epsilon_of([Release(1.0, 0.1)], delta)


def test_a_delta_at_which_one_image_may_be_published_is_refused():
    with pytest.raises(ConfigError, match=r"1/100.*100 patients"):
        check_delta(0.01, 100, "patients")
    check_delta(0.009, 100)


def test_an_epsilon_that_no_noise_reaches_is_refused():
    with pytest.raises(ConfigError, match="would take noise above"):
        noise_for(1e-5, DELTA, 0.9, 10_000_000)
