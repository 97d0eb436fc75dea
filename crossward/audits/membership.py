"""Membership inference: can somebody who has the network and an image tell whether it was trained on?

Two attacks. The loss attack (Yeom et al., CSF 2018, https://arxiv.org/abs/1709.01604) takes an image for a member if
the network is sure of its class. RMIA (Zarifzadeh, Liu, Shokri, Low-Cost High-Power Membership Inference Attacks, ICML
2024, https://arxiv.org/abs/2312.03262) asks in addition a reference network that never saw the image, and other images
z of the population: in its offline form with one reference network

    ratio(x) = P(x | theta) / ((1 + a)/2 P(x | reference) + (1 - a)/2)        a = 0.3
    score(x) = share of z with ratio(x) / ratio(z) > gamma                    gamma = 1, as in the authors' code

P(x | theta) is the probability of the true class; of several labels or pixels, the geometric mean over them. With one
gamma for all, the score is a rising function of the ratio: images of the same score are ordered by their ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from crossward.audits.audited_run import AuditedRun
from crossward.audits.finding import Finding, Measurement, NotMeasured
from crossward.audits.reference_run import Reference, open_reference
from crossward.comparison.intervals import LEVEL, Estimate, seeds_and_images_estimate, within_fractions
from crossward.comparison.operating_points import sensitivity_at_specificity
from crossward.comparison.resampling import RESAMPLES, draw
from crossward.comparison.weighted_metrics import Array, weighted_aucs
from crossward.core.seeds import derive
from crossward.data.federation import Split
from crossward.runs.deployed import Deployed

OFFLINE_A = 0.3  # the authors' choice for small images
GAMMA = 1.0  # as in the authors' code
FALSE_ALARMS = (0.01, 0.001)
FEWEST_PER_ALARM = 1  # non-members that a false-alarm rate must allow to be wrong at least
FEWEST = 10  # images on either side, below which nothing is computed
MOST = 4000  # images of a site on either side
MOST_POPULATION = 2000


@dataclass(frozen=True)
class Suspects:
    """The images of one site, or of all, with what each attack makes of them."""

    site: str
    ids: tuple[str, ...]
    member: Array  # (n,) bool
    loss: Array  # (n,) score of the loss attack
    rmia: Array | None = None  # (n,) score of RMIA; None: there is no reference network
    ratio: Array | None = None  # (n,) what RMIA compares, which orders images of the same score


# the attacks ----------------------------------------------------------------------------------------------------------
def log_confidences(network: Deployed, images: Tensor, targets: Tensor) -> Array:
    """(n,) the logarithm of the probability that the network gives to the truth; the mean over labels or pixels."""
    parts = []
    start = 0
    with torch.inference_mode():
        for x in network.inputs(images):
            y = targets[start : start + len(x)].long()
            logits = network.logits(x).double().cpu()
            if network.task == "multi-label":
                signs = 2 * y.double() - 1
                parts.append(F.logsigmoid(signs * logits).mean(1))
            else:
                likelihood = logits.log_softmax(1).gather(1, y[:, None])[:, 0]
                parts.append(likelihood.flatten(1).mean(1) if likelihood.ndim > 1 else likelihood)
            start += len(x)
    return np.asarray(torch.cat(parts).clone().numpy())


def rmia_ratios(target: Array, reference: Array, a: float = OFFLINE_A) -> Array:
    """How much likelier an image is to the network than to the population, from both networks' probabilities."""
    return np.asarray(target / ((1 + a) / 2 * reference + (1 - a) / 2))


def rmia_scores(ratios: Array, population: Array, gamma: float = GAMMA) -> Array:
    """The share of the population that each image outdoes by the factor gamma."""
    return np.asarray((ratios[:, None] / population[None] > gamma).mean(1))


def ordered(scores: Array, ties: Array) -> Array:
    """(n,) ranks by score, and by `ties` among equal scores."""
    pairs = np.stack([scores, ties], axis=1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).astype(np.float64)


# figures --------------------------------------------------------------------------------------------------------------
def auc_estimate(scores: Array, member: Array, ids: Sequence[str], groups: Mapping[str, str], seed: int) -> Estimate:
    """The probability that a member has a higher score than another image, over resampled patients."""
    sides = [[name for name, inside in zip(ids, member, strict=True) if inside == side] for side in (True, False)]
    resampling = draw(sides, groups, seed=seed)
    order = [*np.flatnonzero(member), *np.flatnonzero(~member)]
    weights = np.concatenate([np.ones((1, len(ids))), resampling.weights([ids[i] for i in order])])
    drawn = weighted_aucs(scores[order][:, None], member[order][:, None], weights)[0]
    estimate = seeds_and_images_estimate("AUC", [float(drawn[0])], drawn[None, 1:], resampling, level=LEVEL)
    return within_fractions(estimate)


def attack_figures(
    attack: str, scores: Array, suspects: Suspects, groups: Mapping[str, str], seed: int
) -> Iterator[Measurement]:
    """AUC, and the share of members found at each false-alarm rate."""
    member = suspects.member
    outside = int((~member).sum())
    auc = auc_estimate(scores, member, suspects.ids, groups, seed)
    facts: dict[str, Any] = {"n": len(member), "site": suspects.site, "baseline_name": "guessing"}
    yield Measurement.of(f"{attack}: AUC", auc, baseline=0.5, **facts)
    for rate in FALSE_ALARMS:
        name = f"{attack}: members found at {100 * rate:g} % false alarms"
        if outside * rate < FEWEST_PER_ALARM:
            how = f"{outside} images that were not trained on are too few for a rate of {100 * rate:g} %"
            yield Measurement(name, None, how=how, baseline=rate, **facts)
            continue
        point = sensitivity_at_specificity(
            scores, member, 1 - rate, ids=suspects.ids, groups=groups, resamples=RESAMPLES, seed=seed
        )
        yield Measurement.of(name, point.sensitivity, baseline=rate, **facts)


