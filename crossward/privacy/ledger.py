"""PrivacyLedger: what a site has released with noise, over all rounds and runs, as tagged lines that only it can write.

A line is written before the steps that it counts are taken, so that a crash in the middle counts too much and never too
little. A ledger that was altered, cut, or taken from another site is refused: nothing is released until people have
looked at it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Gt, Interval
from pydantic import ConfigDict

from crossward.errors import CrosswardError, StorageError
from crossward.privacy.accounting import Release, epsilon_of
from crossward.privacy.settings import Unit
from crossward.privacy.tagged_log import NOT_WHOLE, TaggedLog
from crossward.settings import Section

LEDGER_FILE = "privacy.jsonl"


class BudgetSpent(CrosswardError):
    """The site has released as much as its budget covers: it does not train on."""

    exit_code = 7


class LedgerAltered(StorageError):
    """The ledger is not as this site wrote it."""


class Budget(Section):
    """How much a site is willing to release, over all runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    unit: Unit = "image"  # that is protected; a run must protect the same
    epsilon: Annotated[float, Gt(0)]
    delta: Annotated[float, Interval(gt=0, lt=1)] = 1e-5
    noise: Annotated[float, Gt(0)] | None = None  # the least that a run may have; None: the budget alone decides


@dataclass(frozen=True)
class PrivacyLedger(TaggedLog):
    """The ledger of one site."""

    key_name: ClassVar[str] = "privacy.key"

    site: str = ""
    budget: Budget | None = None  # None, in a simulation: counted and never refused

    def spend(self, release: Release, *, unit: Unit, run: str, round: int, part: str, repeats: bool = False) -> None:
        """Count a release that is about to happen, or refuse it. `part` names it within its round. `repeats`: a part
        that is released again is the same to the bit, as in a simulation that is resumed, and counts once."""
        with self._locked():
            lines = self._lines()
            if repeats and any((e["run"], e["round"], e["part"]) == (run, round, part) for e in lines):
                return
            self._require_one_unit(lines, unit)
            self._require_budget([*_releases(lines), release], "this step")
            self.append({
                "site": self.site,
                "run": run,
                "round": round,
                "part": part,
                "unit": unit,
                "noise": release.noise,
                "rate": release.rate,
                "steps": release.steps,
                "sampled": release.sampled,
            })  # fmt: skip

    def check_plan(self, planned: Release, unit: Unit) -> None:
        """Refuse a run whose first step the budget would not cover any more, or that protects another unit."""
        lines = self._lines()
        self._require_one_unit(lines, unit)
        self._require_budget([*_releases(lines), replace(planned, steps=1)], "the first step of this run")

    def releases(self, run: str | None = None) -> list[Release]:
        """What was released, in all runs or in one."""
        return _releases([entry for entry in self._lines() if run in (None, entry["run"])])

    def spent(self, delta: float, run: str | None = None) -> float:
        """The epsilon of what was released, in all runs or in one."""
        return epsilon_of(self.releases(run), delta)

    def _lines(self) -> list[dict[str, Any]]:
        """What the ledger counts; an error if it is not as this site wrote it. A last line that a crash cut short was
        not followed by any step."""
        problems = [problem for problem in self.verify() if not problem.endswith(NOT_WHOLE)]
        entries = self.entries()
        others = sorted({str(entry["site"]) for entry in entries} - {self.site})
        if others:
            problems.append(f"it is the ledger of {', '.join(others)}")
        if problems:
            raise LedgerAltered(
                f"{self.file}: the privacy ledger of {self.site} is not as this site wrote it",
                details=problems,
                hint="Nothing is released before people have found out why; put a whole backup back if there is one.",
            )
        return entries

    def _require_one_unit(self, lines: list[dict[str, Any]], unit: Unit) -> None:
        known = {str(entry["unit"]) for entry in lines} | ({self.budget.unit} if self.budget else set())
        if known - {unit}:
            raise BudgetSpent(
                f"this run protects each {unit}, and the ledger of {self.site} each {' and '.join(sorted(known))}: "
                "the two do not add up",
                hint="Run with the unit of the ledger.",
            )

    def _require_budget(self, releases: list[Release], what: str) -> None:
        if self.budget is None:
            return
        total = epsilon_of(releases, self.budget.delta)
        if total > self.budget.epsilon:
            spent = epsilon_of(releases[:-1], self.budget.delta)
            raise BudgetSpent(
                f"the privacy budget of {self.site} is spent: epsilon = {spent:.3g} of {self.budget.epsilon:g} so far, "
                f"and {total:.3g} with {what} (delta = {self.budget.delta:g}, each {self.budget.unit})",
                hint="The site does not train on. Its people may raise epsilon in [privacy] of site.toml.",
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from counting between the look at the ledger and the new line."""
        self._make_folder()
        descriptor = os.open(self.file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def site_ledger(folder: Path, site: str, budget: Budget | None = None) -> PrivacyLedger:
    """The ledger in a site's own folder."""
    return PrivacyLedger(folder / LEDGER_FILE, site, budget)


def _releases(lines: list[dict[str, Any]]) -> list[Release]:
    return [Release(e["noise"], e["rate"], e["steps"], e["sampled"]) for e in lines]
