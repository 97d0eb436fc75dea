"""Crafted weights on a run: what a hostile coordinator reads out of the answers of its largest site, without the run's
protection and with it (crafted_weights.py has the attacks)."""

from __future__ import annotations

from dataclasses import replace

import torch

from crossward.audits.audited_run import AuditedRun
from crossward.audits.crafted_weights import ONE_STEP, QUESTIONS, Recovery, attack, reconstruct
from crossward.audits.finding import DoesNotApply, Finding, Measurement, NotMeasured
from crossward.core.method import answer
from crossward.core.seeds import derive
from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.hospitals.payload_checks import PayloadChecks
from crossward.runs.sites import RunSites


def crafted(run: AuditedRun) -> Finding:
    run_sites = run.prepared.run_sites
    if "model" not in run_sites.method.discloses:
        raise DoesNotApply(f"{run.method} sends no weights back.")
    if run.config.privacy.secure_aggregation:
        raise NotMeasured(
            "with secure aggregation the coordinator sees sums over sites only; the attack is not built for sums."
        )
    number = max(run_sites.clients, key=lambda each: run_sites.work(each, "train"))
    bare = replace(run_sites, training=ONE_STEP, privacy=None, plugins=())
    try:
        without = _attack(run, bare, number)
    except (ConfigError, KeyError, ValueError) as error:
        reason = error.what if isinstance(error, ConfigError) else f"{run.method} sends a part of the network"
        raise NotMeasured(f"{reason}: another attack may still be possible.") from None
    protected = _attack(run, run_sites, number) if run_sites.privacy is not None else None
    refusal = _refusal(run, bare, number)
    return _finding(run, run_sites.name(number), without, protected, refusal)


class _Refused(Exception):
    """A site does not answer; the message says why."""


def _refusal(run: AuditedRun, run_sites: RunSites, number: int) -> str:
    """Why a hospital with the default limits would refuse the first crafted weights; empty if it would answer them."""
    checks = PayloadChecks(run_sites, number, b"audit")

    def ask(weights: Weights) -> Weights:
        suspicious = [each for each in checks.findings({"model": weights}, first=True) if each.suspicious]
        raise _Refused(str(suspicious[0]) if suspicious else "")

    site = run_sites.open(number, 0, {})
    try:
        reconstruct(ask, site.model, tuple(site.train.take(site.train.index[:1])[0].shape[1:]))  # type: ignore[arg-type]
    except _Refused as reason:
        return str(reason)
    return ""


def _attack(run: AuditedRun, run_sites: RunSites, number: int) -> Recovery:
    start = run.prepared.run_sites.method.broadcast(run.prepared.start)
    seed = derive(run.options.seed, "crafted")
    questions = iter(range(1000))

    def ask(weights: Weights) -> Weights:
        site = run_sites.open(number, next(questions), {})
        reply = answer(run_sites.method, site, "train", start | {"model": weights}, seed)
        returned: Weights = reply["model"]
        return returned

    site = run_sites.open(number, 0, {})
    images = torch.cat([x for x, _ in site.train.in_order(256)]).contiguous()
    return attack(ask, site.model, images)


def _finding(run: AuditedRun, site: str, without: Recovery, protected: Recovery | None, refusal: str) -> Finding:
    measurements = [*_measurements("without protection", without, site)]
    if protected is not None:
        measurements += _measurements("with the run's noise", protected, site)
    text = "Without protection, a coordinator that sends crafted weights reads "
    text += f"{_words(without)} in {without.questions} questions. "
    if protected is not None:
        text += f"With the noise of this run he reads {_words(protected)}."
    else:
        text += "This run has no noise."
    if refusal:
        text += f" A hospital with the default limits does not answer the first question ({refusal})."
    else:
        text += " The default limits of a hospital do not recognise these weights."
    tried = f"The attacker is a hostile coordinator, who sends weights of his own making and asks {QUESTIONS} times. "
    tried += "Without protection he also sets how the site trains (one step on all images); with it, the run does."
    notes = ("The best match among all of the site's training images; one site, no interval.",)
    settings = {"questions": QUESTIONS, "unit": run.config.privacy.unit, "refused_by_default_limits": refusal}
    return Finding("crafted", "", "measured", text, tried, tuple(measurements), notes, settings)


def _measurements(when: str, found: Recovery, site: str) -> tuple[Measurement, ...]:
    how = "best match over all training images of the site: a maximum, without an interval"
    psnr, mean = (min(each, 200.0) for each in (found.psnr, found.mean_psnr))
    return (
        Measurement(f"PSNR of the best match, {when}", psnr, how=how, n=found.questions, unit="dB", baseline=mean,
                    baseline_name="the mean image", site=site),
        Measurement(f"pixels read exactly, {when}", float(found.exact), how=how, n=found.pixels, site=site),
    )  # fmt: skip


def _words(found: Recovery) -> str:
    if not found.succeeds:
        return (
            f"nothing: its best match ({found.psnr:.1f} dB) is no nearer than the mean image ({found.mean_psnr:.1f} dB)"
        )
    return f"{found.exact} of {found.pixels} numbers of a patient's image exactly ({min(found.psnr, 200):.0f} dB)"
