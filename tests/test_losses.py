"""Losses that several methods share."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from crossward.losses import decoupled_distillation, diversity_loss, log_prior


def test_diversity_by_hand():
    images = torch.tensor([[[0.0, 0.0]], [[1.0, 1.0]], [[0.0, 4.0]], [[9.0, 9.0]]])
    z = torch.tensor([[0.0], [1.0], [2.0], [5.0]])
    y = torch.tensor([0, 0, 0, 1])
    # pairs of class 0: |x| 2, 4, 4 over |z| 1, 2, 1, so ratios 2, 2, 4; class 1 has no pair; the mean is over 2 classes
    expected = (1 / 2.00001 + 1 / 2.00001 + 1 / 4.00001) / 3 / 2
    assert float(diversity_loss(images, z, y, 2)) == pytest.approx(expected, rel=1e-6)
    assert float(diversity_loss(images, z, torch.arange(4), 4)) == 0


def test_diversity_falls_when_images_differ_more():
    z, y = torch.randn(6, 3), torch.zeros(6, dtype=torch.int64)
    images = torch.rand(6, 1, 4, 4)
    assert diversity_loss(2 * images, z, y, 1) < diversity_loss(images, z, y, 1)


def test_equal_images_give_a_finite_gradient():
    images = torch.ones(4, 1, 2, 2, requires_grad=True)
    diversity_loss(images, torch.randn(4, 3), torch.zeros(4, dtype=torch.int64), 1).backward()
    assert torch.isfinite(images.grad).all()


def test_log_prior_by_hand():
    shares = log_prior(torch.tensor([3.0, 1.0, 0.0]))
    assert shares.exp().tolist() == pytest.approx([0.75, 0.25, 1e-9], rel=1e-4)
    assert log_prior(torch.tensor([3.0, 0.0]), least=1).exp().tolist() == pytest.approx([0.75, 0.25])


LOGITS = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(3))
TRUTH = torch.tensor([0, 1, 2, 3, 0, 1])


def test_decoupled_distillation_of_equals_is_nothing():
    assert decoupled_distillation(LOGITS[0], LOGITS[0], TRUTH, others=8.0).abs().max() < 1e-6


def test_decoupled_distillation_by_hand():
    p, q = LOGITS.softmax(2)
    expected = []
    for a, b, y in zip(p, q, TRUTH, strict=True):
        rest = [k for k in range(4) if k != y]
        binary = a[y] * (a[y] / b[y]).log() + (1 - a[y]) * ((1 - a[y]) / (1 - b[y])).log()
        a_rest, b_rest = a[rest] / (1 - a[y]), b[rest] / (1 - b[y])
        expected.append(binary + 0.5 * (a_rest * (a_rest / b_rest).log()).sum())
    torch.testing.assert_close(decoupled_distillation(*LOGITS, TRUTH, others=0.5), torch.stack(expected))


def test_decoupled_distillation_adds_up_to_the_plain_divergence():
    """KL(p || q) = KL(b || b') + (1 - p_y) KL(p^ || q^)."""
    p = LOGITS[0].softmax(1)
    binary = decoupled_distillation(*LOGITS, TRUTH, others=0.0)
    among = decoupled_distillation(*LOGITS, TRUTH, others=1.0) - binary
    plain = F.kl_div(LOGITS[1].log_softmax(1), p, reduction="none").sum(1)
    torch.testing.assert_close(binary + (1 - p.gather(1, TRUTH[:, None])[:, 0]) * among, plain)


def test_decoupled_distillation_stays_finite_where_a_class_is_certain():
    sure = torch.tensor([[80.0, 0.0, -80.0]], requires_grad=True)
    for teacher, student in ((sure, torch.zeros(1, 3)), (torch.zeros(1, 3), sure), (sure.detach(), sure)):
        value = decoupled_distillation(teacher, student, torch.tensor([0]), others=1.0).sum()
        assert value.isfinite()
    (gradient,) = torch.autograd.grad(value, sure)
    assert gradient.isfinite().all()


def test_decoupled_distillation_of_two_classes_is_the_plain_divergence():
    a, b = LOGITS[:, :, :2]
    y = TRUTH % 2
    plain = F.kl_div(b.log_softmax(1), a.softmax(1), reduction="none").sum(1)
    torch.testing.assert_close(decoupled_distillation(a, b, y, others=8.0), plain)
