"""RunPrivacy: how the sites of a run protect their images: the noise of each, and the ledger that counts it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from crossward.core.seeds import stream
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.errors import ConfigError
from crossward.privacy.accounting import Release, check_delta, epsilon_of, noise_for
from crossward.privacy.dp_sgd import DPSGD, PatientRows
from crossward.privacy.ledger import LEDGER_FILE, Budget, PrivacyLedger
from crossward.privacy.noise import noisy_update, secret_generator
from crossward.privacy.settings import PrivacySettings

UNITS = {"image": "images", "patient": "patients", "site": "sites"}


@dataclass(frozen=True)
class SiteProtection:
    """What protects one site."""

    noise: float
    units: int  # images or patients that it trains on; 1 where the site itself is the unit
    planned: Release  # the steps of the whole run
    patients: PatientRows | None = None
    statistics: Mapping[str, Release] = field(default_factory=dict)  # kind -> those of the whole run

    @property
    def releases(self) -> tuple[Release, ...]:
        """All that the run plans."""
        return (self.planned, *self.statistics.values())


@dataclass(frozen=True)
class RunPrivacy:
    """The protection of every site of a run, and where it is counted."""

    settings: PrivacySettings
    batch_size: int
    sites: Mapping[str, SiteProtection]
    folder: Path | None = None  # of the ledgers, one below for each site; None: nothing is counted
    own_folder: bool = False  # it is the folder of the one site that there is here
    run: str = ""
    secret: bool = False  # noise that nobody can repeat, at real sites
    budget: Budget | None = field(default=None, repr=False)

    def ledger(self, site: str) -> PrivacyLedger | None:
        if self.folder is None:
            return None
        folder = self.folder if self.own_folder else self.folder / quote(site, safe=" ")
        return PrivacyLedger(folder / LEDGER_FILE, site, self.budget)

    def attach(self, site: Site) -> None:
        """Protect what the site does in the step that it is opened for."""
        unit = self.settings.unit
        if site.name not in self.sites or unit is None:
            return
        protection = self.sites[site.name]
        spend = partial(self._spend, site)
        if unit == "site":
            site.protect_reply = partial(self._noisy_reply, site, protection, spend)
            return
        site.privacy = DPSGD(
            unit=unit,
            clip=self.settings.clip,
            sensitivity=self.settings.bound,
            noise=protection.noise,
            batch_size=self.batch_size,
            units=protection.units,
            spend=spend,
            patients=protection.patients,
            secret=self.secret,
            feature_clip=self.settings.feature_clip,
            statistics_noise={kind: release.noise for kind, release in protection.statistics.items()},
        )

    def _spend(self, site: Site, release: Release, part: str) -> None:
        """Count a part of a step. The seed of a step tells it from others of its round, and stays if it is repeated."""
        ledger = self.ledger(site.name)
        unit = self.settings.unit
        if ledger is not None and unit is not None:
            step = f"{part}, step {site.rng.initial_seed():016x}"
            repeats = not self.secret
            ledger.spend(release, unit=unit, run=self.run, round=site.round + 1, part=step, repeats=repeats)

    def _noisy_reply(
        self, site: Site, protection: SiteProtection, spend: Callable[[Release, str], None], down: Tree, reply: Tree
    ) -> Tree:
        """The reply with its network clipped to the clip's distance from the one that came down, and noised; every site
        counts the same, because its number of images would tell of it."""
        spend(Release(protection.noise, 1.0, 1, sampled=False), "update")
        rng = secret_generator() if self.secret else stream(site.rng, "privacy update")
        model: Weights = reply["model"]
        start = down["model"].only(model)
        deviation = protection.noise * self.settings.bound
        noisy = noisy_update(model - start, self.settings.clip, deviation, rng)
        return reply | {"model": start + noisy} | ({"n": 1} if "n" in reply else {})

    # what people read -------------------------------------------------------------------------------------------------
    def facts(self) -> dict[str, Any]:
        """Unit, delta, clip, and of each site the noise and the epsilon: of the whole plan, and spent so far."""
        settings = self.settings
        sites = {}
        for name, protection in self.sites.items():
            ledger = self.ledger(name)
            sites[name] = {
                "units": protection.units,
                "noise": protection.noise,
                "rate": protection.planned.rate,
                "planned_steps": protection.planned.steps,
                "statistics": {
                    kind: {"noise": release.noise, "releases": release.steps}
                    for kind, release in protection.statistics.items()
                },
                "planned_epsilon": epsilon_of(protection.releases, settings.delta),
                "epsilon": ledger.spent(settings.delta) if ledger and ledger.file.exists() else 0.0,
            }
        return {
            "unit": settings.unit,
            "delta": settings.delta,
            "clip": settings.clip,
            "sensitivity": settings.bound,
            "feature_clip": settings.feature_clip,
            "accountant": "PLD (dp-accounting)",
            "noise": "from the seeds of the run" if not self.secret else "secret",
            "sites": sites,
        }


def plan_privacy(
    settings: PrivacySettings,
    sites: Mapping[str, int],
    patients: Callable[[str], Sequence[str]],
    *,
    batch_size: int,
    epochs: int,
    rounds: int,
    first_epochs: int = 0,
    statistics: Mapping[str, int] | None = None,
) -> RunPrivacy:
    """The protection of sites with so many training images. `patients` gives the patient of each image of a site;
    `epochs` are those of a round, `first_epochs` come before a site's first, `statistics` are the releases of each kind
    in the whole run."""
    passes = rounds * epochs + first_epochs
    noisy_statistics = plan_statistics(settings, statistics or {})
    protections = {}
    for name, images in sites.items():
        rows = PatientRows.of(_codes(name, patients(name))) if settings.unit == "patient" else None
        units = 1 if settings.unit == "site" else len(rows.counts) if rows else images
        try:
            protections[name] = _protection(settings, units, rows, batch_size, passes, rounds, noisy_statistics)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error.what}", details=error.details, hint=error.hint) from None
    return RunPrivacy(settings, batch_size, protections)


def plan_statistics(settings: PrivacySettings, releases: Mapping[str, int]) -> dict[str, Release]:
    """The releases of each kind of statistic, with their noise. Gaussian releases without sampling, of noise s_1, s_2,
    ..., are together exactly one with 1 / s^2 = sum 1 / s_i^2. That s is given, or follows from the share of epsilon
    that statistics have; the kinds have equal parts of 1 / s^2, and the releases of a kind equal parts of its own."""
    wanted = {kind: count for kind, count in releases.items() if count}
    if not wanted:
        return {}
    together = settings.statistics_noise
    if settings.epsilon is not None:
        together = noise_for(settings.statistics * settings.epsilon, settings.delta, 1.0, 1, sampled=False)
    return {
        kind: Release(together * math.sqrt(len(wanted) * count), 1.0, count, sampled=False)
        for kind, count in wanted.items()
    }


def _protection(
    settings: PrivacySettings,
    units: int,
    rows: PatientRows | None,
    batch_size: int,
    passes: int,
    rounds: int,
    statistics: Mapping[str, Release],
) -> SiteProtection:
    by_site = settings.unit == "site"
    if not by_site:
        check_delta(settings.delta, units, UNITS[str(settings.unit)])
    rate = 1.0 if by_site else min(1.0, batch_size / units)
    steps = rounds if by_site else passes * -(-units // batch_size)
    if rate == 1 and not by_site:
        raise ConfigError(
            f"train.batch_size = {batch_size} takes all of {units} {UNITS[str(settings.unit)]} into every step, and "
            "sampling protects nothing",
            hint="Draw smaller batches.",
        )
    noise = settings.noise
    if noise is None:
        assert settings.epsilon is not None
        beside = tuple(statistics.values())
        noise = noise_for(settings.epsilon, settings.delta, rate, steps, sampled=not by_site, beside=beside)
    return SiteProtection(noise, units, Release(noise, rate, steps, sampled=not by_site), rows, statistics)


def _codes(site: str, patients: Sequence[str]) -> torch.Tensor:
    """A number for each image, the same for those of one patient."""
    unknown = sum(not patient for patient in patients)
    if not patients or unknown:
        missing = f"of {unknown} images" if patients else "of its images"
        raise ConfigError(
            f'{site}: the patients {missing} are not known, and privacy.unit = "patient" protects patients',
            hint='Name the column or pattern of patients in [data], or protect each image: privacy.unit = "image".',
        )
    numbers = {patient: number for number, patient in enumerate(dict.fromkeys(patients))}
    return torch.tensor([numbers[patient] for patient in patients])
