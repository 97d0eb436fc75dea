"""What methods decide at one hospital, class by class: recall (of segmentation: Dice) and what is taken for what.

Intervals are over seeds and patients where predictions are stored, over seeds otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossward.comparison.decision_curves import Band, class_recalls, confusion, pointwise_band
from crossward.comparison.method_runs import MethodRun, stored_groups, with_predictions
from crossward.comparison.resampling import draw_by_name
from crossward.comparison.weighted_metrics import Array, PredictedSet
from crossward.report.decisions import RESAMPLES, band_over_seeds, distinct_names, stored_matrix, stored_numbers
from crossward.report.source import ReportRun, ReportSource

CLASS_METRICS = {  # key, in words
    "classification": ("recall", "recall"),
    "multi-label": ("recall", "recall"),
    "segmentation": ("dice_per_class", "Dice"),
}


@dataclass(frozen=True)
class SiteDecisions:
    """One method at one hospital."""

    site: str
    label: str
    classes: tuple[str, ...]  # as they are shown; each is different
    metric: str  # in words
    runs: tuple[str, ...]  # ids of the page's sources
    support: Array  # (K,) the hospital's test images of each class, mean over seeds
    figures: Band  # of each class
    confusion: Array  # (K, K), rows are the truth, summed over seeds; zeros if it is not known

    @property
    def present(self) -> list[int]:
        """The classes that have a figure."""
        return [k for k in range(len(self.support)) if not np.isnan(self.figures.value[k])]


def read_site_decisions(
    source: ReportSource, setting: str, labels: Sequence[str]
) -> Mapping[tuple[str, str], SiteDecisions]:
    """(label, site) -> what is decided there; sites and methods without figures of classes are not in it."""
    found: dict[tuple[str, str], SiteDecisions] = {}
    for label in dict.fromkeys(labels):
        runs = source.of(label, setting)
        if runs and runs[0].about["task"]["name"] in CLASS_METRICS:
            for decided in (*_of_predictions(runs, label, source.spec.level), *_of_metrics(runs, label)):
                found.setdefault((label, decided.site), decided)
    return found


def _classes(runs: Sequence[ReportRun]) -> tuple[str, ...]:
    return distinct_names(runs[0].about["task"]["classes"])


def _predicted(runs: Sequence[ReportRun]) -> dict[str, list[tuple[str, PredictedSet]]]:
    """Site -> (run, its predictions on the site's own test images)."""
    found: dict[str, list[tuple[str, PredictedSet]]] = {}
    for run in runs:
        if run.task == "segmentation":
            continue
        round = run.rounds.best or run.rounds.evaluated[-1]
        empty = MethodRun(run.seed, str(run.result.folder), run.task, {})
        for site, own in with_predictions(empty, run.result, "test", round).own.items():
            if len(own):
                found.setdefault(site, []).append((run.id, own))
    return found


def _of_predictions(runs: Sequence[ReportRun], label: str, level: float) -> Iterator[SiteDecisions]:
    predicted = _predicted(runs)
    images = [image for sets in predicted.values() for _, own in sets for image in own.ids]
    if not images:
        return
    groups = {image: group for run in runs for image, group in stored_groups(run.result).items()}
    resampling = draw_by_name(images, groups, resamples=RESAMPLES)
    classes = _classes(runs)
    for site, sets in predicted.items():
        support = np.mean([own.truth().sum(0) for _, own in sets], axis=0)
        curves = [class_recalls(own, resampling.weights(own.ids)) for _, own in sets]
        yield SiteDecisions(
            site,
            label,
            classes,
            "recall",
            tuple(run for run, _ in sets),
            support,
            pointwise_band(curves, resampling, level=level, trials=support),
            _confusion([own for _, own in sets], len(classes)),
        )


def _confusion(sets: Sequence[PredictedSet], classes: int) -> Array:
    """(K, K); zeros where an image may have several labels."""
    one_class = [confusion(own) for own in sets if own.task == "classification"]
    return np.asarray(np.sum(one_class, axis=0) if one_class else np.zeros((classes, classes)))


def _of_metrics(runs: Sequence[ReportRun], label: str) -> Iterator[SiteDecisions]:
    """From metrics.jsonl, in the round that validation chose."""
    key, words = CLASS_METRICS[runs[0].about["task"]["name"]]
    classes = _classes(runs)
    by_site: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for run in runs:
        for site, scores in run.rounds.site_metrics().items():
            if scores.get(key):
                by_site.setdefault(site, []).append((run.id, scores))
    for site, known in by_site.items():
        support = np.mean([stored_numbers(scores.get("support"), len(classes)) for _, scores in known], axis=0)
        yield SiteDecisions(
            site,
            label,
            classes,
            words,
            tuple(run for run, _ in known),
            np.nan_to_num(support),
            band_over_seeds([stored_numbers(scores[key], len(classes)) for _, scores in known]),
            np.sum([stored_matrix(scores.get("confusion"), len(classes)) for _, scores in known], axis=0),
        )