# on a run -------------------------------------------------------------------------------------------------------------
def membership(run: AuditedRun) -> Finding:
    reference, why_not = open_reference(run)
    found = list(_suspects(run, reference))
    if len(found) > 1:
        found.append(_together(found))
    seed = derive(run.options.seed, "membership") % 2**32
    measurements: list[Measurement] = []
    for suspects in found:
        measurements += attack_figures("loss", suspects.loss, suspects, run.groups, seed)
        if suspects.rmia is not None:
            assert suspects.ratio is not None
            ranks = ordered(suspects.rmia, suspects.ratio)
            measurements += attack_figures("RMIA", ranks, suspects, run.groups, seed)
    notes = [
        "Intervals are over images (over patients where they are known) for this trained network. Images with a twin "
        "on the other side count as they are."
    ]
    if why_not:
        notes.append(f"RMIA was not measured: {why_not}")
    settings: dict[str, Any] = {"which": run.options.which, "a": OFFLINE_A, "gamma": GAMMA}
    if reference is not None:
        settings["reference"] = reference.name
    return Finding(
        "membership",
        "Was this image trained on?",
        "measured",
        _words(measurements),
        "The attacker has the network that is deployed, the image and its class. Members are training images of a "
        "site, the others its test images; RMIA also asks a reference network that saw neither.",
        tuple(measurements),
        tuple(notes),
        settings,
    )


def _suspects(run: AuditedRun, reference: Reference | None) -> Iterator[Suspects]:
    collection = run.federation.collection
    population = _population(run, reference)
    usable = 0
    for split, network in run.networks():
        members, others = (_attacked(run, split, part, reference) for part in ("train", "test"))
        if min(len(members), len(others)) < FEWEST:
            continue
        usable += 1
        rows = torch.cat([members, others])
        loss = log_confidences(network, collection.images[rows], collection.targets[rows])
        member = np.arange(len(rows)) < len(members)
        suspects = Suspects(split.name, tuple(collection.ids[row] for row in rows.tolist()), member, loss)
        if reference is not None:
            scores, ratio = _rmia(network, reference.network(split.name), run, rows, population)
            suspects = replace(suspects, rmia=scores, ratio=ratio)
        yield suspects
    if not usable:
        raise NotMeasured(f"no site has {FEWEST} training images and {FEWEST} test images that the attack can use")


def _attacked(run: AuditedRun, split: Split, part: str, reference: Reference | None) -> Tensor:
    rows: Tensor = getattr(split, part)
    if reference is not None:
        rows = rows[~torch.isin(rows, reference.trained)]
    return run.some(rows, MOST, f"membership {split.name} {part}")


def _population(run: AuditedRun, reference: Reference | None) -> Tensor:
    """Images that neither network trained on."""
    server = run.federation.server
    rows = torch.cat([server.val, server.test, *(split.val for split in run.federation.sites)])
    if reference is not None:
        rows = rows[~torch.isin(rows, reference.trained)]
        if not len(rows):
            raise NotMeasured("RMIA needs validation images, or a test set of the whole federation, as its population")
    return run.some(rows, MOST_POPULATION, "population")


def _rmia(network: Deployed, reference: Deployed, run: AuditedRun, rows: Tensor, z: Tensor) -> tuple[Array, Array]:
    collection = run.federation.collection

    def ratios(which: Tensor) -> Array:
        images, targets = collection.images[which], collection.targets[which]
        target, other = (np.exp(log_confidences(each, images, targets)) for each in (network, reference))
        return rmia_ratios(target, other)

    suspected = ratios(rows)
    return rmia_scores(suspected, ratios(z)), suspected


def _together(found: Sequence[Suspects]) -> Suspects:
    """All sites as one."""
    rmia = [each.rmia for each in found if each.rmia is not None]
    ratio = [each.ratio for each in found if each.ratio is not None]
    return Suspects(
        "",
        tuple(name for each in found for name in each.ids),
        np.concatenate([each.member for each in found]),
        np.concatenate([each.loss for each in found]),
        np.concatenate(rmia) if rmia else None,
        np.concatenate(ratio) if ratio else None,
    )


def _words(measurements: Sequence[Measurement]) -> str:
    """The strongest attack, over all sites if there are several."""
    sites = {each.site for each in measurements}
    whole = [each for each in measurements if each.site == ("" if "" in sites else next(iter(sites)))]
    attack = "RMIA" if any(each.name.startswith("RMIA") for each in whole) else "loss"
    auc, hundredth, _ = (each for each in whole if each.name.startswith(attack))
    better = auc.low is not None and auc.low > 0.5
    first = "better than" if better else "not measurably better than"
    text = f"An attacker who has the network tells trained images from others {first} by guessing "
    text += f"(right for {auc.interval} of pairs, guessing for 0.5)"
    if hundredth.value is not None and hundredth.low is not None and hundredth.high is not None:
        text += f"; if 1 in 100 of the others may be accused wrongly, {100 * hundredth.value:.1f} in 100 trained "
        text += f"images are recognised ({100 * hundredth.low:.1f} to {100 * hundredth.high:.1f}, guessing 1)"
    return f"{text}."
