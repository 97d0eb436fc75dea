"""The canary attack on a run: its configuration is run once more, with canaries at the site that has most images."""

from __future__ import annotations

from collections.abc import Mapping

from crossward.audits.audited_run import AuditedRun
from crossward.audits.canaries import CanaryKind, CanaryRun, largest_site, plant, run_with_canaries
from crossward.audits.canary_bound import CanaryBound, bound_from_scores
from crossward.audits.finding import DoesNotApply, Finding, Measurement, NotMeasured
from crossward.audits.gradient_canaries import run_with_gradient_canaries
from crossward.config.reading import config_from
from crossward.core.seeds import derive
from crossward.runs.build import assemble

LEVEL = 0.95
WORDS: Mapping[str, str] = {
    "gradients": "units whose gradient is one coordinate of the weights",
    "mislabelled": "held-out images with a wrong class",
    "spots": "grey images with one bright pixel",
}


def canary(run: AuditedRun) -> Finding:
    options = run.options
    if run.config.privacy.unit == "site":
        raise DoesNotApply("the run protects whole sites; canaries are single images and do not test its epsilon.")
    if run.about["pooled"]:
        raise DoesNotApply("all images were in one place: nothing leaves a site from which canaries could be read.")
    if not options.canaries:
        seconds = float(run.result.summary["seconds"])
        raise NotMeasured(f"the run must be repeated for it, at about {seconds:.0f} s: --canaries 128.")
    kind = _kind(run)
    site = largest_site(run.federation)
    seed = derive(options.seed, "canary run") % 2**31
    settings = run.config.canonical()
    settings["run"] |= {"seed": seed}
    settings["engine"] |= {"name": "local"}
    config = config_from(settings)
    if kind == "gradients":
        watched = run_with_gradient_canaries(assemble(config, run.federation), site, options.canaries, seed)
    else:
        planted = plant(run.federation, site, options.canaries, kind, seed)
        watched = run_with_canaries(assemble(config, planted.federation), planted)
    bound = bound_from_scores(watched.scores, watched.included, watched.delta, level=LEVEL)
    return _finding(kind, watched, bound, run.federation.sites[site].name)


def _kind(run: AuditedRun) -> CanaryKind:
    """Gradients where noise on gradients is to be tested, else images."""
    wanted = run.options.canary_kind
    if wanted == "auto":
        return "gradients" if run.config.privacy.unit in ("image", "patient") else "mislabelled"
    return wanted


def _finding(kind: CanaryKind, watched: CanaryRun, bound: CanaryBound, site: str) -> Finding:
    claimed = watched.epsilon
    how = f"a lower bound at {bound.level:.0%}, from one training run (Steinke et al. 2023)"
    measurements = (
        Measurement(
            "epsilon that is refuted", bound.epsilon, level=bound.level, how=how, n=bound.guesses, baseline=claimed,
            baseline_name="" if claimed is None else "claimed epsilon", site=site,
        ),
        Measurement(
            "right guesses", bound.accuracy, n=bound.guesses, baseline=0.5, baseline_name="guessing", site=site,
            how="the surest guesses; their interval is that of epsilon",
        ),
    )  # fmt: skip
    settings = {
        "canaries": bound.canaries, "kind": kind, "planted": int(watched.included.sum()),
        "seen": watched.seen, "delta": watched.delta, "claimed_epsilon": claimed,
    }  # fmt: skip
    return Finding(
        "canary",
        "Canaries",
        "measured",
        _words(bound, claimed),
        f"{bound.canaries} canaries ({WORDS[kind]}) were planted at one site, each with a chance of one half. "
        f"The attacker is the coordinator, who knows every canary and sees {watched.seen}.",
        measurements,
        ("A bound below the claim does not prove the claim: it only fails to refute it.",),
        settings,
    )


def _words(bound: CanaryBound, claimed: float | None) -> str:
    text = f"From what leaves the site, {bound.right} of {bound.guesses} guesses about canaries were right. "
    shown = f"{bound.epsilon:.2f}"
    if claimed is None:
        if bound.epsilon == 0:
            return text + "That is no better than chance; the run has no noise, so it promises nothing either."
        return text + f"No promise with an epsilon below {shown} would be true; the run has no noise, and makes none."
    if bound.epsilon == 0:
        return text + f"That is no better than chance, and agrees with the promised epsilon of {claimed:.2f}."
    if bound.epsilon <= claimed:
        return text + f"That refutes an epsilon below {shown}, and agrees with the promised {claimed:.2f}."
    return text + f"THAT REFUTES THE PROMISE: epsilon is at least {shown}, and the noise promises {claimed:.2f}."
