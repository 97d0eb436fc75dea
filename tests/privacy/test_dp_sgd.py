"""DP-SGD: Poisson sampling of images or patients, clipped gradients as one by one, noise as claimed, nothing changed
where it is off."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from crossward.core.method import Method
from crossward.core.net import Net
from crossward.core.training import Training
from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.privacy.accounting import Release
from crossward.privacy.dp_sgd import DPSGD, PatientRows
from crossward.testing.toy import CLASSES, SIDE, Toy, linear


def network() -> Net:
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten())
    return Net(body, nn.Linear(4 * (SIDE - 2) ** 2, len(CLASSES)), width=4 * (SIDE - 2) ** 2)


def protection(spent=None, **changes):
    spend = lambda release, part: None if spent is None else spent.append((release, part))
    settings = {"unit": "image", "clip": 1.0, "sensitivity": 1.0, "noise": 1e-9, "batch_size": 6, "units": 20}
    return DPSGD(**{**settings, "spend": spend, "secret": False, **changes})


def site_with(privacy, net=network, training=None, task="classification"):
    training = training or Training(epochs=1, batch_size=6, lr=0.1)
    site = Toy(task=task).run_sites(Method(), net=net, training=training).open(1, 0, {}, fresh=True)
    site.privacy = privacy
    site.rng.manual_seed(5)
    return site


def test_a_step_is_the_sum_of_clipped_gradients_over_the_expected_batch():
    privacy = protection(clip=0.3, sensitivity=0.3)
    site = site_with(privacy)
    before = Weights.of(site.model).map(torch.clone)
    batches = list(replace(privacy, spend=lambda release, part: None).batches(site, 1))
    model = site.model
    expected = before
    for x, y in batches:
        expected.into(model)
        total = expected.zeros()
        for i in range(len(x)):
            model.zero_grad()
            F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
            own = Weights({n: p.grad.clone() for n, p in model.named_parameters()})
            total = total + own * min(1.0, 0.3 / own.norm().item())
        expected = expected - total * (0.1 / 6)
    model.zero_grad()
    before.into(model)
    fit = site.fit()
    assert fit.steps == 4
    for name, weight in Weights.of(model).items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-5)


def test_noise_on_a_step_has_the_claimed_variance():
    """With a rate that draws nobody as often as not, and weights that do not move, only noise is left."""
    privacy = protection(noise=2.0, clip=0.5, sensitivity=0.5, batch_size=5)
    site = site_with(privacy, training=Training(epochs=60, batch_size=5, lr=1.0))
    seen = []
    empty = [(x[:0], y[:0]) for x, y in privacy.batches(site, 60)]
    object.__setattr__(privacy, "batches", lambda site, epochs: iter(empty))
    site.fit(edit_gradients=lambda g: seen.append(torch.cat([t.flatten() for t in g.values()])) or g)
    noise = torch.stack(seen).double().flatten() / (2.0 * 0.5 / 5)
    p = stats.chi2.cdf(float(noise.square().sum()), len(noise))
    assert len(noise) > 50_000
    assert 5e-5 < p < 1 - 5e-5


def test_sampling_is_poisson():
    """Each image comes with probability q, on its own: sizes are binomial, images uncorrelated."""
    privacy = protection(units=40, batch_size=10)
    rng = torch.Generator().manual_seed(0)
    draws = 4000
    seen = torch.zeros(draws, 40)
    for k in range(draws):
        seen[k, privacy.draw(rng)] = 1
    sizes = torch.bincount(seen.sum(1).long(), minlength=41)
    expected = stats.binom.pmf(range(41), 40, 0.25) * draws
    keep = expected > 5
    statistic = ((sizes.numpy()[keep] - expected[keep]) ** 2 / expected[keep]).sum()
    assert stats.chi2.sf(statistic, keep.sum() - 1) > 1e-4
    per_image = (seen.sum(0) - draws * 0.25) / (draws * 0.25 * 0.75) ** 0.5
    assert per_image.square().sum() < stats.chi2.ppf(1 - 1e-4, 40)
    correlation = torch.corrcoef(seen.T) - torch.eye(40)
    assert correlation.abs().max() < 6 / draws**0.5


def test_a_patient_shows_one_image_at_most_and_each_as_often():
    patients = torch.tensor([7, 7, 7, 3, 3, 9])
    privacy = protection(unit="patient", units=3, batch_size=2, patients=PatientRows.of(patients))
    rng = torch.Generator().manual_seed(0)
    counts = torch.zeros(6)
    for _ in range(3000):
        drawn = privacy.draw(rng)
        assert len({*patients[drawn].tolist()}) == len(drawn)
        counts[drawn] += 1
    expected = torch.tensor([2 / 9] * 3 + [1 / 3] * 2 + [2 / 3]) * 3000
    assert ((counts - expected).square() / expected).sum() < stats.chi2.ppf(1 - 1e-4, 6)


def test_the_images_of_a_patient_share_his_weight_in_sums():
    assert PatientRows.of(torch.tensor([7, 3, 7, 9, 7])).weights.tolist() == pytest.approx([1 / 3, 1, 1 / 3, 1, 1 / 3])


def test_steps_are_counted_before_the_first_is_drawn():
    spent = []
    privacy = protection(spent, noise=1.5)
    site = site_with(privacy)
    batches = privacy.batches(site, 3)
    next(batches)
    assert spent == [(Release(1.5, 0.3, 12), "fit 0")]
    assert len(list(batches)) == 11


def test_a_budget_that_is_spent_stops_the_fit_before_it_moves():
    def refuse(release, part):
        raise ConfigError("spent")

    site = site_with(protection(spend=refuse, noise=1.0))
    before = Weights.of(site.model).map(torch.clone)
    with pytest.raises(ConfigError, match="spent"):
        site.fit()
    assert all(torch.equal(w, before[n]) for n, w in Weights.of(site.model).items())


def test_a_simulation_repeats_its_noise_and_a_site_never_does():
    def weights(secret):
        site = site_with(protection(noise=1.0, secret=secret), net=linear)
        with torch.no_grad():
            for parameter in site.model.parameters():
                parameter.zero_()
        site.fit()
        return torch.cat([w.flatten() for w in Weights.of(site.model).values()])

    assert torch.equal(weights(False), weights(False))
    assert not torch.allclose(weights(True), weights(True))


def test_two_fits_of_a_step_have_different_noise():
    site = site_with(protection(noise=1.0, clip=1e-6, sensitivity=1.0), net=linear)
    start = Weights.of(site.model).map(torch.clone)
    moved = []
    for _ in range(2):
        start.into(site.model)
        site.fit()
        moved.append(Weights.of(site.model) - start)
    assert not torch.allclose(moved[0]["head.weight"], moved[1]["head.weight"])


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (lambda site: site.fit(batches=site.batches()), "batches of its own"),
        (lambda site: site.fit(also=[nn.Parameter(torch.zeros(2))]), "parameters outside"),
        (lambda site: site.fit(lambda out: (out.z @ site.model.head.weight.T).square().mean()), "otherwise than"),
        (lambda site: site.fit(lambda out: (out.logits - out.logits.mean(0)).square().sum()), "mixes images"),
    ],
    ids=["batches", "parameters", "weights", "mixed"],
)
def test_fits_whose_gradients_cannot_be_bounded_are_refused(fit, words):
    with pytest.raises(ConfigError, match=words):
        fit(site_with(protection()))


def test_the_dice_loss_of_a_batch_is_checked():
    net = lambda: Net(nn.Conv2d(1, 5, 3, padding=1), nn.Conv2d(5, len(CLASSES), 1), 5)
    site = site_with(protection(), net=net, task="segmentation")
    site.fit(lambda out: F.cross_entropy(out.logits, out.y))
    assert site.fits[-1].steps == 4


def test_mixed_precision_is_refused():
    with pytest.raises(ConfigError, match=r"train\.amp"):
        site_with(protection(), training=Training(batch_size=6, amp=True)).fit()


def test_batchnorm_is_refused_by_name():
    with pytest.raises(ConfigError, match="BatchNorm2d"):
        site_with(protection(), net=None).fit()


def test_a_sensitivity_below_the_clip_is_refused():
    with pytest.raises(ConfigError, match="smaller than the clip"):
        protection(clip=1.0, sensitivity=0.5)


def test_augmented_images_and_personal_parts_train():
    site = site_with(protection(noise=0.5))
    site.train = replace(site.train, augment=lambda x, y, rng: (x + torch.rand(x.shape, generator=rng) * 0.01, y))
    before = Weights.of(site.model).map(torch.clone)
    from crossward.core import select

    site.fit(params=select.head)
    assert torch.equal(Weights.of(site.model)["body.0.weight"], before["body.0.weight"])
    assert not torch.equal(Weights.of(site.model)["head.weight"], before["head.weight"])
