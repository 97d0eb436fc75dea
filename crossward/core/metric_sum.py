"""Metrics by their names, sums of several included: "f1" or "f1+accuracy+precision". Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLUS = "+"


def summed_metrics(name: str) -> tuple[str, ...]:
    """The metrics that a name adds up; one if it is no sum."""
    return tuple(part.strip() for part in name.split(PLUS))


def metric_value(scores: Mapping[str, Any], name: str) -> float | None:
    """The metric, or the sum of metrics, among the scores of one set; None where one of them is undefined."""
    values = [scores.get(part) for part in summed_metrics(name)]
    defined = [value for value in values if isinstance(value, float)]
    return sum(defined) if len(defined) == len(values) else None


def worst_value(scores_by_site: Mapping[str, Mapping[str, Any]], name: str, *, lower_is_better: bool) -> float | None:
    """The metric, or the sum of metrics, at the site where it is worst."""
    values = [value for scores in scores_by_site.values() if (value := metric_value(scores, name)) is not None]
    if not values:
        return None
    return max(values) if lower_is_better else min(values)
