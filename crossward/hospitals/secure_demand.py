"""What a site demands of secure sums, in the table [privacy] of site.toml, and its part in those of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Interval
from pydantic import ConfigDict, Strict

from crossward.core.method import Method
from crossward.hospitals.peers import HospitalIdentity
from crossward.hospitals.refusal import Refusal
from crossward.hospitals.site_sums import PrivateFile, SiteSums
from crossward.hospitals.site_tables import read_table
from crossward.hospitals.sum_journal import site_journal
from crossward.privacy.secure_format import MOST_SITES
from crossward.privacy.secure_messages import SecurePolicy
from crossward.privacy.secure_steps import SecureSteps
from crossward.settings import Section

PRIVACY_TABLE = "privacy"


class SecureDemand(Section):
    """The keys of [privacy] that are about secure sums."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secure_aggregation: Literal["allowed", "required"] = "allowed"  # required: weights leave under masks alone
    secure_min_sites: Annotated[int, Strict(), Interval(ge=3, le=MOST_SITES)] = 3  # in a sum with this site

    @classmethod
    def read(cls, file: Path) -> SecureDemand:
        """What a TOML file demands; the defaults if it says nothing of it."""
        return read_table(file, PRIVACY_TABLE, cls, "the privacy settings are", only=tuple(cls.model_fields)) or cls()


def open_sums(
    demand: SecureDemand,
    identity: HospitalIdentity | None,
    method: Method,
    run: str,
    sites: Sequence[str],
    folder: Path,
    files: PrivateFile,
) -> SiteSums | None:
    """The site's part in the secure sums of a run, or None if it has none; a Refusal if the site does not want that."""
    journal = site_journal(folder)
    if not isinstance(method, SecureSteps):
        if demand.secure_aggregation == "required":
            raise Refusal(
                "this site sends its weights in secure sums only, and the run has none",
                hint="Add secure_aggregation = true to [privacy] of the run.",
            )
        if any(past.run == run for past in journal.sums().values()):
            raise Refusal("this run sums securely, as it was opened here before: it does not go on without")
        return None
    if identity is None:
        raise Refusal("the run sums securely, and this site has no key of a federation to do so")
    least = max(demand.secure_min_sites, method.settings.min_sites)
    if len(sites) < least:
        raise Refusal(f"the run has {len(sites)} sites, and this one wants {least} in a secure sum at least")
    return SiteSums(run, frozenset(sites), identity, SecurePolicy(least), files, journal)
