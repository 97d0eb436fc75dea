"""Intervals: a figure, or a difference of two, with its spread over seeds and its 95 % interval.

The interval of a mean over S seeds must allow for two things: another seed would have trained other networks, and other
patients would have been other images. Let T_s be the figure of seed s (of a pair of methods, their difference on the
same images) and T_s(w) the same on resampled patients w, one w for all seeds. Then

    seeds         s^2 / S, where s^2 is the sample variance of T_s over the seeds
    patients      V - J, where V = Var_w(mean of T_s(w)) and J = (mean of Var_w(T_s(w)) - V) / (S - 1), means over s
    interval      mean of T_s +- t * sqrt(seeds + patients)

J is what differs from seed to seed in how images are judged; it is in s^2 as well, and must not count twice. If all
seeds are tested on the same images, they share the patients' part, which more seeds do not make smaller; if each seed
has images of its own, the second line vanishes by itself and the spread over seeds says it all. t lies between those of
the two parts, t_1 with S - 1 degrees of freedom and t_2 with those of the patients:

    t^2 = t_2^2 + (t_1^2 - t_2^2) * share^1.5      share = seeds / (seeds + patients)

Seeds may agree by chance more closely than the images allow, to the last digit even: the interval is never narrower
than half of that over the images alone, V with the patients' degrees. (The whole of it would cover up to 98.3 %.)

Few seeds make a wide interval. Over all ratios of the two variances nominal 95 % then cover 94.1 to 97.5 % with two
seeds, 94.9 to 96.5 % with three, 95.0 to 95.8 % with five (150 patients; 94.3 to 97.9 % with two seeds and 11).
Cochran's t (a power of 1) covers up to 98.7 % with two seeds, that of Welch and Satterthwaite as little as 87 %. This
is the hierarchical bootstrap in which the level of the seeds, too few to draw from, is computed instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np

from crossward.comparison.method_runs import VIEWS, MethodRuns
from crossward.comparison.resampling import RESAMPLES, DrawnFrom, Resampling, figure, replicates, resampling_for
from crossward.comparison.weighted_metrics import Array
from crossward.errors import ConfigError
from crossward.names import nearest

LEVEL = 0.95
SHARE_POWER = 1.5  # see above


@dataclass(frozen=True)
class SeedSpread:
    """Mean and standard deviation of a figure over seeds."""

    mean: float
    std: float | None  # None: there is only one
    n: int
    kind: str = "sample standard deviation over seeds (n - 1)"


def seed_spread(figures: Sequence[float]) -> SeedSpread:
    if not figures:
        raise ConfigError("there are no figures to average")
    return SeedSpread(fmean(figures), stdev(figures) if len(figures) > 1 else None, len(figures))


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, and from what both were computed."""

    name: str  # "f1 on test, global view: fedbm - fedavg"
    value: float
    low: float | None  # None: there is nothing to make an interval from; `how` says why
    high: float | None
    level: float
    how: str
    seeds: int
    images: int = 0  # 0: no predictions were used
    groups: int = 0  # patients, lesions or slides that were drawn; equal to `images` where none are known
    resamples: int = 0
    standard_error: float | None = None
    degrees: float | None = None  # of freedom, of t
    p: float | None = None  # two-sided, of the value being 0

    def excludes(self, value: float = 0.0) -> bool:
        """Whether the interval is there and does not contain this value."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


def within_fractions(estimate: Estimate, least: float = 0.0) -> Estimate:
    """The estimate of a figure that cannot lie outside 0 and 1, its interval cut off there; `least` of a difference of
    two is -1."""
    if estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(estimate.low, least), high=min(estimate.high, 1.0))


def check_level(level: float) -> float:
    if not 0.5 <= level < 1:
        raise ConfigError(f"the level of an interval cannot be {level}", hint="It is a fraction: say 0.95 for 95 %.")
    return level


def check_view(view: str) -> str:
    if view not in VIEWS:
        raise ConfigError(f"there is no view {view!r}", hint=nearest(view, VIEWS))
    return view


def seeds_and_images_estimate(
    name: str, figures: Sequence[float], drawn: Array | None, resampling: DrawnFrom | None, *, level: float = LEVEL
) -> Estimate:
    """The mean of `figures` (S,) with the interval described above; `drawn` (S, B) are the figures on resamples.

    Without `drawn` the interval is by t over seeds; with one seed it is over images only; with neither there is none.
    """
    check_level(level)
    seeds = len(figures)
    value = fmean(figures)
    if drawn is None or resampling is None:
        return _over_seeds(name, figures, level)
    unit = "groups with their images" if resampling.grouped else "images"
    sizes = {
        "seeds": seeds,
        "images": resampling.images,
        "groups": resampling.groups,
        "resamples": resampling.resamples,
    }
    across = _variance(drawn.mean(0)) * resampling.inflation
    if seeds == 1:
        how = f"one seed: over {unit} only, for these trained networks; {resampling.resamples} bootstrap resamples, t"
        return _by_t(name, value, across, resampling.degrees, level, how, **sizes)
    within = fmean(_variance(row) for row in drawn) * resampling.inflation
    patients = max(across - max(within - across, 0.0) / (seeds - 1), 0.0)
    between = float(np.var(figures, ddof=1)) / seeds
    degrees = combined_degrees((between, seeds - 1.0), (patients, float(resampling.degrees)), level)
    how = f"hierarchical bootstrap: {seeds} seeds and {resampling.resamples} resamples of {unit}, t"
    whole = _by_t(name, value, between + patients, degrees, level, how, **sizes)
    half_of_images = _by_t(name, value, across / 4, resampling.degrees, level, how, **sizes)
    return max(whole, half_of_images, key=_width)


def _width(estimate: Estimate) -> float:
    return 0.0 if estimate.low is None or estimate.high is None else estimate.high - estimate.low


def _over_seeds(name: str, figures: Sequence[float], level: float) -> Estimate:
    seeds = len(figures)
    value = fmean(figures)
    if seeds == 1:
        return Estimate(name, value, None, None, level, "one seed and no predictions: no interval", seeds)
    how = f"no predictions: over {seeds} seeds only, on these images; t"
    return _by_t(name, value, float(np.var(figures, ddof=1)) / seeds, seeds - 1, level, how, seeds=seeds)


def _variance(values: Array) -> float:
    """Over resamples, leaving out those in which the figure is undefined."""
    defined = values[~np.isnan(values)]
    return float(defined.var(ddof=1)) if len(defined) > 1 else 0.0


def combined_degrees(first: tuple[float, float], second: tuple[float, float], level: float) -> float:
    """Degrees of freedom of t for a sum of two variances, each given with its own degrees (see the module's text)."""
    from scipy.optimize import brentq
    from scipy.stats import t

    (fewer, few), (more, many) = sorted((first, second), key=lambda part: part[1])
    total = fewer + more
    if total == 0 or few == many:
        return few
    tail = (1 + level) / 2
    wide, narrow = float(t.ppf(tail, few)), float(t.ppf(tail, many))
    quantile = math.sqrt(narrow**2 + (wide**2 - narrow**2) * (fewer / total) ** SHARE_POWER)
    if not narrow < quantile < wide:
        return many if quantile <= narrow else few
    return float(brentq(lambda degrees: t.ppf(tail, degrees) - quantile, few, many))


def _by_t(
    name: str, value: float, variance: float, degrees: float, level: float, how: str, *, seeds: int, **sizes: int
) -> Estimate:
    from scipy.stats import t

    error = math.sqrt(variance)
    half = float(t.ppf((1 + level) / 2, degrees)) * error
    if error > 0:
        p = float(2 * t.sf(abs(value) / error, degrees))
    else:
        p = 1.0 if value == 0 else 0.0
    return Estimate(
        name,
        value,
        value - half,
        value + half,
        level,
        how,
        seeds,
        standard_error=error,
        degrees=degrees,
        p=p,
        **sizes,
    )


def method_estimate(
    runs: MethodRuns,
    metric: str,
    *,
    view: str = "global",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
    resampling: Resampling | None = None,
) -> Estimate:
    """The mean figure of a method over its seeds, with its interval."""
    check_view(view)
    figures = [figure(run, metric, view) for run in runs.runs]
    defined = [value for value in figures if value is not None]
    name = f"{metric} on {runs.split}, {view} view: {runs.method}"
    if len(defined) < len(figures):
        lacking = [run.folder for run, value in zip(runs.runs, figures, strict=True) if value is None]
        raise ConfigError(f"some runs have no {metric} on {runs.split}, {view} view", details=lacking)
    resampling = resampling or resampling_for([runs], view, resamples=resamples, seed=seed)
    if resampling is None:
        return seeds_and_images_estimate(name, defined, None, None, level=level)
    drawn = [replicates(run, metric, view, resampling) for run in runs.runs]
    rows = [row for row in drawn if row is not None]
    complete = np.stack(rows) if len(rows) == len(drawn) else None
    return seeds_and_images_estimate(name, defined, complete, resampling, level=level)
