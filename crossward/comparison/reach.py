"""Reach: the rounds and the parameters that methods need to reach a target, as multiples of a reference method's.

This is the communication cost of FedCD's Table 2, where the target is FedAvg's accuracy after its last round and the
reference is FedCD. One rule holds for every method, also for the one that sets the target: the first evaluated round
that reaches the target counts.

The traffic is the sum of a run's ledger up to that round: all clients, all payload items, all steps. The ledger counts
bytes (the data of tensors, the JSON of scalars). Weights travel as float32, so 4 bytes count as a parameter here; the
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

from crossward.comparison.curves import (
    ComparedRun,
    MetricSpec,
    check_comparable,
    comparison_warnings,
    method_labels,
    read_run,
)
from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.runs.result import Result, load

PARAMETER = 4  # bytes of a float32
MIB = 2**20
UNBOUNDED = ("nll", "hd95", "hd95_penalised")  # metrics that are no fraction
VIEWS = ("global", "local")
SPLITS = ("test", "val")


@dataclass(frozen=True)
class RunCost:
    """One run: when it reached the target, and what the server and all clients had sent each other by then."""

    method: str
    seed: int
    folder: str
    target: float
    best: float | None  # the metric in the round that validation chose, whatever the test set says; None: undefined
    rounds: int | None  # None: the run did not reach the target
    bytes: Mapping[str, int] = field(default_factory=dict)  # "up", "down" and "total"
    items: Mapping[str, int] = field(default_factory=dict)  # the same bytes by payload item
    times_rounds: float | None = None  # multiple of the reference's run of the same seed
    times_parameters: float | None = None

    def parameters(self) -> dict[str, int]:
        return {direction: round(count / PARAMETER) for direction, count in self.bytes.items()}

    def mib(self) -> dict[str, float]:
        return {direction: count / MIB for direction, count in self.bytes.items()}


@dataclass(frozen=True)
class MethodCost:
    """One method, over its seeds."""

    method: str
    runs: tuple[RunCost, ...]

    @property
    def reached(self) -> int:
        """How many runs reached the target."""
        return sum(run.rounds is not None for run in self.runs)

    def numbers(self) -> dict[str, list[float]]:
        """Each quantity as a list over the runs that have it: those that reached the target, and for multiples those
        whose reference reached it as well."""
        reached = [run for run in self.runs if run.rounds is not None]
        return {
            "best": [run.best for run in self.runs if run.best is not None],
            "rounds": [run.rounds for run in reached if run.rounds],
            "up": [run.parameters()["up"] for run in reached],
            "down": [run.parameters()["down"] for run in reached],
            "parameters": [run.parameters()["total"] for run in reached],
            "parameters_a_round": [run.parameters()["total"] / run.rounds for run in reached if run.rounds],
            "mib": [run.mib()["total"] for run in reached],
            "times_rounds": [run.times_rounds for run in reached if run.times_rounds is not None],
            "times_parameters": [run.times_parameters for run in reached if run.times_parameters is not None],
        }

    def document(self) -> dict[str, Any]:
        runs = [asdict(run) | {"parameters": run.parameters(), "mib": run.mib()} for run in self.runs]
        numbers = {name: _spread_document(values) for name, values in self.numbers().items()}
        return {"method": self.method, "reached": self.reached, "of": len(self.runs), **numbers, "runs": runs}


@dataclass(frozen=True)
class CostToTarget:
    """What every method needed to reach the target."""

    spec: MetricSpec
    target_of: str | None  # the method whose final value is the target; None: the target is a fixed number
    reference: str
    costs: tuple[MethodCost, ...]
    warnings: tuple[str, ...]

    @property
    def targets(self) -> list[float]:
        """One for each seed, or the fixed number alone."""
        by_seed = {run.seed: run.target for cost in self.costs for run in cost.runs}
        targets = list(by_seed.values())
        return targets if self.target_of else targets[:1]

    def document(self) -> dict[str, Any]:
        """All of it as JSON types."""
        return {
            **asdict(self.spec),
            "target": {"of": self.target_of, **(_spread_document(self.targets) or {})},
            "reference": self.reference,
            "methods": [cost.document() for cost in self.costs],
            "warnings": list(self.warnings),
        }


def cost_to_target(
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
) -> CostToTarget:
    """What each method needed to reach the target, over its seeds, relative to the method `reference`.

    `target` is a number, or the name of the method whose final value is the target, seed by seed (default:
    `reference`). The final value is the mean over the `last` evaluated rounds (default: `window`). A run reaches the
    target in the first evaluated round where the mean over the latest `window` rounds does. `metric` defaults to the
    task's main metric. `labels` name the method of each run; by default that is its own name, with the options that
    differ between runs of one method.
    """
    results = [run if isinstance(run, Result) else load(run) for run in runs]
    names = method_labels(results) if labels is None else list(labels)
    target_of = reference if target is None else target if isinstance(target, str) else None
    _check_names(names, (reference, target_of))
    _check_options(view, split, window, last)
    spec = MetricSpec(metric or results[0].about["task"]["main"], view, split, window)
    compared = [read_run(result, name, spec) for result, name in zip(results, names, strict=True)]
    check_comparable(compared, spec)
    if isinstance(target, str | None):
        targets = {run.seed: _final_value(run, last or window) for run in compared if run.method == target_of}
    else:
        _check_target(target, spec.metric)
        targets = dict.fromkeys((run.seed for run in compared), target)
    absolute = [_run_cost(run, spec, targets[run.seed]) for run in compared if run.seed in targets]
    base = {run.seed: run for run in absolute if run.method == reference}
    relative = [_relative_cost(run, base.get(run.seed)) for run in absolute]
    costs = [MethodCost(name, tuple(run for run in relative if run.method == name)) for name in dict.fromkeys(names)]
    warnings = [
        *comparison_warnings(compared),
        *_missing_target_warnings(compared, targets, target_of),
        *_missing_reference_warnings(relative, base),
    ]
    return CostToTarget(spec, target_of, reference, tuple(cost for cost in costs if cost.runs), tuple(warnings))


class Spread(NamedTuple):
    mean: float
    std: float | None  # of the sample; None: there is only one number


def spread(numbers: Sequence[float]) -> Spread | None:
    """Mean and standard deviation; None if there are no numbers."""
    if not numbers:
        return None
    return Spread(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None)


def _spread_document(numbers: Sequence[float]) -> dict[str, float | None] | None:
    result = spread(numbers)
    return None if result is None else result._asdict()


def _final_value(run: ComparedRun, last: int) -> float:
    """The mean over the last evaluated rounds."""
    if len(run.curve) < last:
        raise ConfigError(f"{run.result.folder} has {len(run.curve)} evaluated rounds, fewer than the last {last}")
    return fmean(value for _, value in run.curve[-last:])


def _run_cost(run: ComparedRun, spec: MetricSpec, target: float) -> RunCost:
    curve = spec.smoothed(run.curve)
    first = next((round for round, value in curve if spec.reaches(value, target)), None)
    cost = RunCost(run.method, run.seed, str(run.result.folder), target, run.chosen, first)
    if first is None:
        return cost
    directions = Counter({"up": 0, "down": 0, "total": 0})
    items = Counter[str]()
    for line in run.traffic:
        if line["round"] <= first:
            directions.update({line["direction"]: line["bytes"], "total": line["bytes"]})
            items[line["item"]] += line["bytes"]
    return replace(cost, bytes=dict(directions), items=dict(items))


def _relative_cost(run: RunCost, base: RunCost | None) -> RunCost:
    """The cost with its multiples of `base`, if both reached the target."""
    if base is None or run.rounds is None or base.rounds is None:
        return run
    times_parameters = run.bytes["total"] / base.bytes["total"] if base.bytes["total"] else None
    return replace(run, times_rounds=run.rounds / base.rounds, times_parameters=times_parameters)


def _missing_target_warnings(
    runs: Iterable[ComparedRun], seeds_with_target: Container[int], target_of: str | None
) -> Iterator[str]:
    for run in runs:
        if run.seed not in seeds_with_target:
            yield f"{run.result.folder} is left out: there is no run of {target_of} with seed {run.seed}"


def _missing_reference_warnings(runs: Iterable[RunCost], base: Mapping[int, RunCost]) -> Iterator[str]:
    for run in runs:
        if run.rounds is not None and run.times_rounds is None:
            reason = "did not reach the target" if run.seed in base else "has no run"
            yield f"{run.folder} is compared with nothing: the reference {reason} with seed {run.seed}"


def _check_names(names: Sequence[str], required: Iterable[str | None]) -> None:
    if not names:
        raise ConfigError("no runs were given", hint="Name their folders.")
    for name in required:
        if name is not None and name not in names:
            raise ConfigError(f"there is no run of {name!r} among these", hint=nearest(name, dict.fromkeys(names)))


def _check_options(view: str, split: str, window: int, last: int | None) -> None:
    if view not in VIEWS:
        raise ConfigError(f"there is no view {view!r}", hint=nearest(view, VIEWS))
    if split not in SPLITS:
        raise ConfigError(f"there is no split {split!r}", hint=nearest(split, SPLITS))
    if window < 1:
        raise ConfigError(f"window must be at least 1, not {window}")
    if last is not None and last < 1:
        raise ConfigError(f"last must be at least 1, not {last}")


def _check_target(target: float, metric: str) -> None:
    if metric in UNBOUNDED and not 0 <= target < math.inf:
        raise ConfigError(f"{metric} cannot be {target}")
    if metric not in UNBOUNDED and not 0 <= target <= 1:
        raise ConfigError(f"{metric} cannot be {target}", hint="It is a fraction: say 0.66 for 66 %.")
