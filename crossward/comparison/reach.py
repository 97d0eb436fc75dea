"""Reach: the rounds and the parameters that methods need to reach a target, as multiples of a reference method's.

This is the communication cost of FedCD's Table 2, where the target is FedAvg's accuracy after its last round and the
reference is FedCD. Every method is held to one rule, that of the target included: the first evaluated round that
reaches it counts.

What was sent is the sum of a run's ledger up to that round: all clients, all payload items, all steps. The ledger
counts bytes (tensors their data, scalars their JSON). Weights travel as float32, so 4 bytes are a parameter here; the
few integers and scalars beside the weights are counted by their bytes as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from crossward.comparison.curves import Measure, Run, doubts, labelled, read, refuse
from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.runs.result import Result, load

PARAMETER = 4  # bytes of a float32
MIB = 2**20
UNBOUNDED = ("nll", "hd95")


@dataclass(frozen=True)
class Reached:
    """One run: when it reached the target, and what the server and all clients had sent each other by then."""

    method: str
    seed: int
    folder: str
    target: float
    best: float
    rounds: int | None  # None: it was not reached
    bytes: Mapping[str, int] = field(default_factory=dict)  # "up", "down" and "total"
    items: Mapping[str, int] = field(default_factory=dict)  # the same bytes by payload item
    times_rounds: float | None = None  # of the reference's run of the same seed
    times_parameters: float | None = None

    def parameters(self) -> dict[str, int]:
        return {direction: round(count / PARAMETER) for direction, count in self.bytes.items()}

    def mib(self) -> dict[str, float]:
        return {direction: count / MIB for direction, count in self.bytes.items()}


@dataclass(frozen=True)
class Cost:
    """One method, over its seeds."""

    method: str
    runs: tuple[Reached, ...]

    @property
    def reached(self) -> int:
        return sum(run.rounds is not None for run in self.runs)

    def numbers(self) -> dict[str, list[float]]:
        """What is told of the method, each a list over the runs that have it: those that reached the target, and of
        multiples those whose reference did as well."""
        there = [run for run in self.runs if run.rounds is not None]
        return {
            "best": [run.best for run in self.runs],
            "rounds": [run.rounds for run in there if run.rounds],
            "up": [run.parameters()["up"] for run in there],
            "down": [run.parameters()["down"] for run in there],
            "parameters": [run.parameters()["total"] for run in there],
            "parameters_a_round": [run.parameters()["total"] / run.rounds for run in there if run.rounds],
            "mib": [run.mib()["total"] for run in there],
            "times_rounds": [run.times_rounds for run in there if run.times_rounds is not None],
            "times_parameters": [run.times_parameters for run in there if run.times_parameters is not None],
        }

    def document(self) -> dict[str, Any]:
        runs = [asdict(run) | {"parameters": run.parameters(), "mib": run.mib()} for run in self.runs]
        numbers = {name: _told(values) for name, values in self.numbers().items()}
        return {"method": self.method, "reached": self.reached, "of": len(self.runs), **numbers, "runs": runs}


@dataclass(frozen=True)
class Reach:
    measure: Measure
    target_of: str | None  # the method whose end is the target; None: the target is a given number
    reference: str
    costs: tuple[Cost, ...]
    warnings: tuple[str, ...]

    @property
    def targets(self) -> list[float]:
        """One a seed, or the given number."""
        by_seed = {run.seed: run.target for cost in self.costs for run in cost.runs}
        return list(by_seed.values())[: None if self.target_of else 1]

    def document(self) -> dict[str, Any]:
        """All of it, for programs."""
        target = {"of": self.target_of} | (_told(self.targets) or {})
        methods = [cost.document() for cost in self.costs]
        told = {"target": target, "reference": self.reference, "methods": methods, "warnings": list(self.warnings)}
        return asdict(self.measure) | told


def reach(
    runs: Sequence[str | Path | Result],
    *,
    reference: str,
    target: float | str | None = None,
    metric: str | None = None,
    view: str = "global",
    split: str = "test",
    window: int = 1,
    last: int | None = None,
    labels: Sequence[str] | None = None,
) -> Reach:
    """What each method needed to reach the target, over its seeds, relative to the method `reference`.

    `target` is a number, or the name of the method whose end is the target, seed by seed (by default `reference`):
    the mean over its `last` evaluated rounds, as many as `window` unless given. A run reaches it in the first
    evaluated round where the mean over the latest `window` does. `metric` is the task's main one unless given.
    `labels` name the method of each run where its own name would not do; by default runs of one method whose options
    differ are told apart by these.
    """
    results = [run if isinstance(run, Result) else load(run) for run in runs]
    names = labelled(results) if labels is None else list(labels)
    target_of = reference if target is None else target if isinstance(target, str) else None
    _require(names, (reference, target_of), {"window": window, "last": last}, view, split)
    measure = Measure(metric or results[0].about["task"]["main"], view, split, window)
    every = [read(result, name, measure) for result, name in zip(results, names, strict=True)]
    refuse(every, measure)
    if isinstance(target, str | None):
        goals = {run.seed: _end(run, last or window) for run in every if run.method == target_of}
    else:
        goals = dict.fromkeys((run.seed for run in every), _possible(target, measure.metric))
    told = [_reached(run, measure, goals[run.seed]) for run in every if run.seed in goals]
    base = {run.seed: run for run in told if run.method == reference}
    told = [_compared(run, base.get(run.seed)) for run in told]
    costs = [Cost(name, tuple(run for run in told if run.method == name)) for name in dict.fromkeys(names)]
    notes = (*doubts(every), *_aimless(every, goals, target_of), *_unpaired(told, base))
    return Reach(measure, target_of, reference, tuple(cost for cost in costs if cost.runs), notes)


class Spread(NamedTuple):
    mean: float
    std: float | None  # of the sample; None: there is but one


def spread(numbers: Sequence[float]) -> Spread | None:
    if not numbers:
        return None
    return Spread(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None)


def _told(numbers: Sequence[float]) -> dict[str, float | None] | None:
    found = spread(numbers)
    return found and found._asdict()


def _end(run: Run, last: int) -> float:
    if len(run.values) < last:
        raise ConfigError(f"{run.result.folder} has {len(run.values)} evaluated rounds, fewer than the last {last}")
    return fmean(value for _, value in run.values[-last:])


def _reached(run: Run, measure: Measure, target: float) -> Reached:
    curve = measure.smoothed(run.values)
    first = next((round for round, value in curve if measure.reaches(value, target)), None)
    best = measure.best(value for _, value in curve)
    told = Reached(run.method, run.seed, str(run.result.folder), target, best, first)
    if first is None:
        return told
    directions, items = Counter({"up": 0, "down": 0, "total": 0}), Counter[str]()
    for line in run.traffic:
        if line["round"] <= first:
            directions.update({line["direction"]: line["bytes"], "total": line["bytes"]})
            items[line["item"]] += line["bytes"]
    return replace(told, bytes=dict(directions), items=dict(items))


def _compared(run: Reached, base: Reached | None) -> Reached:
    if base is None or run.rounds is None or base.rounds is None:
        return run
    sent = run.bytes["total"] / base.bytes["total"] if base.bytes["total"] else None
    return replace(run, times_rounds=run.rounds / base.rounds, times_parameters=sent)


def _aimless(runs: Iterable[Run], goals: Container[int], target_of: str | None) -> Iterator[str]:
    for run in runs:
        if run.seed not in goals:
            yield f"{run.result.folder} is left out: there is no run of {target_of} with seed {run.seed}"


def _unpaired(runs: Iterable[Reached], base: Mapping[int, Reached]) -> Iterator[str]:
    for run in runs:
        if run.rounds is not None and run.times_rounds is None:
            lacks = "did not reach the target" if run.seed in base else "has no run"
            yield f"{run.folder} is compared with nothing: the reference {lacks} with seed {run.seed}"


def _require(
    names: Sequence[str], wanted: Iterable[str | None], counts: Mapping[str, int | None], view: str, split: str
) -> None:
    if not names:
        raise ConfigError("no runs were given", hint="Name their folders.")
    for name in wanted:
        if name is not None and name not in names:
            raise ConfigError(f"there is no run of {name!r} among these", hint=nearest(name, dict.fromkeys(names)))
    for kind, value, known in (("view", view, ("global", "local")), ("split", split, ("test", "val"))):
        if value not in known:
            raise ConfigError(f"there is no {kind} {value!r}", hint=nearest(value, known))
    for kind, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"{kind} must be at least 1, not {count}")


def _possible(target: float, metric: str) -> float:
    if metric in UNBOUNDED and not 0 <= target < math.inf:
        raise ConfigError(f"{metric} cannot be {target}")
    if metric not in UNBOUNDED and not 0 <= target <= 1:
        raise ConfigError(f"{metric} cannot be {target}", hint="It is told as a fraction: say 0.66 for 66 %.")
    return target
