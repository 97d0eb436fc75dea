"""Gradient inversion: it finds an image where one gradient holds it, nothing behind noise; likeness in numbers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from crossward.audits.gradient_inversion import Attempt, Target, gradient_of, invert, protected_gradient
from crossward.audits.likeness import mean_estimate, psnr, ssim
from crossward.privacy.settings import PrivacySettings
from crossward.testing.toy import Toy, linear

PRIVATE = PrivacySettings(unit="image", noise=1.0, clip=1.0)


def toy(seed: int = 0):
    """A linear network, and toy images as it takes them, with their classes."""
    torch.manual_seed(seed)
    collection = Toy().collection()
    pixels = collection.images.permute(0, 3, 1, 2).float() / 255
    return linear(), (pixels - 0.5) / 0.25, collection.targets


def attacked(x, y, net, gradient):
    target = Target(net, F.cross_entropy, [g.detach() for g in gradient], y)
    made = invert(target, tuple(x.shape[1:]), 150, torch.Generator().manual_seed(0))
    guess = toy()[1].mean(0)
    return Attempt(*((each * 0.25 + 0.5).clamp(0, 1) for each in (x, made, guess)), steps=150)


def test_the_gradient_of_one_image_gives_it_away_and_noise_hides_it():
    net, images, labels = toy()
    x, y = images[:1], labels[:1]
    found, _, guessed = attacked(x, y, net, gradient_of(net, F.cross_entropy, x, y)).best_match()
    assert found > guessed + 3
    rng = torch.Generator().manual_seed(1)
    noised = protected_gradient(net, F.cross_entropy, x, y, PRIVATE, 1.0, rng)
    hidden, _, guessed = attacked(x, y, net, noised).best_match()
    assert hidden < guessed


def test_the_protected_gradient_is_the_mean_of_clipped_ones():
    net, images, labels = toy()
    x, y = images[:3], labels[:3]
    plain = gradient_of(net, F.cross_entropy, x, y)
    unprotected = protected_gradient(net, F.cross_entropy, x, y, PrivacySettings(), 0.0, torch.Generator())
    assert all(map(torch.equal, unprotected, plain))
    wide = PrivacySettings(unit="image", noise=1.0, clip=1e3)
    almost = protected_gradient(net, F.cross_entropy, x, y, wide, 1e-10, torch.Generator().manual_seed(0))
    for a, b in zip(almost, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    tight = PrivacySettings(unit="image", noise=1.0, clip=1e-3)
    clipped = protected_gradient(net, F.cross_entropy, x, y, tight, 1e-8, torch.Generator().manual_seed(0))
    assert torch.stack([g.square().sum() for g in clipped]).sum().sqrt() <= 1e-3 * (1 + 1e-3)


def test_likeness_by_hand():
    a, b = torch.full((1, 8, 8), 0.2), torch.full((1, 8, 8), 0.4)
    assert psnr(a, b) == pytest.approx(13.979, abs=1e-3)  # -10 log10 0.04
    assert psnr(a, a) == 100
    assert ssim(a, b) == pytest.approx((2 * 0.08 + 1e-4) / (0.04 + 0.16 + 1e-4))
    noise = torch.rand(3, 9, 9, generator=torch.Generator().manual_seed(0))
    assert ssim(noise, noise) == pytest.approx(1)
    assert ssim(noise, 1 - noise) < 0


def test_the_best_match_of_a_batch_may_be_any_pair():
    truth, made = torch.rand(2, 3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    made[2] = truth[1] + 0.01
    value, alike, _ = Attempt(truth, made, truth.mean(0), 1).best_match()
    assert value == pytest.approx(40, abs=0.1)
    assert alike > 0.95


def test_the_interval_of_a_mean():
    estimate = mean_estimate("x", [1.0, 2.0, 3.0, 4.0, 5.0])
    assert estimate.value == 3
    assert 0.5 < estimate.low < 1.5  # t with 4 degrees: 3 - 2.78 * 1.58 / sqrt 5
    assert mean_estimate("x", [1.0]).low is None
