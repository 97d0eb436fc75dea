"""A receipt in plain words, for terminals and reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossward.privacy.receipt import Protection, Statement

NO_NOISE = "no differential privacy: nothing bounds what the weights tell"
UNIT_WORDS = {"image": "each image", "patient": "each patient", "site": "the site as a whole"}


def privacy_words(privacy: Protection | None) -> str:
    """What bounds the information in what left."""
    if privacy is None:
        return NO_NOISE
    parts = [f"differential privacy of {UNIT_WORDS[privacy.unit]}"]
    if privacy.epsilon is not None:
        parts.append(f"ε = {privacy.epsilon:.3g} in this run (δ = {privacy.delta:g})")
    elif privacy.bound is not None:
        parts.append(f"ε at most {privacy.bound:.3g} (δ = {privacy.delta:g})")
    if privacy.cumulative_epsilon is not None:
        over = "in all runs of the site" if privacy.ledger else "of the simulation"
        parts.append(f"{privacy.cumulative_epsilon:.3g} {over} (δ = {privacy.cumulative_delta:g})")
    if privacy.noise is not None:
        parts.append(f"noise {privacy.noise:.3g} × {privacy.sensitivity:g}, clip {privacy.clip:g}")
    else:
        parts.append(f"clip {privacy.clip:g}")
    parts.append(f"accounted by {privacy.accountant}")
    if privacy.withheld:
        parts.append(f"withheld: {privacy.withheld}")
    return ", ".join(parts)


def sums_words(statement: Statement) -> str:
    masked = sorted({item.item for item in statement.items if item.masked})
    if not statement.secure_aggregation:
        return "no secure aggregation: the coordinator saw this site's own replies"
    under = f": {', '.join(masked)} left under masks" if masked else ""
    return f"secure aggregation{under}; the coordinator saw sums over sites"


def policy_words(policy: Mapping[str, Any]) -> str:
    """The kinds that a site's policy allows."""
    allowed = policy.get("allow", [])
    words = f"may leave: {', '.join(map(str, allowed)) or 'nothing'}"
    least = policy.get("min_class_count")
    return f"{words}; classes below {least} images are sent as empty" if least else words


def rules_words(statement: Statement) -> str:
    if not statement.rules:
        return "no policy: a simulation"
    last = statement.rules[-1]
    changed = f"; changed {len(statement.rules) - 1} times within the run" if len(statement.rules) > 1 else ""
    return f"{policy_words(last.policy)} ({last.digest[:15]}…){changed}"


def statement_lines(statement: Statement) -> list[str]:
    """All that a receipt says, a line each."""
    lines = [f"{statement.site} of {statement.federation}, run {statement.run} ({statement.method})"]
    if statement.simulation:
        lines.append("  simulation, not signed")
    when = f", from {statement.first} to {statement.last}" if statement.first else ""
    lines.append(f"  left: {statement.replies} replies with {statement.bytes:,} bytes{when}")
    lines += [
        f"    {item.step}: {item.item} ({item.kind}{', masked' if item.masked else ''}), {item.replies} times, "
        f"{item.bytes:,} bytes"
        for item in statement.items
    ]
    if statement.refused:
        lines.append(f"  held back by the policy: {statement.refused} replies")
    lines.append(f"  noise: {privacy_words(statement.privacy)}")
    lines.append(f"  sums: {sums_words(statement)}")
    lines.append(f"  rules: {rules_words(statement)}")
    end = f"{'written' if statement.simulation else 'signed'} {statement.signed}"
    lines.append(f"  crossward {statement.crossward}, configuration {statement.config[:15]}…, {end}")
    return lines
