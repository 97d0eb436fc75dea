"""Vectors as integers: no sum overflows, and the mean is as far off as the format says at most."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossward.errors import ConfigError
from crossward.foreign import ForeignError
from crossward.privacy.secure_format import MOST_EXACT, SumFormat


def total(words: list[np.ndarray]) -> np.ndarray:
    summed = np.zeros_like(words[0])
    for part in words:
        summed += part
    return summed


@settings(max_examples=60, deadline=None)
@given(data=st.data(), bits=st.sampled_from([32, 64]), rounding=st.sampled_from(["nearest", "stochastic"]))
def test_the_mean_is_as_far_off_as_the_format_says_at_most(data: st.DataObject, bits: int, rounding: str):
    sites = data.draw(st.integers(2, 12))
    max_weight = data.draw(st.sampled_from([1, 7, 1000, 50_000]))
    clip = data.draw(st.sampled_from([2.0**-10, 0.375, 1.0, 250.0]))
    format = SumFormat(5, sites, clip, max_weight, bits, rounding)
    values = st.lists(st.floats(-2 * clip, 2 * clip, width=32), min_size=5, max_size=5)
    vectors = [np.array(data.draw(values), np.float32) for _ in range(sites)]
    weights = [data.draw(st.integers(1, max_weight)) for _ in range(sites)]
    words = [format.quantise(v, w, seed) for seed, (v, w) in enumerate(zip(vectors, weights, strict=True))]

    mean, weight = format.mean(total(words), sites)

    plain = np.average([v.astype(np.float64).clip(-clip, clip) for v in vectors], axis=0, weights=weights)
    assert weight == sum(weights)
    assert np.abs(mean - plain).max() <= format.error_bound(sites, weight) * (1 + 1e-9)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_largest_vectors_of_the_heaviest_sites_do_not_overflow(bits: int, sign: int, rounding: str):
    format = SumFormat(1, 30, 0.7, 10_000, bits, rounding)
    words = [format.quantise(np.array([sign * 1e6], np.float32), 10_000, seed) for seed in range(30)]

    mean, weight = format.mean(total(words), 30)

    assert weight == 300_000
    assert mean[0] == pytest.approx(sign * 0.7, abs=format.error_bound(30, weight))


def test_sums_by_hand():
    format = SumFormat(2, 2, 1.0, 4, 32)
    assert format.largest == (2**31 - 1) // 2

    mean, weight = format.mean(format.quantise(np.array([1.0, -0.5]), 3) + format.quantise(np.array([-1.0, 0.0]), 1), 2)

    assert weight == 4
    assert mean == pytest.approx([0.5, -0.375], abs=1e-8)


def test_stochastic_rounding_is_unbiased_and_repeats_with_its_seed():
    format = SumFormat(40_000, 2, 1e9, 1, 32, "stochastic")
    value = 0.25 / format.scale  # a quarter of a unit
    vector = np.full(40_000, value)
    words = format.quantise(vector, 1, 5)

    assert np.array_equal(words, format.quantise(vector, 1, 5))
    assert not np.array_equal(words, format.quantise(vector, 1, 6))
    assert set(words[:-1]) == {0, 1}
    assert words[:-1].mean() == pytest.approx(0.25, abs=5 * np.sqrt(0.25 * 0.75 / 40_000))


def test_the_fewest_bits_that_are_precise_enough_are_chosen():
    assert SumFormat.choose(length=9, sites=10, clip=1.0).bits == 32
    assert SumFormat.choose(length=9, sites=10, clip=1.0, max_weight=100_000).bits == 64
    assert SumFormat.choose(length=9, sites=10, clip=1.0, max_weight=100_000, precision=1e-2).bits == 32


def test_a_precision_that_no_format_has_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)precise as 1e-09.*64 bits.*Lower the clip"):
        SumFormat.choose(length=9, sites=10, clip=1e9, max_weight=100_000, precision=1e-9)


def test_weights_that_could_overflow_are_refused():
    with pytest.raises(ForeignError, match="do not fit into 32 bits"):
        SumFormat(1, 1000, 1.0, 2**22, 32)


@pytest.mark.parametrize(
    "wrong",
    [
        {"length": 0},
        {"length": 2.0},
        {"sites": 1},
        {"sites": True},
        {"clip": 0.0},
        {"clip": float("nan")},
        {"clip": float("inf")},
        {"clip": "1"},
        {"max_weight": 0},
        {"bits": 16},
        {"bits": 32.0},
        {"rounding": "up"},
        {"more": 1},
    ],
)
def test_a_format_from_outside_that_is_out_of_range_is_refused(wrong: dict[str, object]):
    with pytest.raises(ForeignError):
        SumFormat.from_tree(SumFormat(3, 4, 1.0).tree() | wrong)


def test_a_format_survives_its_tree():
    format = SumFormat(3, 4, 1, 9, 32, "stochastic")

    assert SumFormat.from_tree(format.tree()) == format


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused(bad: float):
    with pytest.raises(ValueError, match="NaN or infinity"):
        SumFormat(2, 3, 1.0).quantise(np.array([0.0, bad]))


@pytest.mark.parametrize("weight", [0, -1, 11, 2.5, True])
def test_a_weight_out_of_range_is_refused(weight: object):
    with pytest.raises(ForeignError, match="the weight"):
        SumFormat(1, 3, 1.0, 10).quantise(np.zeros(1), weight)


def test_a_vector_of_another_length_is_refused():
    with pytest.raises(ValueError, match="shape"):
        SumFormat(2, 3, 1.0).quantise(np.zeros(3))


def test_a_sum_that_these_sites_cannot_have_is_refused():
    format = SumFormat(1, 3, 1.0, 10, 32)
    too_much = np.array([3 * format.largest + 1, 30], np.uint32)
    too_heavy = np.array([0, 31], np.uint32)

    for wrong in (too_much, too_heavy, np.array([2**31, 5], np.uint32), np.array([0, 0], np.uint32)):
        with pytest.raises(ValueError, match="did not follow the protocol"):
            format.mean(wrong, 3)


def test_values_beyond_the_clip_are_counted():
    assert SumFormat(3, 3, 1.0).outside(np.array([1.0, -1.1, 2.0])) == 2


def test_one_site_stays_within_what_doubles_compute_exactly():
    assert SumFormat(1, 2, 1.0).largest == MOST_EXACT
