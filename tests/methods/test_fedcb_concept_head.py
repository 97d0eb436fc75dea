"""The classifier made of concepts."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from crossward.core.concepts import Concepts
from crossward.methods.fedcb import ConceptHead

TAU = 5.0


def concepts(spread: float = 0.3) -> Concepts:
    drawn = torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(3))
    centre = F.normalize(torch.randn(4, 1, 16, generator=torch.Generator().manual_seed(4)), dim=2)
    return Concepts.of(centre + spread * drawn / 4)


def features(n: int) -> torch.Tensor:
    return F.normalize(torch.randn(n, 16, generator=torch.Generator().manual_seed(5)), dim=1)


def test_scores_by_hand():
    head = ConceptHead()
    head.furnish(2.0, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), variance=torch.tensor([[0.5, 0.0], [0.25, 1.0]]))
    h = torch.tensor([[0.6, 0.8]])
    # tau h.mu + tau^2/2 (h1^2 v1 + h2^2 v2): 1.2 + 2 * .18, 1.6 + 2 * (.09 + .64)
    assert torch.allclose(head(h), torch.tensor([[1.56, 3.06]]))
    assert torch.allclose(head.spread(h), torch.tensor([[0.36, 1.46]]))


def test_without_spread_it_is_a_linear_layer():
    head, mean = ConceptHead(), concepts().mean
    head.furnish(TAU, mean)
    h = features(3)
    assert torch.equal(head(h), TAU * (h @ mean.T))
    assert torch.equal(head.spread(h), torch.zeros(3, 4))


def test_the_factor_gives_the_whole_quadratic_form():
    text, head, h = concepts(), ConceptHead(), features(3)
    head.furnish(TAU, text.mean, factor=text.factor)
    wanted = 0.5 * TAU**2 * torch.einsum("bi,kij,bj->bk", h, text.covariance, h)
    assert torch.allclose(head.spread(h), wanted, atol=1e-5)


def test_a_diagonal_covariance_is_the_same_either_way():
    h, scale = features(2), torch.tensor([1.0, 2.0] * 8)
    factor = torch.diag(scale).expand(4, 16, 16)
    diagonal, full, mean = ConceptHead(), ConceptHead(), concepts().mean
    diagonal.furnish(TAU, mean, variance=scale.square().expand(4, 16))
    full.furnish(TAU, mean, factor=factor)
    assert torch.allclose(diagonal(h), full(h), rtol=1e-4)


@pytest.mark.parametrize("form", ["variance", "factor"])
def test_scores_are_the_log_of_the_expected_exponential(form: str):
    """Monte Carlo: E[exp(tau h.e)] = exp(s_k) for e ~ N(mu_k, Sigma_k)."""
    text, head, h = concepts(), ConceptHead(), features(1)
    head.furnish(TAU, text.mean, **{form: getattr(text, form)})
    rng = torch.Generator().manual_seed(0)
    for k in range(4):
        if form == "factor":
            drawn = text.sample(torch.full((200_000,), k), 0.0, rng)
        else:
            drawn = text.mean[k] + text.variance[k].sqrt() * torch.randn(200_000, 16, generator=rng)
        expected = (TAU * drawn @ h[0]).double().exp().mean().log()
        assert float(expected) == pytest.approx(head(h)[0, k].item(), abs=0.02)


def test_nothing_of_it_travels_and_nothing_is_trained():
    head = ConceptHead()
    head.furnish(TAU, concepts().mean, concepts().variance)
    assert not head.state_dict()
    assert not list(head.parameters())


def test_unfurnished_it_says_so():
    with pytest.raises(RuntimeError, match="not been given its concepts"):
        ConceptHead()(features(1))
