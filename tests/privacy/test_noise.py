"""Noise has the variance that is claimed, differs every time at a real site, and covers a clipped update."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.privacy.noise import clip_factors, clipped_update, gaussian_like, noisy_update, secret_generator


@pytest.mark.parametrize("deviation", [0.02, 1.0, 37.5])
def test_the_variance_is_the_claimed_one(deviation):
    """A chi-square test at 1 in 10,000; and the noise is normal."""
    noise = gaussian_like(torch.zeros(200, 500), deviation, torch.Generator().manual_seed(3)).double().flatten()
    statistic = float((noise / deviation).square().sum())
    p = stats.chi2.cdf(statistic, len(noise))
    assert 5e-5 < p < 1 - 5e-5
    assert stats.kstest((noise / deviation).numpy(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("deviation", [0.0, -1.0, math.nan, math.inf])
def test_noise_that_hides_nothing_is_refused(deviation):
    with pytest.raises(ConfigError, match="hides nothing"):
        gaussian_like(torch.zeros(3), deviation, torch.Generator())


def test_secret_noise_is_another_every_time_whatever_the_seed_of_the_run():
    torch.manual_seed(0)
    first = torch.randn(4, generator=secret_generator())
    torch.manual_seed(0)
    assert not torch.equal(first, torch.randn(4, generator=secret_generator()))


def test_norms_are_brought_to_the_clip_and_never_up():
    factors = clip_factors(torch.tensor([0.0, 0.5, 2.0, 4.0]), 2.0)
    assert factors.tolist() == [1.0, 1.0, 1.0, 0.5]


def test_an_update_is_clipped_as_one_vector():
    update = Weights({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])})
    clipped = clipped_update(update, 1.0)
    assert clipped.norm().item() == pytest.approx(1.0)
    torch.testing.assert_close(clipped["a"], torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(clipped_update(update, 9.0)["b"], update["b"])


def test_the_noise_of_an_update_is_in_every_number():
    update = Weights({"a": torch.full((300, 300), 1.0), "b": torch.zeros(1)})
    noisy = noisy_update(update, 2.0, 0.5, torch.Generator().manual_seed(1))
    noise = noisy["a"] - clipped_update(update, 2.0)["a"]
    assert noise.std().item() == pytest.approx(0.5, rel=0.02)
    assert noisy["b"].item() != 0
