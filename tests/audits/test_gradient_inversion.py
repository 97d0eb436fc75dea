"""Gradient inversion: it finds an image where one gradient holds it, nothing behind noise, also where the classifier is
text that travels beside the weights; likeness in numbers."""

from __future__ import annotations

import pytest
import torch

from crossward.audits.gradient_inversion import Attempt, Target, gradient_of, invert, protected_gradient
from crossward.audits.likeness import mean_estimate, psnr, ssim
from crossward.audits.site_loss import site_loss, with_classifier
from crossward.core.method import RoundContext
from crossward.core.net import NetSpec
from crossward.methods.fedavg import FedAvg
from crossward.methods.fedbm.method import FedBM
from crossward.methods.fedcb import FedCB
from crossward.privacy.secure_steps import SecureSettings, secured
from crossward.privacy.settings import PrivacySettings
from crossward.tasks.classification import Classification
from crossward.testing.toy import CLASSES, SIDE, Toy, concepts, linear

TASK = Classification(CLASSES)
SUPERVISED = site_loss(FedAvg(), TASK)
PRIVATE = PrivacySettings(unit="image", noise=1.0, clip=1.0)


def toy(seed: int = 0):
    """A linear network, and toy images as it takes them, with their classes."""
    torch.manual_seed(seed)
    collection = Toy().collection()
    pixels = collection.images.permute(0, 3, 1, 2).float() / 255
    return linear(), (pixels - 0.5) / 0.25, collection.targets


def attacked(x, y, net, gradient, loss=SUPERVISED):
    target = Target(net, loss, [g.detach() for g in gradient], y)
    made = invert(target, tuple(x.shape[1:]), 150, torch.Generator().manual_seed(0))
    guess = toy()[1].mean(0)
    return Attempt(*((each * 0.25 + 0.5).clamp(0, 1) for each in (x, made, guess)), steps=150)


def test_the_gradient_of_one_image_gives_it_away_and_noise_hides_it():
    net, images, labels = toy()
    x, y = images[:1], labels[:1]
    found, _, guessed = attacked(x, y, net, gradient_of(net, SUPERVISED, x, y)).best_match()
    assert found > guessed + 3
    rng = torch.Generator().manual_seed(1)
    noised = protected_gradient(net, SUPERVISED, x, y, PRIVATE, 1.0, rng)
    hidden, _, guessed = attacked(x, y, net, noised).best_match()
    assert hidden < guessed


# a classifier that is text -------------------------------------------------------------------------------------------
def with_text(method):
    torch.manual_seed(0)
    net = method.build(linear(), NetSpec(1, SIDE, len(CLASSES), text=6))
    text = concepts()
    start = {"tau": 0.0 if method.tau == "auto" else method.tau,
             "text": {"mean": text.mean, "variance": text.variance, "factor": text.factor}}  # fmt: skip
    return with_classifier(net, method, start)


def test_an_attacker_computes_the_loss_of_a_text_classifier_as_the_site_does():
    """In a run the loss is a closure over an open site; the gradient of its first step is the same to the bit."""
    method = FedCB()
    run_sites = Toy().run_sites(method, net=linear)
    site = run_sites.open(0, 0, {})
    start = method.start(RoundContext(0, 1, 2, run_sites.task, run_sites.server(0)))
    method.predictor(site, method.broadcast(start))
    x, y = site.train.take(site.train.index[:3])
    out = site.forward(x, y)
    trained = [p for p in site.model.parameters() if p.requires_grad]
    expected = torch.autograd.grad(method.loss(site)(out), trained)
    net = with_classifier(run_sites.server(0).new_net(), method, start)
    start["model"].into(net)
    found = gradient_of(net, site_loss(secured(method, SecureSettings(0)), site.task), x, y)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("method", [FedCB(), FedBM(), FedCB(tau="auto"), FedCB(classifier="average")])
def test_the_gradient_of_a_text_classifier_gives_an_image_away_and_noise_hides_it(method):
    net, loss = with_text(method), site_loss(method, TASK)
    _, images, labels = toy()
    x, y = images[:1], labels[:1]
    found, _, guessed = attacked(x, y, net, gradient_of(net, loss, x, y), loss).best_match()
    assert found > guessed + 3
    noised = protected_gradient(net, loss, x, y, PRIVATE, 1.0, torch.Generator().manual_seed(1))
    hidden, _, guessed = attacked(x, y, net, noised, loss).best_match()
    assert hidden < guessed


def test_a_tau_that_was_not_chosen_yet_is_the_middle_one():
    assert with_text(FedCB(tau="auto")).head.tau == 12.5
    assert with_text(FedCB(tau=3.0)).head.tau == 3.0
    plain = linear()
    assert with_classifier(plain, FedAvg(), {}) is plain


# what is attacked, and how well ---------------------------------------------------------------------------------------
def test_the_protected_gradient_is_the_mean_of_clipped_ones():
    net, images, labels = toy()
    x, y = images[:3], labels[:3]
    plain = gradient_of(net, SUPERVISED, x, y)
    unprotected = protected_gradient(net, SUPERVISED, x, y, PrivacySettings(), 0.0, torch.Generator())
    assert all(map(torch.equal, unprotected, plain))
    wide = PrivacySettings(unit="image", noise=1.0, clip=1e3)
    almost = protected_gradient(net, SUPERVISED, x, y, wide, 1e-10, torch.Generator().manual_seed(0))
    for a, b in zip(almost, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    tight = PrivacySettings(unit="image", noise=1.0, clip=1e-3)
    clipped = protected_gradient(net, SUPERVISED, x, y, tight, 1e-8, torch.Generator().manual_seed(0))
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
