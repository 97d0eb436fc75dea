"""Verdicts: whether one method is better than another, worse, or not distinguishable.

    a = read_method_runs(["runs/fedbm-s0", "runs/fedbm-s1"])
    b = read_method_runs(["runs/fedavg-s0", "runs/fedavg-s1"])
    print(compare_pair(a, b, "f1").sentence())

The verdict goes by the p value that belongs to the interval of the difference (see intervals.py), adjusted by Holm for
the number of pairs that were asked for. The paired tests across seeds stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossward.comparison.intervals import LEVEL, Estimate, check_level, check_view, seeds_and_images_estimate
from crossward.comparison.method_runs import MethodRun, MethodRuns
from crossward.comparison.paired_tests import PairedTests, holm, paired_tests
from crossward.comparison.resampling import RESAMPLES, DrawnFrom, Resampling, figure, replicates, resampling_for
from crossward.comparison.weighted_metrics import Array
from crossward.core.evaluation import LOWER_IS_BETTER
from crossward.errors import ConfigError
from crossward.names import nearest

BETTER = "better"
WORSE = "worse"
NOT_DISTINGUISHABLE = "not distinguishable"


@dataclass(frozen=True)
class PairComparison:
    """Method `a` against method `b`."""

    a: str
    b: str
    metric: str
    view: str
    split: str
    seeds: tuple[int, ...]  # that both have
    figures: tuple[tuple[float, float], ...]  # of a and b, seed by seed
    difference: Estimate  # a - b
    tests: PairedTests
    verdict: str  # "better", "worse" or "not distinguishable": of a
    p_adjusted: float | None  # the difference's p, adjusted by Holm; None: there was nothing to test
    pairs: int  # that were asked for together
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The verdict in words, with its numbers."""
        estimate = self.difference
        words = {BETTER: "is better than", WORSE: "is worse than"}
        verb = words.get(self.verdict, "is not distinguishable from")
        if estimate.low is None or estimate.high is None:
            interval = estimate.how
        else:
            interval = f"{estimate.level:.0%} interval {estimate.low:+.4f} to {estimate.high:+.4f}"
        p = "" if self.p_adjusted is None else f", p = {self.p_adjusted:.3g} (Holm over {self.pairs})"
        sizes = f"{estimate.seeds} seed(s)" + (f", {estimate.images} images" if estimate.images else "")
        return (
            f"{self.a} {verb} {self.b} in {self.metric} on {self.split}, {self.view} view: "
            f"difference {estimate.value:+.4f}, {interval}{p}; {sizes}"
        )


