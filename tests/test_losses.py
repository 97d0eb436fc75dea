"""Losses that several methods may use."""

from __future__ import annotations

import pytest
import torch

from crossward.losses import diversity, log_prior


def test_diversity_by_hand():
    made = torch.tensor([[[0.0, 0.0]], [[1.0, 1.0]], [[0.0, 4.0]], [[9.0, 9.0]]])
    z = torch.tensor([[0.0], [1.0], [2.0], [5.0]])
    y = torch.tensor([0, 0, 0, 1])
    # pairs of class 0: |x| 2, 4, 4 over |z| 1, 2, 1, so ratios 2, 2, 4; class 1 has no pair; the mean is over 2 classes
    wanted = (1 / 2.00001 + 1 / 2.00001 + 1 / 4.00001) / 3 / 2
    assert float(diversity(made, z, y, 2)) == pytest.approx(wanted, rel=1e-6)
    assert float(diversity(made, z, torch.arange(4), 4)) == 0


def test_diversity_falls_when_images_differ_more():
    z, y = torch.randn(6, 3), torch.zeros(6, dtype=torch.int64)
    made = torch.rand(6, 1, 4, 4)
    assert diversity(2 * made, z, y, 1) < diversity(made, z, y, 1)


def test_what_was_made_alike_gives_a_finite_gradient():
    made = torch.ones(4, 1, 2, 2, requires_grad=True)
    diversity(made, torch.randn(4, 3), torch.zeros(4, dtype=torch.int64), 1).backward()
    assert torch.isfinite(made.grad).all()


def test_log_prior_by_hand():
    shares = log_prior(torch.tensor([3.0, 1.0, 0.0]))
    assert shares.exp().tolist() == pytest.approx([0.75, 0.25, 1e-9], rel=1e-4)
    assert log_prior(torch.tensor([3.0, 0.0]), least=1).exp().tolist() == pytest.approx([0.75, 0.25])
