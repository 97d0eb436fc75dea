"""Curves: a metric of several runs round by round, their traffic, and checks that the runs can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from crossward.core.evaluation import LOWER_IS_BETTER, metric_at
from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.runs.result import Result
from crossward.runs.run_directory import RunDir

Curve = Sequence[tuple[int, float]]  # (round, value) of the rounds in which the metric is defined


@dataclass(frozen=True)
class MetricSpec:
    """Which metric to compare: on which split, in which view, and over how many rounds to smooth it."""

    metric: str
    view: str = "global"
    split: str = "test"
    window: int = 1

    def __str__(self) -> str:
        return f"{self.metric} on {self.split}, {self.view} view"

    def value(self, line: Mapping[str, Any]) -> float | None:
        """The metric in a line of metrics.jsonl; None if it is undefined there."""
        return metric_at(line["metrics"] or {}, self.split, self.view, self.metric)

    def smoothed(self, curve: Curve) -> Curve:
        """The mean over each evaluated round and those before it, `window` in all."""
        spans = [curve[end - self.window : end] for end in range(self.window, len(curve) + 1)]
        return [(span[-1][0], fmean(value for _, value in span)) for span in spans]

    def reaches(self, value: float, target: float) -> bool:
        return value <= target if self.metric in LOWER_IS_BETTER else value >= target


@dataclass(frozen=True)
class ComparedRun:
    """A run, with the curve and the traffic by which it is compared."""

    method: str  # the label under which it is compared
    seed: int
    result: Result
    rounds: int  # that are done
    curve: Curve
    traffic: Sequence[Mapping[str, Any]]  # the lines of traffic.jsonl
    chosen: float | None  # the metric in the round that validation chose; None: it is undefined there


def read_run(result: Result, method: str, spec: MetricSpec) -> ComparedRun:
    """The run, in one pass over metrics.jsonl: it is the largest file of a run directory."""
    rounds = 0
    chosen_round = None
    points = []
    for line in result.each_round():
        rounds += 1
        if line.get("best"):
            chosen_round = line["round"]
        if (value := spec.value(line)) is not None:
            points.append((line["round"], value))
    chosen = next((value for round, value in points if round == chosen_round), None)
    return ComparedRun(method, result.config["run"]["seed"], result, rounds, points, result.traffic, chosen)


def method_labels(results: Sequence[Result]) -> list[str]:
    """The name of each run's method, followed by the options that differ between runs of that method."""
    methods = [(result.about["method"]["name"], _options(result.about)) for result in results]
    labels = []
    for name, options in methods:
        same_method = [others for other, others in methods if other == name]
        differing = [
            f"{key}={value}"
            for key, value in options.items()
            if any(others.get(key) != value for others in same_method)
        ]
        labels.append(f"{name} ({', '.join(differing)})" if differing else name)
    return labels


def _options(about: Mapping[str, Any]) -> dict[str, str]:
    """The options of a run's method and plugins, as JSON."""
    plugins = {f"{name}.{key}": value for name, plugin in about["plugins"].items() for key, value in plugin.items()}
    options = {key: json.dumps(value) for key, value in (about["method"] | plugins).items() if key != "name"}
    return options | _privacy_asked(about.get("config", {}).get("privacy") or {})


def _privacy_asked(asked: Mapping[str, Any]) -> dict[str, str]:
    """What protection a run was configured with, in a few words."""
    amount = f"ε {asked['epsilon']:g}" if asked.get("epsilon") is not None else f"noise {asked.get('noise') or 0:g}"
    return {
        "privacy": f"{asked['unit']}, {amount}" if asked.get("unit") else "no noise",
        "secure sums": "yes" if asked.get("secure_aggregation") else "no",
    } | {
        key: f"{asked[key]:g}"
        for key, default in (("clip", 1.0), ("delta", 1e-5))
        if asked.get("unit") and asked.get(key, default) != default
    }


def check_comparable(runs: Sequence[ComparedRun], spec: MetricSpec) -> None:
    """Raise if the runs cannot be compared; the error lists all runs that are in the way."""
    _check_traffic(runs)
    _check_metric(runs, spec)
    _check_window(runs, spec.window)
    _check_seeds(runs)


def _check_traffic(runs: Sequence[ComparedRun]) -> None:
    reasons = [(run.result.folder, _why_no_traffic(run)) for run in runs]
    problems = [f"{folder}: {reason}" for folder, reason in reasons if reason]
    if problems:
        raise ConfigError("these runs sent nothing that could be compared", details=problems, hint="Leave them out.")


