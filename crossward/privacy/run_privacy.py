"""RunPrivacy: how the sites of a run protect their images: the noise of each, and the ledger that counts it."""

from __future__ import annotations

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
    planned: Release  # of the whole run
    patients: PatientRows | None = None


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
        spend = partial(self._spend, site.name, site.round + 1)
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
        )

    def _spend(self, site: str, round: int, release: Release, part: str) -> None:
        ledger = self.ledger(site)
        unit = self.settings.unit
        if ledger is not None and unit is not None:
            ledger.spend(release, unit=unit, run=self.run, round=round, part=part, repeats=not self.secret)

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
                "planned_epsilon": epsilon_of([protection.planned], settings.delta),
                "epsilon": ledger.spent(settings.delta) if ledger and ledger.file.exists() else 0.0,
            }
        return {
            "unit": settings.unit,
            "delta": settings.delta,
            "clip": settings.clip,
            "sensitivity": settings.bound,
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
) -> RunPrivacy:
    """The protection of sites with so many training images. `patients` gives the patient of each image of a site;
    `epochs` are those of a round."""
    protections = {}
    for name, images in sites.items():
        rows = PatientRows.of(_codes(name, patients(name))) if settings.unit == "patient" else None
        units = 1 if settings.unit == "site" else len(rows.counts) if rows else images
        try:
            protections[name] = _protection(settings, units, rows, batch_size, epochs, rounds)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error.what}", details=error.details, hint=error.hint) from None
    return RunPrivacy(settings, batch_size, protections)


def _protection(
    settings: PrivacySettings, units: int, rows: PatientRows | None, batch_size: int, epochs: int, rounds: int
) -> SiteProtection:
    by_site = settings.unit == "site"
    if not by_site:
        check_delta(settings.delta, units, UNITS[str(settings.unit)])
    rate = 1.0 if by_site else min(1.0, batch_size / units)
    steps = rounds * (1 if by_site else epochs * -(-units // batch_size))
    if rate == 1 and not by_site:
        raise ConfigError(
            f"train.batch_size = {batch_size} takes all of {units} {UNITS[str(settings.unit)]} into every step, and "
            "sampling protects nothing",
            hint="Draw smaller batches.",
        )
    noise = settings.noise
    if noise is None:
        assert settings.epsilon is not None
        noise = noise_for(settings.epsilon, settings.delta, rate, steps, sampled=not by_site)
    return SiteProtection(noise, units, Release(noise, rate, steps, sampled=not by_site), rows)


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
