"""Noisy counts and sums: the claimed variance, the claimed sensitivity, patients and pixels that share a weight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from crossward.privacy.private_statistics import (
    bounded_class_sums,
    is_present,
    noisy_class_sums,
    noisy_counts,
    noisy_sum,
    unit_weights,
)

K, D = 3, 4


def rows(n, seed=0, scale=1.0, pixels=1):
    rng = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(n * pixels, D, generator=rng)
    y = torch.randint(K, (n * pixels,), generator=rng)
    return z, y


def assert_variance(numbers, deviation):
    """Two-sided chi-square test at a millionth: a seed that fails by chance is not met."""
    statistic = float((numbers.double() / deviation).square().sum())
    n = numbers.numel()
    assert chi2.ppf(5e-7, n) < statistic < chi2.ppf(1 - 5e-7, n)


@pytest.mark.parametrize(("noise", "clip"), [(0.5, 1.0), (3.0, 0.25), (1.0, 7.0)])
def test_noise_has_the_claimed_variance(noise, clip):
    rng = torch.Generator().manual_seed(1)
    z, y = rows(20)
    piece = [(z, y, torch.ones(20))]
    exact_sums, exact_counts = bounded_class_sums(piece, K, clip=clip)
    sums, counts = zip(*(noisy_class_sums(piece, K, clip=clip, noise=noise, rng=rng) for _ in range(400)), strict=True)
    assert_variance(torch.stack(sums) - exact_sums, noise * clip)
    assert_variance(torch.stack(counts) - exact_counts, noise)
    drawn = torch.stack([noisy_sum(torch.zeros(50), clip=clip, noise=noise, rng=rng) for _ in range(50)])
    assert_variance(drawn, noise * clip)
    assert_variance(noisy_counts(torch.zeros(2000, dtype=torch.int64), noise=noise, rng=rng), noise)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 12), patients=st.integers(1, 4), clip=st.floats(0.01, 20), scale=st.floats(0, 50),
    pixels=st.sampled_from([1, 4]), seed=st.integers(0, 99), by_patient=st.booleans(),
)  # fmt: skip
def test_one_unit_changes_sums_by_the_clip_and_counts_by_one_at_most(
    n, patients, clip, scale, pixels, seed, by_patient
):
    z, y = rows(n, seed, scale, pixels)
    owner = torch.randint(patients, (n,), generator=torch.Generator().manual_seed(seed)) if by_patient else None
    left = owner != owner[0] if owner is not None else torch.arange(n) != 0
    if not left.any():
        return
    weights = unit_weights(owner, n)
    pixel_left = left.repeat_interleave(pixels)
    whole = bounded_class_sums([(z, y, weights)], K, clip=clip)
    fewer = bounded_class_sums([(z[pixel_left], y[pixel_left], weights[left])], K, clip=clip)
    assert float((whole[0] - fewer[0]).norm()) <= clip * (1 + 1e-4)
    assert float((whole[1] - fewer[1]).norm()) <= 1 + 1e-4


def test_sums_are_those_of_plain_statistics_where_nothing_is_clipped():
    from crossward.statistics import class_sums

    z, y = rows(30)
    expected = class_sums([(z, y)], K)
    pieces = [(z[:10], y[:10], torch.ones(10)), (z[10:], y[10:], torch.ones(20))]
    torch.testing.assert_close(bounded_class_sums(pieces, K, clip=1e6), expected)


def test_a_patient_counts_once_however_many_images_he_has():
    weights = unit_weights(torch.tensor([7, 7, 7, 7, 9]), 5)
    assert weights.tolist() == [0.25, 0.25, 0.25, 0.25, 1.0]


def test_pixels_share_the_weight_of_their_image():
    z = torch.ones(4, D)
    _, counts = bounded_class_sums([(z, torch.tensor([0, 0, 0, 2]), torch.ones(1))], K, clip=100.0)
    assert counts.tolist() == [0.75, 0, 0.25]


def test_a_count_within_the_noise_tells_of_no_class():
    assert is_present(torch.tensor([-3.0, 9.9, 10.0]), 5.0).tolist() == [False, False, True]
