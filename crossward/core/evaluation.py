"""Evaluation: the global view (one test set), the local view (each site's own), and every prediction behind them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from crossward.core.cohort import Cohort
from crossward.core.engine import SERVER, Engine, Sites
from crossward.core.metric_sum import metric_value
from crossward.core.task import Metrics, Task
from crossward.core.tree import Tree

LOWER_IS_BETTER = frozenset({"ece", "nll", "hd95", "hd95_penalised", "false_positive_rate"})


class EvaluatedSites(Sites, Protocol):
    """Sites that are evaluated: here, where a simulation knows their targets, or each by itself."""

    task: Task
    remote: bool  # their images and targets are not here: each site evaluates itself and sends its metrics

    @property
    def personal(self) -> bool:
        """Whether sites predict with networks of their own."""
        ...

    def targets(self, site: int, split: str) -> Tensor: ...


@dataclass(frozen=True)
class Evaluation:
    """What the sites predicted in a round, and how well."""

    predictions: Tree  # site name (or "server") -> {"val", "test", "common_val", "common_test"} -> kept predictions
    metrics: dict[str, Any]  # split -> {"global": Metrics, "local": {"mean", "worst", "sites"}}
    failures: dict[str, str]


def evaluated_ids(sites: EvaluatedSites) -> list[int]:
    """The sites that have something to predict, and the server, if it does."""
    ids = sites.ids if sites.personal else [*sites.ids, SERVER]
    return [i for i in ids if sites.work(i, "predict")]


def evaluate(
    sites: EvaluatedSites, engine: Engine, down: Tree, round: int, ids: Sequence[int] | None = None
) -> Evaluation:
    """Every site predicts as it would deploy; nothing it does for that is kept. Metrics of validation only:
    `score_predictions` adds the test metrics once it is known whether the costly ones are wanted. Remote sites send
    both. `ids` are the evaluated sites where they are known already: to look for them takes as long as there are
    sites."""
    ids = evaluated_ids(sites) if ids is None else ids
    cohort = Cohort(sites, engine, round, ids, keep=False)
    if sites.remote:
        replies = cohort.ask("judge", down)
        by_site, failures = _sent_metrics(sites, replies)
        cohort.close()
        metrics = _views_of_sent_metrics(sites, by_site, "val") | _views_of_sent_metrics(sites, by_site, "test")
        return Evaluation({}, metrics, cohort.failures | failures)
    replies = cohort.ask("predict", down)
    predictions = {sites.name(i): dict(reply) for i, reply in replies.items()}
    cohort.close()
    return Evaluation(predictions, score_predictions(sites, predictions, "val", full=False, ids=ids), cohort.failures)


def score_predictions(
    sites: EvaluatedSites,
    predictions: Mapping[str, Tree],
    split: str,
    full: bool,
    *,
    ids: Sequence[int] | None = None,
) -> dict[str, Any]:
    """{split: both views} from kept predictions; empty when nobody has such a set. `ids` are the sites that may have
    predicted: None, all of them."""
    numbers = {sites.name(i): i for i in ([*sites.ids, SERVER] if ids is None else ids)}
    by_site = {numbers[name]: reply for name, reply in predictions.items()}
    own = {i: reply[split] for i, reply in by_site.items() if split in reply and i != SERVER}
    each = {i: sites.task.metrics(p, sites.targets(i, split), full=full) for i, p in own.items()}
    local = {sites.name(i): metrics for i, metrics in each.items()}
    return _views(split, local, _global_metrics(sites, by_site, own, split, full))


def _sent_metrics(
    sites: EvaluatedSites, replies: Mapping[int, Tree]
) -> tuple[dict[int, dict[str, Metrics]], dict[str, str]]:
    """The metrics that every site has sent of itself, and the sites, by name, that sent none that can be read."""
    by_site: dict[int, dict[str, Metrics]] = {}
    failures: dict[str, str] = {}
    for site, reply in replies.items():
        try:
            metrics = dict(json.loads(reply["metrics"]))
            by_site[site] = {split: dict(metrics[split]) for split in ("val", "test") if split in metrics}
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            failures[sites.name(site)] = f"rejected: its metrics cannot be read ({type(error).__name__})"
    return by_site, failures


def _views_of_sent_metrics(
    sites: EvaluatedSites, by_site: Mapping[int, Mapping[str, Metrics]], split: str
) -> dict[str, Any]:
    """{split: both views} from the metrics that every site has sent of itself."""
    local = {sites.name(i): metrics[split] for i, metrics in by_site.items() if split in metrics and i != SERVER}
    return _views(split, local, by_site.get(SERVER, {}).get(split))


def _views(split: str, local: dict[str, Metrics], overall: Metrics | None) -> dict[str, Any]:
    """{split: both views}, as far as there are any; `local` is by the site's name."""
    views: dict[str, Any] = {}
    if local:
        views["local"] = {"mean": mean(local.values()), "worst": worst(local.values()), "sites": local}
    if overall:
        views["global"] = overall
    return {split: views} if views else {}


def _global_metrics(
    sites: EvaluatedSites, by_site: Mapping[int, Tree], own: Mapping[int, Tensor], split: str, full: bool
) -> Metrics:
    if SERVER in by_site and split in by_site[SERVER]:
        return sites.task.metrics(by_site[SERVER][split], sites.targets(SERVER, split), full=full)
    common = {i: reply[f"common_{split}"] for i, reply in by_site.items() if f"common_{split}" in reply}
    if common:  # every site's own network on the one set, averaged
        truth = sites.targets(SERVER, split)
        return mean([sites.task.metrics(p, truth, full=full) for p in common.values()])
    if own and not sites.personal:  # one network, no set of the federation's own: all sites' sets together
        truth = torch.cat([sites.targets(i, split) for i in own])
        return sites.task.metrics(torch.cat(list(own.values())), truth, full=full)
    return {}


def mean(each: Iterable[Metrics]) -> Metrics:
    """Metric by metric, leaving out the undefined; lists element by element, confusion matrices and counts summed."""
    every = list(each)
    return {name: _combine(name, [m[name] for m in every if name in m]) for name in _names(every)}


def worst(each: Iterable[Metrics]) -> Metrics:
    """The worst site of each scalar metric."""
    every = list(each)
    result: Metrics = {}
    for name in _names(every):
        values = [m[name] for m in every if isinstance(m.get(name), float)]
        if values:
            result[name] = max(values) if name in LOWER_IS_BETTER else min(values)
    return result


def _names(every: Sequence[Metrics]) -> list[str]:
    return list(dict.fromkeys(name for m in every for name in m))


def _combine(name: str, values: list[Any]) -> Any:
    if name == "confusion":
        return torch.tensor(values).sum(0).tolist()
    defined = [v for v in values if v is not None]
    if not defined:
        return None
    if all(isinstance(value, int) for value in defined):
        return sum(defined)
    if isinstance(defined[0], list):
        return [_combine(name, [v[k] for v in defined]) for k in range(len(defined[0]))]
    return sum(defined) / len(defined)


def metric_at(metrics: Mapping[str, Any], split: str, view: str, name: str) -> float | None:
    """One number: metric_at(metrics, "val", "local", "f1") is the mean over sites. "f1+accuracy" is their sum."""
    scores = metrics.get(split, {}).get(view, {})
    return metric_value(scores.get("mean", {}) if view == "local" else scores, name)
