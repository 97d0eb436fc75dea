"""Protections: what bounds what left the sites, of each run of a comparison, and whether the runs differ in it."""

from __future__ import annotations

from collections.abc import Sequence

from crossward.comparison.study_spec import LabelledRun
from crossward.comparison.text_tables import TextTable
from crossward.runs.protection import RunProtection, run_protection
from crossward.runs.receipt_words import NO_NOISE

HEADS = ("method", "unit", "ε", "δ", "noise", "clip", "secure sums")
DIFFERENT = "these runs differ in their protection: a difference between their figures may be the price of noise"


def privacy_rows(runs: Sequence[LabelledRun]) -> list[dict[str, object]]:
    """Of each run, its protection as a document."""
    found = [(run, run_protection(run.folder)) for run in runs]
    return [
        {"label": run.label, "seed": run.seed, "unit": one.unit, "epsilon": one.epsilon, "delta": one.delta}
        | {"noise": list(one.noise), "clip": one.clip, "secure_aggregation": one.secure_aggregation}
        for run, one in found
    ]


def privacy_text(runs: Sequence[LabelledRun]) -> list[TextTable]:
    """A table of the protection of each method; empty if no run has any."""
    by_label: dict[str, list[RunProtection]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run_protection(run.folder))
    every = [one for found in by_label.values() for one in found]
    if not any(one.unit or one.secure_aggregation for one in every):
        return []
    rows = tuple((label, *_cells(found)) for label, found in by_label.items())
    differ = len({(one.unit, _rounded(one.epsilon), one.delta, one.secure_aggregation) for one in every}) > 1
    notes = [DIFFERENT] if differ else []
    if any(not one.unit for one in every):
        notes.append(f"no noise is {NO_NOISE}")
    return [TextTable("Privacy", HEADS, rows, tuple(notes), summary=True)]


def _cells(found: Sequence[RunProtection]) -> tuple[str, ...]:
    """The cells of a method; where its runs differ, all that there are."""
    rows = [
        (
            one.unit or "no noise",
            one.epsilon_words().removeprefix("ε ").removeprefix("= ") if one.unit else "–",
            f"{one.delta:g}" if one.unit and one.delta is not None else "–",
            one.noise_words(),
            f"{one.clip:g}" if one.unit and one.clip is not None else "–",
            "yes" if one.secure_aggregation else "no",
        )
        for one in found
    ]
    return tuple(" or ".join(dict.fromkeys(cells)) for cells in zip(*rows, strict=True))


def _rounded(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.3g}"
