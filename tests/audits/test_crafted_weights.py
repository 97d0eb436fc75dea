"""Crafted weights read images out of what comes back, where nothing is in their way."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from crossward.audits.crafted_weights import ONE_STEP, Reconstruction, attack, measure, reconstruct
from crossward.core.method import Method, answer
from crossward.core.net import Net
from crossward.core.training import Training
from crossward.errors import ConfigError
from crossward.runs.build import prepare
from crossward.testing.attacked_site import tiny_config
from crossward.testing.toy import CLASSES, SIDE, Toy


def perceptron() -> Net:
    body = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, 8), nn.ReLU())
    return Net(body, nn.Linear(8, len(CLASSES)), width=8)


def attacked(run_sites):
    """A question to the first site, its network and its images."""

    def ask(weights):
        return answer(run_sites.method, run_sites.open(0, 0, {}), "train", {"model": weights}, 7)["model"]

    site = run_sites.open(0, 0, {})
    images = torch.cat([x for x, _ in site.train.in_order(256)]).contiguous()
    return ask, site.model, images


@pytest.fixture(scope="module")
def cnn_sites():
    """36 blood smears of 24 x 24 pixels in three colours."""
    settings = {"lr": ONE_STEP.lr, "batch_size": ONE_STEP.batch_size, "epochs": ONE_STEP.epochs}
    return prepare(tiny_config(train=settings)).run_sites


def test_an_image_comes_back_from_convolutions_in_six_questions(cnn_sites):
    recovery = attack(*attacked(cnn_sites))
    assert recovery.questions == 6
    assert recovery.exact == 3 * 21 * 21  # of 3 x 24 x 24: what 5 x 5 patches of the last maps reach
    assert recovery.error < 1e-6 < 0.05 < recovery.mean_error
    assert recovery.succeeds


def test_fewer_questions_read_fewer_pixels(cnn_sites):
    two = attack(*attacked(cnn_sites), questions=2)
    assert two.questions == 2
    assert 0 < two.exact <= 3 * 5 * 25


def test_images_come_back_from_a_linear_layer():
    ask, net, images = attacked(Toy().run_sites(Method(), training=ONE_STEP, net=perceptron))
    recovery = attack(ask, net, images)
    assert recovery.exact == recovery.pixels == SIDE * SIDE
    assert recovery.error < 1e-4 < recovery.mean_error
    read = reconstruct(ask, net, (1, SIDE, SIDE)).images
    hits = {int(n) for n in torch.cdist(read.flatten(1), images.flatten(1)).lt(0.1).nonzero()[:, 1]}
    assert len(hits) >= 6  # half of the site's images at once


def test_noise_on_the_answer_leaves_less_than_the_mean_image(cnn_sites):
    ask, net, images = attacked(cnn_sites)
    rng = torch.Generator().manual_seed(0)

    def noisy(weights):
        return ask(weights).map(lambda w: w + 0.05 * torch.randn(w.shape, generator=rng))

    assert not attack(noisy, net, images).succeeds


def test_several_small_steps_are_no_protection():
    """An image that is alone in its bin stays so from step to step."""
    ask, net, images = attacked(Toy().run_sites(Method(), training=Training(epochs=4, batch_size=4), net=perceptron))
    assert 1e-4 < attack(ask, net, images).error < 1e-2


def test_a_net_that_the_attack_is_not_for():
    with pytest.raises(ConfigError, match="Conv2d, BatchNorm2d"):
        attack(*attacked(Toy().run_sites(Method(), training=ONE_STEP)))


def test_the_measure():
    images = torch.zeros(2, 1, 2, 2)
    images[1] = 2.0
    known = torch.tensor([[True, True], [True, False]])
    found = Reconstruction(torch.tensor([[[[2.0, 2.0], [1.0, 9.0]]]]), known, 3)
    recovery = measure(found, images)
    assert recovery.image == 1
    assert recovery.error == pytest.approx(math.sqrt(1 / 3) / 4)  # one of three known pixels is wrong by 1 of 4
    assert recovery.mean_error == pytest.approx(1 / 4)
    assert (recovery.exact, recovery.pixels, recovery.questions) == (2, 4, 3)
    assert recovery.psnr == pytest.approx(-20 * math.log10(recovery.error))
