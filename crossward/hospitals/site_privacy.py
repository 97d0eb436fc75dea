"""What a site says of differential privacy: its budget in the table [privacy] of site.toml, and what a run must keep.

A coordinator can ask for more noise than the site wants, never for less. Noise is drawn from a secret of this machine,
each step is counted in the site's ledger before it is taken, and steps that are asked again are counted again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from crossward.hospitals.refusal import Refusal
from crossward.hospitals.site_tables import read_table
from crossward.privacy.accounting import check_delta
from crossward.privacy.ledger import Budget, BudgetSpent, LedgerAltered
from crossward.privacy.run_privacy import UNITS
from crossward.runs.sites import RunSites

PRIVACY_TABLE = "privacy"
SECURE_KEYS = ("secure_aggregation", "secure_min_sites")  # of the same table, see secure_demand.py


def read_budget(file: Path) -> Budget | None:
    """The budget in a TOML file, which may have other tables; None if it has none in [privacy]."""
    return read_table(file, PRIVACY_TABLE, Budget, "the privacy budget is", but=SECURE_KEYS)


def protect_run(run_sites: RunSites, site: str, folder: Path, run: str, budget: Budget | None) -> None:
    """Have a run count in this site's ledger and draw its noise here, or refuse it."""
    asked = run_sites.privacy
    if asked is None:
        if budget is not None:
            raise Refusal(
                f"this site trains with differential privacy only, each {budget.unit} within epsilon = "
                f"{budget.epsilon:g}, and the run has no [privacy]",
                hint=f'Add [privacy] with unit = "{budget.unit}" to the configuration of the run.',
            )
        return
    protection = asked.sites[site]
    least = min(release.noise for release in protection.releases)  # of gradients and statistics
    if budget is not None and budget.noise is not None and least < budget.noise:
        raise Refusal(
            f"the run has noise = {least:.4g} at this site, which wants at least {budget.noise:g}",
            hint="Ask for more noise, or for a smaller epsilon.",
        )
    if budget is not None and budget.unit != "site":
        check_delta(budget.delta, protection.units, UNITS[budget.unit])
    run_sites.privacy = replace(asked, folder=folder, own_folder=True, run=run, secret=True, budget=budget)
    ledger = run_sites.privacy.ledger(site)
    assert ledger is not None
    assert asked.settings.unit is not None
    with telling_the_coordinator():
        ledger.check_plan(protection.planned, asked.settings.unit)


@contextmanager
def telling_the_coordinator() -> Iterator[None]:
    """Turn a spent budget or an altered ledger into a refusal that names neither figures nor files of this site."""
    try:
        yield
    except BudgetSpent as error:
        reason = "protects another unit than this run" if "do not add up" in error.what else "is spent"
        raise Refusal(f"the privacy budget of this site {reason}: it does not train on") from error
    except LedgerAltered as error:
        raise Refusal("the privacy ledger of this site is not as it wrote it: it does not train on") from error
