"""Curves: the metric of several runs round by round, what they sent, and whether they may stand side by side."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from crossward.core.evaluation import LOWER_IS_BETTER, at
from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.runs.result import Result
from crossward.runs.run_directory import RunDir


@dataclass(frozen=True)
class Measure:
    """What is looked at in each evaluated round."""

    metric: str
    view: str = "global"
    split: str = "test"
    window: int = 1

    def values(self, result: Result) -> list[tuple[int, float]]:
        """(round, value) of the rounds in which it is defined."""
        told = [
            (line["round"], at(line["metrics"] or {}, self.split, self.view, self.metric)) for line in result.rounds
        ]
        return [(round, value) for round, value in told if value is not None]

    def smoothed(self, values: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        """The mean over each evaluated round and those before it, `window` in all."""
        spans = [values[end - self.window : end] for end in range(self.window, len(values) + 1)]
        return [(span[-1][0], fmean(value for _, value in span)) for span in spans]

    def reaches(self, value: float, target: float) -> bool:
        return value <= target if self.metric in LOWER_IS_BETTER else value >= target

    def best(self, values: Iterable[float]) -> float:
        return min(values) if self.metric in LOWER_IS_BETTER else max(values)


@dataclass(frozen=True)
class Run:
    """What is read of a run directory."""

    method: str
    seed: int
    result: Result
    values: Sequence[tuple[int, float]]
    traffic: Sequence[Mapping[str, Any]]


def labelled(results: Sequence[Result]) -> list[str]:
    """The name of each run's method, with those options that tell runs of one name apart."""
    known = [(result.about["method"]["name"], _options(result.about)) for result in results]
    made = []
    for name, mine in known:
        alike = [options for other, options in known if other == name]
        apart = [f"{key}={value}" for key, value in mine.items() if any(o.get(key) != value for o in alike)]
        made.append(f"{name} ({', '.join(apart)})" if apart else name)
    return made


def _options(about: Mapping[str, Any]) -> dict[str, str]:
    plugins = {f"{name}.{key}": value for name, plugin in about["plugins"].items() for key, value in plugin.items()}
    return {key: json.dumps(value) for key, value in (about["method"] | plugins).items() if key != "name"}


def read(result: Result, method: str, measure: Measure) -> Run:
    return Run(method, result.config["run"]["seed"], result, measure.values(result), result.traffic)


def refuse(runs: Sequence[Run], measure: Measure) -> None:
    """What makes a comparison impossible, all offending runs at once."""
    if silent := [f"{run.result.folder}: {why}" for run in runs if (why := _silent(run))]:
        raise ConfigError("these runs sent nothing that could be compared", details=silent, hint="Leave them out.")
    if blank := [run for run in runs if not run.values]:
        scored = {run.result.folder: _scored(run.result, measure) for run in blank}
        where = f"{measure.metric} on {measure.split}, {measure.view} view"
        details = [f"{folder} has {', '.join(names) or 'none at all'}" for folder, names in scored.items()]
        known = dict.fromkeys(name for names in scored.values() for name in names)
        hint = nearest(measure.metric, known) if known else "Choose another view or split."
        raise ConfigError(f"some runs have no {where}", details=details, hint=hint)
    if short := [
        f"{r.result.folder}: {len(r.values)} evaluated rounds" for r in runs if len(r.values) < measure.window
    ]:
        raise ConfigError(f"a window of {measure.window} is longer than some runs", details=short)
    first: dict[tuple[str, int], Run] = {}
    for run in runs:
        other = first.setdefault((run.method, run.seed), run)
        if other is not run:
            raise ConfigError(
                f"two runs of {run.method!r} have seed {run.seed}",
                details=[str(other.result.folder), str(run.result.folder)],
                hint="Compare runs of one setting at a time.",
            )


def doubts(runs: Sequence[Run]) -> Iterator[str]:
    """What people should know before they trust a comparison."""
    for run in runs:
        if (status := run.result.about["status"]) != "finished":
            yield f"{run.result.folder} has not finished: it is {status}"
    tasks = dict.fromkeys((t["name"], tuple(t["classes"])) for t in (run.result.about["task"] for run in runs))
    if len(tasks) > 1:
        told = "; ".join(f"{name} of {', '.join(classes)}" for name, classes in tasks)
        yield f"these runs learn different tasks: {told}"
    yield from _different_data(runs)
    unseen = {run.values[0][0] for run in runs if len(run.values) < run.values[-1][0]}
    if unseen:
        first = f"the first one seen is round {max(unseen)}" if max(unseen) > 1 else "evaluate.every is above 1"
        yield f"some runs are not evaluated in every round ({first}): a target may be reached before it is seen"


def _different_data(runs: Sequence[Run]) -> Iterator[str]:
    parted = [(run, RunDir(run.result.folder).read("partition.json")) for run in runs]
    sizes = [tuple(run.result.about["images"]["size"]) for run in runs]
    data = [f"{p['collection']['name']} at {h}x{w}" for (_, p), (h, w) in zip(parted, sizes, strict=True)]
    if len(names := dict.fromkeys(data)) > 1:
        yield f"these runs learn from different data: {', '.join(names)}"
        return
    for seed in dict.fromkeys(run.seed for run in runs):
        if len({p["hash"] for run, p in parted if run.seed == seed}) > 1:
            yield f"the runs of seed {seed} share the images out among the sites in different ways"


def _silent(run: Run) -> str:
    if run.result.about["pooled"]:
        return f"{run.method} trains on all images in one place"
    if not run.result.rounds:
        return "no round is done"
    return "" if any(line["bytes"] for line in run.traffic) else f"{run.method} sends nothing"


def _scored(result: Result, measure: Measure) -> list[str]:
    """The metrics, single numbers, that there are on this split in this view."""
    told = [line["metrics"].get(measure.split, {}).get(measure.view, {}) for line in result.rounds if line["metrics"]]
    views = [metrics.get("mean", {}) if measure.view == "local" else metrics for metrics in told]
    return list(dict.fromkeys(name for view in views for name, value in view.items() if isinstance(value, float)))