def compare_pair(
    a: MethodRuns,
    b: MethodRuns,
    metric: str,
    *,
    view: str = "global",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PairComparison:
    """Compare two methods on their common seeds; several pairs: `compare_pairs`, which allows for their number."""
    names = (a.method, b.method) if a.method != b.method else (a.method, f"{b.method} (second)")
    methods = {names[0]: a, names[1]: b}
    [comparison] = compare_pairs(methods, [names], metric, view=view, level=level, resamples=resamples, seed=seed)
    return comparison


def compare_pairs(
    methods: Mapping[str, MethodRuns],
    pairs: Sequence[tuple[str, str]],
    metric: str,
    *,
    view: str = "global",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[PairComparison]:
    """Compare pairs of methods by name, all on the same resamples; verdicts are Holm-corrected over these pairs."""
    check_view(view)
    check_level(level)
    _check_pairs(methods, pairs)
    used = {name: methods[name] for pair in pairs for name in pair}
    resampling = resampling_for(list(used.values()), view, resamples=resamples, seed=seed)
    scored = {name: _score(runs, metric, view, resampling) for name, runs in used.items()}
    comparisons = []
    for a, b in pairs:
        what = ComparedMetric(metric, view, used[a].split)
        comparison = compare_scored(scored[a], scored[b], (a, b), what, level, resampling)
        notes = _notes(used[a], used[b], (a, b), comparison.seeds, view)
        comparisons.append(replace(comparison, notes=tuple(notes)))
    return judge(comparisons, level)


@dataclass(frozen=True)
class ScoredMethod:
    """A metric of a method by seed."""

    figures: Mapping[int, float]
    drawn: Mapping[int, Array]  # the figure on each resample; only where there are predictions


@dataclass(frozen=True)
class ComparedMetric:
    metric: str
    view: str
    split: str


def _check_pairs(methods: Mapping[str, MethodRuns], pairs: Sequence[tuple[str, str]]) -> None:
    for a, b in pairs:
        for name in (a, b):
            if name not in methods:
                raise ConfigError(f"there is no method {name!r} to compare", hint=nearest(name, methods))
        if a == b:
            raise ConfigError(f"{a} cannot be compared with itself", hint="Name two methods.")
        if methods[a].split != methods[b].split:
            raise ConfigError(f"{a} was read on {methods[a].split} and {b} on {methods[b].split}")


def _score(runs: MethodRuns, metric: str, view: str, resampling: Resampling | None) -> ScoredMethod:
    figures = {run.seed: figure(run, metric, view) for run in runs.runs}
    lacking = [run.folder for run in runs.runs if figures[run.seed] is None]
    if lacking:
        known = dict.fromkeys(name for run in runs.runs for name in _stored_metrics(run, view))
        raise ConfigError(
            f"some runs of {runs.method} have no {metric} on {runs.split}, {view} view",
            details=lacking,
            hint=nearest(metric, known) if known else "Choose another view or split.",
        )
    drawn = {}
    for run in runs.runs if resampling is not None else ():
        row = replicates(run, metric, view, resampling) if resampling is not None else None
        if row is not None:
            drawn[run.seed] = row
    return ScoredMethod({s: value for s, value in figures.items() if value is not None}, drawn)


def _stored_metrics(run: MethodRun, view: str) -> list[str]:
    scores = run.metrics.get("global", {}) if view == "global" else run.metrics.get("local", {}).get("mean", {})
    return [name for name, value in scores.items() if isinstance(value, float)]


def compare_scored(
    a: ScoredMethod,
    b: ScoredMethod,
    names: tuple[str, str],
    what: ComparedMetric,
    level: float,
    resampling: DrawnFrom | None,
) -> PairComparison:
    """Two methods on their common seeds, not judged yet: `judge` does that for all pairs that were asked for."""
    seeds = tuple(seed for seed in a.figures if seed in b.figures)
    if not seeds:
        raise ConfigError(
            f"{names[0]} and {names[1]} have no seed in common",
            details=[f"{name}: {', '.join(map(str, each.figures))}" for name, each in zip(names, (a, b), strict=True)],
            hint="Run both with the same seeds: they are compared seed by seed.",
        )
    complete = all(seed in each.drawn for seed in seeds for each in (a, b))
    drawn = np.stack([a.drawn[seed] - b.drawn[seed] for seed in seeds]) if complete else None
    figures = tuple((a.figures[seed], b.figures[seed]) for seed in seeds)
    title = f"{what.metric} on {what.split}, {what.view} view: {names[0]} - {names[1]}"
    differences = [first - second for first, second in figures]
    firsts, seconds = zip(*figures, strict=True)
    return PairComparison(
        *names,
        metric=what.metric,
        view=what.view,
        split=what.split,
        seeds=seeds,
        figures=figures,
        difference=seeds_and_images_estimate(title, differences, drawn, resampling, level=level),
        tests=paired_tests(firsts, seconds, lower_is_better=what.metric in LOWER_IS_BETTER),
        verdict=NOT_DISTINGUISHABLE,
        p_adjusted=None,
        pairs=1,
    )


def _notes(a: MethodRuns, b: MethodRuns, names: tuple[str, str], seeds: Sequence[int], view: str) -> list[str]:
    """What people should know before they believe the comparison."""
    notes = []
    runs = {name: {run.seed: run for run in each.runs} for name, each in zip(names, (a, b), strict=True)}
    for name, by_seed in runs.items():
        alone = [str(seed) for seed in by_seed if seed not in seeds]
        if alone:
            notes.append(f"{name}: seed {', '.join(alone)} is left out, the other method has no such run")
        notes += dict.fromkeys(f"{name}: {run.missing}" for run in by_seed.values() if run.missing)
    for seed in seeds:
        first, second = ({i for each in runs[name][seed].sets(view) for i in each.ids} for name in names)
        if first and second and first != second:
            notes.append(f"seed {seed}: the two methods were tested on different images")
    return notes


def judge(comparisons: Sequence[PairComparison], level: float) -> list[PairComparison]:
    """The comparisons with their verdicts, Holm-corrected over all of them."""
    tested = [i for i, each in enumerate(comparisons) if each.difference.p is not None]
    adjusted = dict(zip(tested, holm([comparisons[i].difference.p or 0.0 for i in tested]), strict=True))
    judged = []
    for i, each in enumerate(comparisons):
        p = adjusted.get(i)
        judged.append(replace(each, p_adjusted=p, pairs=len(comparisons), verdict=_verdict(each, p, level)))
    return judged


def _verdict(comparison: PairComparison, p: float | None, level: float) -> str:
    value = comparison.difference.value
    if p is None or p > 1 - level or value == 0:
        return NOT_DISTINGUISHABLE
    return BETTER if (value < 0) == (comparison.metric in LOWER_IS_BETTER) else WORSE
