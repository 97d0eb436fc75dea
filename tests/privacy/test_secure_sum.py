"""A whole secure sum: it equals the plain one with drop-outs at any step, and fails cleanly below the threshold."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from crossward.foreign import ForeignError
from crossward.privacy.secure_format import SumFormat
from crossward.privacy.secure_identity import simulated_identities
from crossward.privacy.secure_messages import (
    STEPS,
    SecurePolicy,
    SecureSumFailed,
    SecureTerms,
    default_threshold,
)
from crossward.privacy.secure_server import SecureMean
from crossward.privacy.secure_sum import SiteInput, run_secure_sum

LENGTH = 50
MAX_WEIGHT = 5000


def names(sites: int) -> tuple[str, ...]:
    return tuple(f"hospital-{number:02}" for number in range(sites))


def terms(sites: int, threshold: int | None = None, **format: object) -> SecureTerms:
    chosen = SumFormat.choose(length=LENGTH, sites=sites, clip=8.0, max_weight=MAX_WEIGHT, **format)
    return SecureTerms("run 1, round 1", names(sites), threshold or default_threshold(sites), chosen)


def inputs(sites: int) -> dict[str, SiteInput]:
    rng = np.random.default_rng(sites)
    return {
        name: SiteInput(rng.normal(size=LENGTH).astype(np.float32), int(rng.integers(1, MAX_WEIGHT)))
        for name in names(sites)
    }


def check(result: SecureMean, given: dict[str, SiteInput]) -> None:
    chosen = [given[name] for name in result.sites]
    plain = np.average([i.vector.astype(np.float64) for i in chosen], axis=0, weights=[i.weight for i in chosen])
    assert result.weight == sum(i.weight for i in chosen)
    assert np.abs(result.mean - plain).max() <= result.error
    assert result.error < 1e-6


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("sites", "lost"), [(12, 4), pytest.param(30, 10, marks=pytest.mark.e2e)])
def test_a_third_of_the_sites_may_drop_out_at_any_step(sites: int, lost: int, step: str):
    given = inputs(sites)
    drops = dict.fromkeys(names(sites)[4 : 4 + lost], step)

    result = run_secure_sum(terms(sites), simulated_identities(names(sites), 0), given, drops=drops)

    in_the_sum = sites if step in ("confirm", "unmask") else sites - lost
    assert len(result.sites) == in_the_sum
    check(result, given)


def test_sites_may_drop_out_at_every_step_of_one_sum():
    given = inputs(12)
    drops = dict(zip(names(12)[2:6], ("share", "mask", "confirm", "unmask"), strict=True))

    result = run_secure_sum(terms(12), simulated_identities(names(12), 0), given, drops=drops)

    assert result.sites == tuple(name for name in names(12) if name not in names(12)[2:4])
    check(result, given)


@pytest.mark.parametrize("step", STEPS)
def test_below_the_threshold_the_sum_fails_and_says_who_is_missing(step: str):
    drops = dict.fromkeys(names(6)[:3], step)

    with pytest.raises(SecureSumFailed, match=rf"(?s)3 of 6 sites are left at step '{step}'.*4 are needed") as caught:
        run_secure_sum(terms(6), simulated_identities(names(6), 0), inputs(6), drops=drops)
    assert [line.split(":")[0] for line in caught.value.details] == list(names(6)[:3])


def test_keys_do_not_change_the_sum():
    given = inputs(4)
    one, other = (run_secure_sum(terms(4), simulated_identities(names(4), seed), given) for seed in (0, 1))

    assert np.array_equal(one.mean, other.mean)


def test_the_order_of_sites_does_not_change_the_sum():
    given = inputs(5)
    forwards = terms(5)
    backwards = SecureTerms("run 1, round 1", names(5)[::-1], forwards.threshold, forwards.format)
    identities = simulated_identities(names(5), 0)

    assert np.array_equal(
        run_secure_sum(forwards, identities, given).mean, run_secure_sum(backwards, identities, given).mean
    )


def test_two_sites_have_no_secure_sum():
    with pytest.raises(SecureSumFailed, match=r"(?s)0 of 2.*2 sites in the sum, 3 are needed"):
        run_secure_sum(terms(2), simulated_identities(names(2), 0), inputs(2))


def test_sites_refuse_a_threshold_below_two_thirds():
    identities = simulated_identities(names(9), 0)

    with pytest.raises(SecureSumFailed, match=r"(?s)0 of 9.*a threshold of 5 for 9 sites, 6 are needed"):
        run_secure_sum(terms(9, 5), identities, inputs(9))
    check(run_secure_sum(terms(9, 5), identities, inputs(9), policy=SecurePolicy(3, Fraction(1, 2))), inputs(9))


def test_sites_give_no_shares_for_a_sum_of_fewer_sites_than_they_demand():
    drops = dict.fromkeys(names(6)[:2], "mask")

    with pytest.raises(SecureSumFailed, match=r"(?s)step 'confirm'.*4 sites have survived, 5 are needed"):
        run_secure_sum(
            terms(6), simulated_identities(names(6), 0), inputs(6), drops=drops, policy=SecurePolicy(min_sites=5)
        )


def test_a_weight_beyond_the_terms_never_leaves_its_site():
    given = inputs(4) | {names(4)[0]: SiteInput(np.zeros(LENGTH), MAX_WEIGHT + 1)}

    with pytest.raises(ForeignError, match="the weight"):
        run_secure_sum(terms(4), simulated_identities(names(4), 0), given)


@pytest.mark.parametrize(("sites", "expected"), [(2, 2), (3, 2), (4, 3), (6, 4), (10, 7), (30, 20)])
def test_the_threshold_is_two_thirds_rounded_up(sites: int, expected: int):
    assert default_threshold(sites) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"members": ("a", "a", "b")}, "twice"),
        ({"members": ("a",)}, "number of sites"),
        ({"members": ("a", "b\x1b[2J", "c")}, "name of a site"),
        ({"threshold": 1}, "threshold"),
        ({"threshold": 4}, "threshold"),
        ({"threshold": 2.0}, "threshold"),
        ({"label": ""}, "label"),
        ({"format": SumFormat(4, 2, 1.0)}, "in a format for 2"),
    ],
)
def test_terms_that_make_no_sense_are_refused(change: dict[str, object], words: str):
    sound = {"label": "r", "members": ("a", "b", "c"), "threshold": 2, "format": SumFormat(4, 3, 1.0)}

    with pytest.raises(ForeignError, match=words):
        SecureTerms(**(sound | change))