def _why_no_traffic(run: ComparedRun) -> str:
    """Why a run sent nothing; empty if it did send something."""
    if run.result.about["pooled"]:
        return f"{run.method} trains on all images in one place"
    if not run.rounds:
        return "no round is done"
    if not any(line["bytes"] for line in run.traffic):
        return f"{run.method} sends nothing"
    return ""


def _check_metric(runs: Sequence[ComparedRun], spec: MetricSpec) -> None:
    available = {run.result.folder: _available_metrics(run.result, spec) for run in runs if not run.curve}
    if not available:
        return
    known = dict.fromkeys(name for names in available.values() for name in names)
    raise ConfigError(
        f"some runs have no {spec}",
        details=[f"{folder} has {', '.join(names) or 'none at all'}" for folder, names in available.items()],
        hint=nearest(spec.metric, known) if known else "Choose another view or split.",
    )


def _available_metrics(result: Result, spec: MetricSpec) -> list[str]:
    """The metrics that are single numbers, on this split in this view."""
    evaluated = [line["metrics"] for line in result.each_round() if line["metrics"]]
    views = [metrics.get(spec.split, {}).get(spec.view, {}) for metrics in evaluated]
    if spec.view == "local":
        views = [view.get("mean", {}) for view in views]
    return list(dict.fromkeys(name for view in views for name, value in view.items() if isinstance(value, float)))


def _check_window(runs: Sequence[ComparedRun], window: int) -> None:
    short = [run for run in runs if len(run.curve) < window]
    if short:
        raise ConfigError(
            f"a window of {window} is longer than some runs",
            details=[f"{run.result.folder}: {len(run.curve)} evaluated rounds" for run in short],
        )


def _check_seeds(runs: Sequence[ComparedRun]) -> None:
    first: dict[tuple[str, int], ComparedRun] = {}
    for run in runs:
        other = first.setdefault((run.method, run.seed), run)
        if other is not run:
            raise ConfigError(
                f"two runs of {run.method!r} have seed {run.seed}",
                details=[str(other.result.folder), str(run.result.folder)],
                hint="Compare runs of one setting at a time.",
            )


def comparison_warnings(runs: Sequence[ComparedRun]) -> list[str]:
    """What people should know before they trust a comparison of these runs."""
    return [
        *_unfinished_warnings(runs),
        *_task_warnings(runs),
        *_data_warnings(runs),
        *_evaluation_warnings(runs),
    ]


def _unfinished_warnings(runs: Sequence[ComparedRun]) -> Iterator[str]:
    for run in runs:
        status = run.result.about["status"]
        if status != "finished":
            yield f"{run.result.folder} has not finished: it is {status}"


def _task_warnings(runs: Sequence[ComparedRun]) -> Iterator[str]:
    about = [run.result.about["task"] for run in runs]
    tasks = dict.fromkeys((task["name"], tuple(task["classes"])) for task in about)
    if len(tasks) > 1:
        descriptions = [f"{name} of {', '.join(classes)}" for name, classes in tasks]
        yield f"these runs learn different tasks: {'; '.join(descriptions)}"


def _data_warnings(runs: Sequence[ComparedRun]) -> Iterator[str]:
    partitions = [RunDir(run.result.folder).read("partition.json") for run in runs]
    data = []
    for run, partition in zip(runs, partitions, strict=True):
        height, width = run.result.about["images"]["size"]
        data.append(f"{partition['collection']['name']} at {height}x{width}")
    names = dict.fromkeys(data)
    if len(names) > 1:
        yield f"these runs learn from different data: {', '.join(names)}"
        return
    hashes: dict[int, set[str]] = {}
    for run, partition in zip(runs, partitions, strict=True):
        hashes.setdefault(run.seed, set()).add(partition["hash"])
    for seed, different in hashes.items():
        if len(different) > 1:
            yield f"the runs of seed {seed} share the images out among the sites in different ways"


def _evaluation_warnings(runs: Sequence[ComparedRun]) -> Iterator[str]:
    first_rounds = [run.curve[0][0] for run in runs if len(run.curve) < run.curve[-1][0]]
    if not first_rounds:
        return
    latest = max(first_rounds)
    which = f"the first one seen is round {latest}" if latest > 1 else "evaluate.every is above 1"
    yield f"some runs are not evaluated in every round ({which}): a target may be reached before it is seen"
