"""Figures of studies/README.md, recomputed from studies/results: means, sample deviations, differences by seed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

STUDIES = Path(__file__).parents[2] / "studies"
README = (STUDIES / "README.md").read_text(encoding="utf-8")
METRICS = {"F1": "f1", "accuracy": "accuracy", "bACC": "balanced_accuracy", "bAUC": "auc", "Dice": "dice"}
VIEWS = {"": "global", " of a site": "mean", " of the worst site": "worst"}
ROUNDS = {"last rounds": "last", "best on val": "best"}
VARIANTS = {  # README names parts that were taken away, the study its variants
    "whole": "fedcd",
    "− hierarchical prototype contrast": "fedcd-hpc",
    "− decoupled distillation": "fedcd-dkd",
    "− batch-prototype regularisation": "fedcd-bpr",
    "− class-level aggregation (by samples instead)": "fedcd-acla",
    "− debiased classifier learning (no global prototypes in a batch)": "fedcd-dcl",
    "− μ's schedule (held at 1: the cross-entropy does not fade, no contrast)": "fedcd-mu1",
}
Run = tuple[str, int]  # the value of the study's axis, seed
Table = tuple[list[str], list[list[str]]]  # headings, rows


@dataclass(frozen=True)
class Difference:
    """Of two methods, run by run."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def deviation(self) -> float:
        return stdev(self.values)

    @property
    def better(self) -> str:
        return f"{sum(value > 0 for value in self.values)}/{len(self.values)}"

    @property
    def verdict(self) -> str:
        """By the rule of README's first page."""
        signs = {value > 0 for value in self.values}
        if len(signs) == 2 or abs(self.mean) <= self.deviation:
            return "not seen"
        return "reproduced" if signs == {True} else "contradicted"

    def __str__(self) -> str:
        """+1.0 ± 2.7 (3/6)"""
        return f"{self.mean:+.1f} (one run)" if len(self.values) == 1 else f"{self:signed} ({self.better})"

    def __format__(self, form: str) -> str:
        """signed: +1.0 ± 2.7; counted: +1.0 ± 2.7, 3/6; size: 1.0 ± 2.7, where words say which way; mean: +1.0"""
        forms = {
            "": lambda: str(self),
            "mean": lambda: f"{self.mean:+.1f}",
            "signed": lambda: f"{self.mean:+.1f} ± {self.deviation:.1f}",
            "counted": lambda: f"{self:signed}, {self.better}",
            "size": lambda: f"{self:signed}".lstrip("+-"),
        }
        return forms[form]()


@cache
def stored_rows(study: str) -> dict[tuple[str, str, int, int], dict[str, Any]]:
    """Method, value, seed, repeat -> the row that was stored last: a changed method was run again under its label."""
    rows = json.loads((STUDIES / "results" / f"{study}.json").read_text(encoding="utf-8"))
    return {(row["method"], str(row["value"]), row["seed"], row.get("repeat", 0)): row for row in rows}


def figures(study: str, method: str, column: str, value: str | None = None, repeat: int = 0) -> dict[Run, float]:
    """By run; `column` is one of the study's, "minutes", or "site:C1"."""
    found = {}
    for (label, at, seed, again), row in stored_rows(study).items():
        if label == method and again == repeat and value in (None, at):
            found[at, seed] = row["sites"][column[5:]] if column.startswith("site:") else row[column]
    assert found, f"{study} has no {method} at {value}"
    return found


def difference(
    study: str, first: str, second: str, column: str, value: str | None = None, seeds: Iterable[int] = range(100)
) -> Difference:
    """first − second in the runs that both have; "study/method" names a method of another study."""
    values = []
    for label in (first, second):
        place, _, method = label.rpartition("/")
        values.append(figures(place or study, method, column, value))
    shared = [run for run in values[0] if run in values[1] and run[1] in seeds]
    return Difference([values[0][run] - values[1][run] for run in shared])


def spread(numbers: Iterable[float]) -> str:
    """77.1 ± 2.6"""
    known = list(numbers)
    return f"{fmean(known):.1f} ± {stdev(known):.1f}" if len(known) > 1 else f"{fmean(known):.1f}"


def column_of(heading: str) -> tuple[str | None, str]:
    """The axis's value, if the heading begins with one, and the column: "0.05: F1, last rounds"."""
    value, _, rest = heading.rpartition(": ")
    words = re.fullmatch(r"(\w+)( of a site| of the worst site|), (last rounds|best on val)", rest)
    assert words, f"{heading!r} names no column"
    return value or None, f"{ROUNDS[words[3]]}.{VIEWS[words[2]]}.{METRICS[words[1]]}"


def markdown_tables(text: str) -> list[Table]:
    """Every table of a Markdown text, in order."""
    tables = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        heads, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]
        tables.append((heads, rows))
    return tables


def plain(text: str) -> str:
    """One line, one kind of minus, no stress: to look sentences up in. A zero has no sign."""
    text = re.sub(r"\s+", " ", text.replace("−", "-").replace("**", ""))
    return re.sub(r"[+-]0\.0(?!\d)", "0.0", text)
