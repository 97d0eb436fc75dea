"""Gradient inversion: the coordinator looks for images whose gradient is the one that a site sent after one step.

Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, https://arxiv.org/abs/1906.08935; Geiping et al., Inverting
Gradients, NeurIPS 2020, https://arxiv.org/abs/2003.14053: images from noise, moved by Adam so that the cosine between
their gradient and the true one grows, with total variation as the prior.

All is made easy for the attacker: he knows the classes of the images, the weights are those before round 1, where
gradients tell most, BatchNorm takes its running statistics, and the site takes one step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from crossward.audits.audited_run import AuditedRun
from crossward.audits.finding import DoesNotApply, Finding, Measurement
from crossward.audits.likeness import mean_estimate, pixels, psnr, ssim
from crossward.audits.picture_files import write_pairs
from crossward.audits.site_loss import SiteLoss, site_loss, with_classifier
from crossward.core.disclosure import HOLDS_WEIGHTS, DisclosureKind
from crossward.core.gradient_descent import minimise
from crossward.core.net import Net
from crossward.core.site import Site
from crossward.core.weights import Weights
from crossward.privacy.noise import clip_factors, gaussian_like, noisy_update
from crossward.privacy.settings import PrivacySettings

SINGLES = 6  # images that are attacked one by one
STEPS = 400  # of the search, at most
PROBED = 3  # steps whose time is taken, to see how many fit
FEWEST_STEPS = 20
RATE = 0.1  # of Adam
VARIATION = 1e-3  # weight of the total variation
LARGEST_BATCH = 32


@dataclass(frozen=True)
class Target:
    """What the attacker has: a network, the gradient of a batch, and the classes in it."""

    net: Net
    loss: SiteLoss
    gradient: Sequence[Tensor]
    labels: Tensor


def gradient_of(net: Net, loss: SiteLoss, x: Tensor, y: Tensor, *, differentiable: bool = False) -> tuple[Tensor, ...]:
    """The gradient of the mean loss in every trained parameter."""
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss(net, net.features(x), y), trained, create_graph=differentiable, allow_unused=True)
    return tuple(torch.zeros_like(p) if g is None else g for g, p in zip(found, trained, strict=True))


def invert(target: Target, shape: tuple[int, ...], steps: int, rng: torch.Generator, most: float = 2.0) -> Tensor:
    """(B, C, H, W) images from the gradient; pixels stay within -most and most."""
    x = nn.Parameter(torch.randn(len(target.labels), *shape, generator=rng))
    norm = torch.stack([g.square().sum() for g in target.gradient]).sum().sqrt()

    def objective() -> Tensor:
        with torch.no_grad():
            x.clamp_(-most, most)
        made = gradient_of(target.net, target.loss, x, target.labels, differentiable=True)
        product = torch.stack([(a * b).sum() for a, b in zip(made, target.gradient, strict=True)]).sum()
        own = torch.stack([g.square().sum() for g in made]).sum().sqrt()
        return 1 - product / (own * norm).clamp_min(1e-12) + VARIATION * total_variation(x)

    minimise(objective, [x], steps, lr=RATE, schedule="cosine", what="gradient inversion")
    return x.detach().clamp(-most, most)


def total_variation(x: Tensor) -> Tensor:
    across = (x[..., 1:] - x[..., :-1]).abs().mean()
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    return across + down


def protected_gradient(
    net: Net, loss: SiteLoss, x: Tensor, y: Tensor, privacy: PrivacySettings, noise: float, rng: torch.Generator
) -> tuple[Tensor, ...]:
    """The gradient as it leaves a site: as it is, or clipped for each image and noised, or clipped and noised whole."""
    if privacy.unit is None:
        return gradient_of(net, loss, x, y)
    deviation = noise * privacy.bound
    if privacy.unit == "site":
        whole = Weights({str(k): g for k, g in enumerate(gradient_of(net, loss, x, y))})
        return tuple(noisy_update(whole, privacy.clip, deviation, rng).values())
    total: list[Tensor] = []
    for image, label in zip(x.split(1), y.split(1), strict=True):
        own = gradient_of(net, loss, image, label)
        length = torch.stack([g.square().sum() for g in own]).sum().sqrt()
        clipped = [g * clip_factors(length, privacy.clip) for g in own]
        total = [a + b for a, b in zip(total, clipped, strict=True)] if total else clipped
    return tuple((g + gaussian_like(g, deviation, rng)) / len(x) for g in total)


# on a run -------------------------------------------------------------------------------------------------------------
def inversion(run: AuditedRun) -> Finding:
    method = run.prepared.run_sites.method
    kinds = {about.kind for about in method.discloses.values()}
    if not kinds & {*HOLDS_WEIGHTS, DisclosureKind.GRADIENTS}:
        raise DoesNotApply(f"{run.method} sends neither weights nor gradients.")
    if run.task != "classification":
        raise DoesNotApply(f"the attack takes the class of an image as known; this is {run.task}.")
    site = _opened_site(run)
    attacker = _Attacker(run, site)
    chosen = run.some(site.train.index, SINGLES, "inversion")
    singles = [attacker.attack(row[None]) for row in chosen.split(1) for row in row]
    batch_rows = run.some(site.train.index, min(run.config.train.batch_size, LARGEST_BATCH), "inversion batch")
    batch = attacker.attack(batch_rows, share=0.5)
    if run.options.images:
        pairs = [(attempt.truth[0], attempt.made[0]) for attempt in singles]
        write_pairs(run.result.folder, "inversion", pairs, ("image of a patient", "from its gradient"))
    return _finding(run, site, singles, batch, attacker.noise)


def _opened_site(run: AuditedRun) -> Site:
    """The largest site before round 1, with the network that it would be sent."""
    run_sites = run.prepared.run_sites
    number = max(run_sites.clients, key=lambda each: run_sites.work(each, "train"))
    site = run_sites.open(number, 0, {})
    start = run.prepared.start.get("model")
    if isinstance(start, Weights):
        start.into(site.model)
    with_classifier(site.model, run_sites.method, run.prepared.start)
    site.model.eval()
    return site


@dataclass(frozen=True)
class Attempt:
    """The images of a batch and what was made of them, from 0 to 1."""

    truth: Tensor
    made: Tensor
    guess: Tensor  # (C, H, W) the mean image, which needs no attack
    steps: int

    def best_match(self) -> tuple[float, float, float]:
        """PSNR and SSIM of the pair that is most alike, and the PSNR of the mean image with the image that it is most
        alike."""
        pairs = [(psnr(a, b), i, j) for i, a in enumerate(self.truth) for j, b in enumerate(self.made)]
        value, i, j = max(pairs)
        return value, ssim(self.truth[i], self.made[j]), max(psnr(a, self.guess) for a in self.truth)


class _Attacker:
    def __init__(self, run: AuditedRun, site: Site) -> None:
        self.run, self.site = run, site
        privacy = run.config.privacy
        plan = run.prepared.run_sites.privacy
        self.noise = plan.sites[site.name].noise if plan is not None else 0.0
        self.privacy = privacy
        self.loss = site_loss(run.prepared.run_sites.method, site.task)
        self.rng = run.rng("inversion")
        held_out = site.test if len(site.test) else site.train
        self.guess = pixels(held_out.take(run.some(held_out.index, 256, "mean image"))[0], site.train).mean(0)

    def attack(self, rows: Tensor, share: float = 0.5 / SINGLES) -> Attempt:
        """Attack one batch, in at most this share of the time."""
        net = self.site.model
        x, y = self.site.train.take(rows)
        gradient = protected_gradient(net, self.loss, x, y, self.privacy, self.noise, self.rng)
        target = Target(net, self.loss, tuple(g.detach() for g in gradient), y)
        shape = tuple(x.shape[1:])
        began = time.perf_counter()
        invert(target, shape, PROBED, self.rng)
        each = (time.perf_counter() - began) / PROBED
        steps = int(min(STEPS, max(FEWEST_STEPS, share * self.run.options.seconds / each)))
        made = invert(target, shape, steps, self.rng)
        return Attempt(pixels(x, self.site.train), pixels(made, self.site.train), self.guess, steps)


def _finding(run: AuditedRun, site: Site, singles: Sequence[Attempt], batch: Attempt, noise: float) -> Finding:
    figures = [attempt.best_match() for attempt in singles]
    found = mean_estimate("PSNR", [each[0] for each in figures])
    gain = mean_estimate("gain", [each[0] - each[2] for each in figures])
    structure = mean_estimate("SSIM", [each[1] for each in figures])
    guessed = sum(each[2] for each in figures) / len(figures)
    guessed_structure = sum(ssim(a.truth[0], a.guess) for a in singles) / len(singles)
    together = batch.best_match()
    count = len(batch.truth)
    name = site.name
    how = "one batch: the pair that is most alike, no interval"
    mean_image: dict[str, Any] = {"baseline_name": "the mean image", "site": name}
    measurements = (
        Measurement.of("PSNR, one image", found, len(singles), unit="dB", baseline=guessed, **mean_image),
        Measurement.of("SSIM, one image", structure, len(singles), baseline=guessed_structure, **mean_image),
        Measurement.of("gain, one image", gain, len(singles), unit="dB", baseline=0.0, **mean_image),
        Measurement(f"PSNR, best of a batch of {count}", together[0], how=how, n=count, unit="dB",
                    baseline=together[2], **mean_image),
        Measurement(f"SSIM, best of a batch of {count}", together[1], how=how, n=count, site=name),
    )  # fmt: skip
    notes = ["A search that ends after a bounded time: a longer one, or a cleverer one, may find more."]
    if run.config.privacy.secure_aggregation:
        notes.append("With secure aggregation the coordinator sees sums over sites only; here he saw this site's own.")
    settings = {
        "steps": [attempt.steps for attempt in (*singles, batch)], "rate": RATE, "variation": VARIATION,
        "unit": run.config.privacy.unit, "clip": run.config.privacy.clip, "noise": noise,
    }  # fmt: skip
    words = _words(measurements, gain.low is not None and gain.low > 0, run.config.privacy.unit is not None)
    tried = (
        "The attacker is the coordinator, who sees the gradient of one step and knows the classes of its images. He "
    )
    tried += "looks for images with the same gradient (cosine, total variation), from the weights before round 1."
    return Finding("inversion", "", "measured", words, tried, measurements, tuple(notes), settings)


def _words(measurements: Sequence[Measurement], works: bool, noised: bool) -> str:
    single, _, _, batch, _ = measurements
    after = "after clipping and noise" if noised else "as it leaves the site"
    verdict = "more than" if works else "no more than"
    text = (
        f"From the gradient of a single image, {after}, an attacker sees {verdict} from the mean image of all patients "
    )
    text += f"({single.interval}; the mean image {single.baseline:.3g} dB). "
    return (
        text + f"From a batch of {batch.n}, the best of {batch.n} comes to {batch.value:.3g} dB ({batch.baseline:.3g})."
    )
