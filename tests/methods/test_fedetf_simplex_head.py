"""SimplexHead: the geometry of its frame, logits by hand, and what of it is trained."""

from __future__ import annotations

import math

import pytest
import torch

from crossward.core.seeds import seeded
from crossward.errors import ConfigError
from crossward.methods.fedetf import SimplexHead, simplex

torch.set_num_threads(1)


@pytest.mark.parametrize("k", [2, 3, 8, 60])
def test_all_classes_are_equally_far_apart(k: int):
    """M^T M = K / (K - 1) (I - 1 1^T / K): ones on the diagonal, -1 / (K - 1) elsewhere."""
    m = simplex(k)
    expected = torch.full((k, k), -1 / (k - 1)).fill_diagonal_(1.0)
    torch.testing.assert_close(m.T @ m, expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(m.T @ m, k / (k - 1) * (torch.eye(k) - 1 / k), atol=2e-6, rtol=0)
    torch.testing.assert_close(m.sum(1), torch.zeros(k), atol=1e-5, rtol=0)


def test_two_classes_are_opposite_and_three_at_120_degrees():
    a, b = simplex(2).T
    torch.testing.assert_close(a, -b)
    a, b, _ = simplex(3).T
    assert math.degrees(math.acos(float(a @ b))) == pytest.approx(120, abs=1e-3)


def test_the_frame_is_drawn_anew_for_each_seed():
    drawn = []
    for seed in (0, 0, 1):
        with seeded(seed):
            drawn.append(simplex(4))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.allclose(drawn[0], drawn[2], atol=0.01)


@pytest.mark.parametrize("k", [0, 1])
def test_fewer_than_two_classes_are_refused(k: int):
    with pytest.raises(ConfigError, match=f"at least two classes, not {k}"):
        simplex(k)


def test_logits_of_a_feature_that_has_collapsed_to_its_class():
    """s for its own class, -s / (K - 1) for the others."""
    head = SimplexHead(5)
    torch.nn.init.constant_(head.scale, 2.0)
    logits = head(head.frame.detach().T)
    torch.testing.assert_close(logits, torch.full((5, 5), -0.5).fill_diagonal_(2.0), atol=1e-5, rtol=0)


def test_logits_by_hand():
    head = SimplexHead(2)
    head.frame.data = torch.tensor([[0.6, -0.6], [0.8, -0.8]])
    head.scale.data = torch.tensor(10.0)
    torch.testing.assert_close(head(torch.tensor([[1.0, 0.0], [0.0, -1.0]])), torch.tensor([[6.0, -6], [-8, 8]]))


def test_only_the_scale_is_trained_and_both_are_weights():
    head = SimplexHead(3)
    assert {name: p.requires_grad for name, p in head.named_parameters()} == {"frame": False, "scale": True}
    assert head.scale.item() == 1.0
    head(torch.eye(3)).square().sum().backward()
    assert head.frame.grad is None
    assert head.scale.grad is not None
