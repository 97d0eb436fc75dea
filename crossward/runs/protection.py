"""RunProtection: what bounds, hides and counts what left the sites of a run, as its directory says. Without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossward.privacy.receipt import Receipt
from crossward.runs.receipt_files import stored_receipts
from crossward.runs.receipt_words import NO_NOISE, policy_words
from crossward.runs.run_files import TERMS

PRIVACY_FILE = "privacy.json"  # what the sites of a simulation have spent
MAX_DOCUMENT = 2**26  # bytes of a file that is read here


@dataclass(frozen=True)
class RunProtection:
    """Figures are the largest of all sites: nobody is worse off."""

    unit: str = ""  # empty: no noise
    epsilon: float | None = None  # of the run
    cumulative_epsilon: float | None = None  # of all runs of a site
    bound: float | None = None  # that epsilon cannot exceed, where it is withheld or not known yet
    delta: float | None = None
    clip: float | None = None
    noise: tuple[float, ...] = ()  # of the sites, as multiples of the clip
    accountant: str = ""
    accounted_by: str = ""
    secure_aggregation: bool = False
    policies: tuple[str, ...] = ()  # in words, each once

    def short(self) -> str:
        """For a column of a table: image, ε = 6.04."""
        masked = ", secure sums" if self.secure_aggregation else ""
        if not self.unit:
            return f"no noise{masked}"
        return f"{self.unit}, {self.epsilon_words()}{masked}"

    def epsilon_words(self) -> str:
        if self.epsilon is not None:
            return f"ε = {self.epsilon:.3g}"
        return "ε not known" if self.bound is None else f"ε at most {self.bound:.3g}"

    def noise_words(self) -> str:
        if not self.noise:
            return "withheld" if self.unit else "none"
        low, high = min(self.noise), max(self.noise)
        return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"

    def words(self) -> str:
        """In a sentence."""
        sums = "secure aggregation" if self.secure_aggregation else "no secure aggregation"
        if not self.unit:
            return f"{NO_NOISE}; {sums}"
        delta = f" at δ = {self.delta:g}" if self.delta is not None else ""
        over = f", {self.cumulative_epsilon:.3g} over all runs" if self._has_earlier_runs else ""
        clip = f", clip {self.clip:g}" if self.clip is not None else ""
        return f"each {self.unit}: {self.epsilon_words()}{delta}{over}, noise {self.noise_words()}{clip}; {sums}"

    @property
    def _has_earlier_runs(self) -> bool:
        both = self.epsilon is not None and self.cumulative_epsilon is not None
        return both and self.cumulative_epsilon > self.epsilon * (1 + 1e-9)  # type: ignore[operator]


def run_protection(folder: Path) -> RunProtection:
    """What a run directory says. What its files do not say, or say in no way that can be read, is left open."""
    about = _read(folder / "run.json")
    asked = _table(_table(about.get("config")).get("privacy"))
    receipts = [receipt for receipt in stored_receipts(folder).values() if isinstance(receipt, Receipt)]
    secure = asked.get("secure_aggregation") is True
    policies = tuple(
        dict.fromkeys(
            policy_words(receipt.statement.rules[-1].policy) for receipt in receipts if receipt.statement.rules
        )
    )
    unit = asked.get("unit")
    if not isinstance(unit, str):
        return RunProtection(secure_aggregation=secure, policies=policies)
    across = (folder / TERMS).exists()
    counted = (
        _by_receipts(receipts) if across else _by_facts(_read(folder / PRIVACY_FILE) or _table(about.get("privacy")))
    )
    planned = {"delta": _number(asked.get("delta")), "clip": _number(asked.get("clip"))}
    if "noise" not in counted and _number(asked.get("noise")) is not None:
        planned["noise"] = (_number(asked["noise"]),)  # type: ignore[assignment]
    who = "each site's own ledger, over all its runs" if across else "a ledger of the run for each simulated site"
    bound = {"bound": _number(asked.get("epsilon"))} if counted.get("bound") is None else {}
    return RunProtection(
        **{"unit": unit, "secure_aggregation": secure, "policies": policies, "accounted_by": who}  # type: ignore[arg-type]
        | planned
        | counted
        | bound
    )


def _by_receipts(receipts: Sequence[Receipt]) -> dict[str, Any]:
    """The figures that real sites have signed."""
    signed = [receipt.statement.privacy for receipt in receipts if receipt.statement.privacy is not None]
    if not signed:
        return {}
    return {
        "epsilon": _largest([one.epsilon for one in signed]),
        "cumulative_epsilon": _largest([one.cumulative_epsilon for one in signed]),
        "bound": _largest([one.bound for one in signed]),
        "delta": max(one.delta for one in signed),
        "clip": max(one.clip for one in signed),
        "noise": tuple(one.noise for one in signed if one.noise is not None),
        "accountant": signed[0].accountant,
    }


def _by_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a simulation: spent if there is something, else planned."""
    sites = [_table(site) for site in _table(facts.get("sites")).values()]
    if not sites:
        return {}
    spent = [_number(site.get("epsilon")) for site in sites]
    return {
        "epsilon": _largest(spent) or None,
        "cumulative_epsilon": _largest(spent) or None,
        "bound": _largest([_number(site.get("planned_epsilon")) for site in sites]),
        "delta": _number(facts.get("delta")),
        "clip": _number(facts.get("clip")),
        "noise": tuple(noise for site in sites if (noise := _number(site.get("noise"))) is not None),
        "accountant": str(facts.get("accountant", "")),
    }


def _largest(figures: Sequence[float | None]) -> float | None:
    """The largest; None if one of them is not known, which could be larger."""
    known = [figure for figure in figures if figure is not None]
    return max(known) if known and len(known) == len(figures) else None


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
    return float(value) if is_number else None  # type: ignore[arg-type]


def _read(file: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none that can be read."""
    try:
        if file.stat().st_size > MAX_DOCUMENT:
            return {}
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
