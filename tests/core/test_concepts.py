"""Concepts: class embeddings as normal distributions."""

from __future__ import annotations

import pytest
import torch

from crossward.core.concepts import Concepts

EMBEDDINGS = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], [[2.0, 0.0], [2.0, 0.0], [2.0, 3.0]]])  # (2, 3, 2)


def test_mean_and_unbiased_covariance():
    concepts = Concepts.of(EMBEDDINGS)
    assert torch.allclose(concepts.mean, torch.tensor([[0.5, 0.5], [2.0, 1.0]]))
    # deviations of class 0: (.5, -.5), (-.5, .5), (0, 0); of class 1: (0, -1), (0, -1), (0, 2); divided by M - 1 = 2
    assert torch.allclose(concepts.covariance[0], torch.tensor([[0.25, -0.25], [-0.25, 0.25]]))
    assert torch.allclose(concepts.covariance[1], torch.tensor([[0.0, 0.0], [0.0, 3.0]]))
    assert torch.allclose(concepts.variance, torch.tensor([[0.25, 0.25], [0.0, 3.0]]))
    assert concepts.dim == 2


def test_covariance_is_that_of_torch():
    embeddings = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(1))
    concepts = Concepts.of(embeddings)
    for k in range(3):
        assert torch.allclose(concepts.covariance[k], torch.cov(embeddings[k].T), atol=1e-6)


def test_one_prompt_has_a_mean_and_no_spread():
    concepts = Concepts.of(EMBEDDINGS[:, :1])
    assert torch.equal(concepts.mean, EMBEDDINGS[:, 0])
    assert torch.equal(concepts.variance, torch.zeros(2, 2))
    assert torch.equal(concepts.covariance, torch.zeros(2, 2, 2))
    drawn = concepts.sample(torch.tensor([0, 1]), 0.0, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, EMBEDDINGS[:, 0])


@pytest.mark.parametrize("jitter", [0.0, 0.04])
def test_draws_have_the_mean_and_covariance_of_their_class(jitter: float):
    concepts = Concepts.of(EMBEDDINGS)
    for k in range(2):
        drawn = concepts.sample(torch.full((40_000,), k), jitter, torch.Generator().manual_seed(k))
        assert torch.allclose(drawn.mean(0), concepts.mean[k], atol=0.03)
        assert torch.allclose(torch.cov(drawn.T), concepts.covariance[k] + jitter * torch.eye(2), atol=0.06)


def test_draws_are_of_the_generator_alone():
    concepts, y = Concepts.of(EMBEDDINGS), torch.tensor([1, 0, 1])
    torch.manual_seed(0)
    once = concepts.sample(y, 1e-4, torch.Generator().manual_seed(5))
    torch.manual_seed(1)
    assert torch.equal(once, concepts.sample(y, 1e-4, torch.Generator().manual_seed(5)))
