"""Evaluation: the global view (one test set), the local view (each site's own), and every prediction behind them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from crossward.core.engine import SERVER, Cohort, Engine, Sites
from crossward.core.task import Metrics, Task
from crossward.core.tree import Tree

LOWER_IS_BETTER = frozenset({"ece", "nll", "hd95"})


class EvaluatedSites(Sites, Protocol):
    """Sites that are evaluated: by their targets, which a simulation knows, or by themselves."""

    task: Task
    away: bool  # their images and targets are not here: each judges itself and tells its metrics

    @property
    def personal(self) -> bool:
        """Whether sites predict with networks of their own."""
        ...

    def targets(self, site: int, split: str) -> Tensor: ...


@dataclass(frozen=True)
class Evaluation:
    predictions: Tree  # site name (or "server") -> {"val", "test", "common_val", "common_test"} -> kept predictions
    metrics: dict[str, Any]  # split -> {"global": Metrics, "local": {"mean", "worst", "sites"}}
    failures: dict[str, str]


def evaluate(sites: EvaluatedSites, engine: Engine, down: Tree, round: int) -> Evaluation:
    """Every site predicts as it would deploy; nothing it does for that is kept. Metrics of validation only:
    `judge` adds the test metrics once it is known how thorough they must be."""
    ids = sites.ids if sites.personal else [*sites.ids, SERVER]
    cohort = Cohort(sites, engine, round, [i for i in ids if sites.work(i, "predict")], keep=False)
    if sites.away:
        told = {i: json.loads(reply["metrics"]) for i, reply in cohort.ask("judge", down).items()}
        cohort.close()
        return Evaluation({}, _told(sites, told, "val") | _told(sites, told, "test"), cohort.failures)
    replies = cohort.ask("predict", down)
    predictions = {sites.name(i): dict(reply) for i, reply in replies.items()}
    cohort.close()
    return Evaluation(predictions, judge(sites, predictions, "val", full=False), cohort.failures)


def judge(sites: EvaluatedSites, predictions: Mapping[str, Tree], split: str, full: bool) -> dict[str, Any]:
    """{split: both views} from kept predictions; empty when nobody has such a set, or each judges itself."""
    ids = {sites.name(i): i for i in [*sites.ids, SERVER]}
    told = {ids[name]: reply for name, reply in predictions.items()}
    own = {i: reply[split] for i, reply in told.items() if split in reply and i != SERVER}
    each = {i: sites.task.metrics(p, sites.targets(i, split), full=full) for i, p in own.items()}
    views: dict[str, Any] = {}
    if each:
        views["local"] = _local({sites.name(i): m for i, m in each.items()})
    if overall := _global(sites, told, own, split, full):
        views["global"] = overall
    return {split: views} if views else {}


def _told(sites: EvaluatedSites, told: Mapping[int, Mapping[str, Metrics]], split: str) -> dict[str, Any]:
    """{split: views} from what every site says of itself."""
    views: dict[str, Any] = {}
    if named := {sites.name(i): metrics[split] for i, metrics in told.items() if split in metrics and i != SERVER}:
        views["local"] = _local(named)
    if overall := told.get(SERVER, {}).get(split):
        views["global"] = overall
    return {split: views} if views else {}


def _local(named: dict[str, Metrics]) -> dict[str, Any]:
    return {"mean": mean(named.values()), "worst": worst(named.values()), "sites": named}


def _global(
    sites: EvaluatedSites, told: Mapping[int, Tree], own: Mapping[int, Tensor], split: str, full: bool
) -> Metrics:
    if SERVER in told and split in told[SERVER]:
        return sites.task.metrics(told[SERVER][split], sites.targets(SERVER, split), full=full)
    common = {i: reply[f"common_{split}"] for i, reply in told.items() if f"common_{split}" in reply}
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
    found: Metrics = {}
    for name in _names(every):
        values = [m[name] for m in every if isinstance(m.get(name), float)]
        if values:
            found[name] = max(values) if name in LOWER_IS_BETTER else min(values)
    return found


def _names(every: Sequence[Metrics]) -> list[str]:
    return list(dict.fromkeys(name for m in every for name in m))


def _combine(name: str, values: list[Any]) -> Any:
    if name == "confusion":
        return torch.tensor(values).sum(0).tolist()
    defined = [v for v in values if v is not None]
    if not defined:
        return None
    if isinstance(defined[0], int):
        return sum(defined)
    if isinstance(defined[0], list):
        return [_combine(name, [v[k] for v in defined]) for k in range(len(defined[0]))]
    return sum(defined) / len(defined)


def at(metrics: Mapping[str, Any], split: str, view: str, name: str) -> float | None:
    """One number: at(metrics, "val", "local", "f1") is the mean over sites."""
    found = metrics.get(split, {}).get(view, {})
    value = (found.get("mean", {}) if view == "local" else found).get(name)
    return value if isinstance(value, float) else None
