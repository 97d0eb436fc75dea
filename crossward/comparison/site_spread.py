"""Site spread: what each site has of a method, which fares worst, and how far they are apart."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import numpy as np

from crossward.comparison.intervals import LEVEL, Estimate, check_level, method_estimate
from crossward.comparison.method_runs import MethodRun, MethodRuns
from crossward.comparison.norm_intervals import Norm, gini, largest_gap, norm_interval, sample_deviation
from crossward.comparison.resampling import RESAMPLES, Resampling, resampled, resampling_for, set_replicates
from crossward.comparison.verdicts import PairComparison, compare_pairs
from crossward.comparison.weighted_metrics import Array, plain_metric
from crossward.core.evaluation import LOWER_IS_BETTER
from crossward.errors import ConfigError

SPREADS: dict[str, Norm] = {
    "sample standard deviation over sites (n - 1)": sample_deviation,
    "Gini's index over sites": gini,
    "largest minus smallest site": largest_gap,
}


@dataclass(frozen=True)
class SiteFigure:
    site: str
    estimate: Estimate  # mean over seeds
    gain: PairComparison | None  # over the baseline, as local training; Holm-corrected over the sites


@dataclass(frozen=True)
class SiteSpread:
    """A method site by site; the spread is of the sites' means over seeds."""

    method: str
    metric: str
    split: str
    baseline: str | None
    sites: tuple[SiteFigure, ...]
    worst_site: str
    worst: Estimate
    std: Estimate
    gini: Estimate
    max_min: Estimate

    @property
    def n(self) -> int:
        return len(self.sites)


def site_spread(
    runs: MethodRuns,
    metric: str,
    *,
    baseline: MethodRuns | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> SiteSpread:
    """Every site's figure, its gain over `baseline` (local training), the worst site and the spread.

    The intervals of worst site and spread are over images, for these trained networks, where predictions are stored.
    """
    check_level(level)
    names = runs.sites
    if len(names) < 2:
        raise ConfigError(f"{runs.method} has {len(names)} site(s) on {runs.split}: a spread needs two at least")
    means = np.array([fmean(_figures(runs, name, metric)) for name in names])
    resampling = resampling_for([runs], "local", resamples=resamples, seed=seed)
    drawn = None if resampling is None else _drawn(runs, metric, names, resampling)
    worst = int(means.argmax() if metric in LOWER_IS_BETTER else means.argmin())
    spread = [_spread(f"{metric}: {kind}", means, drawn, norm, runs, resampling, level)
              for kind, norm in SPREADS.items()]  # fmt: skip
    gains = _gains(runs, baseline, metric, level, resamples, seed)
    sites = [
        SiteFigure(name, method_estimate(runs.site(name), metric, view="local", level=level, resamples=resamples,
                                         seed=seed), gains.get(name))
        for name in names
    ]  # fmt: skip
    worst_estimate = _worst(metric, means, drawn, runs, resampling, level)
    other = baseline.method if baseline else None
    return SiteSpread(
        runs.method, metric, runs.split, other, tuple(sites), names[worst], worst_estimate, *spread
    )  # fmt: skip


def _figures(runs: MethodRuns, name: str, metric: str) -> list[float]:
    """The figure of a site in every run."""
    figures = [_site_figure(run, name, metric) for run in runs.runs]
    defined = [value for value in figures if value is not None]
    if len(defined) < len(figures):
        raise ConfigError(f"some runs of {runs.method} have no {metric} at {name} on {runs.split}")
    return defined


def _site_figure(run: MethodRun, name: str, metric: str) -> float | None:
    if name in run.own and resampled(metric, run.task):
        value = plain_metric(metric, run.own[name])
        return None if np.isnan(value) else value
    stored = run.metrics.get("local", {}).get("sites", {}).get(name, {}).get(metric)
    return stored if isinstance(stored, float) else None


def _drawn(runs: MethodRuns, metric: str, names: tuple[str, ...], resampling: Resampling) -> Array | None:
    """(sites, B): each site's mean over seeds in every resample; None if some predictions are missing."""
    complete = all(name in run.own and resampled(metric, run.task) for run in runs.runs for name in names)
    if not complete:
        return None
    tables = [set_replicates([run.own[name] for name in names], metric, resampling) for run in runs.runs]
    drawn: Array = np.mean(tables, axis=0)
    return np.asarray(drawn[:, ~np.isnan(drawn).any(0)])


def _gains(
    runs: MethodRuns, baseline: MethodRuns | None, metric: str, level: float, resamples: int, seed: int
) -> dict[str, PairComparison]:
    if baseline is None:
        return {}
    common = [name for name in runs.sites if name in baseline.sites]
    methods = {f"{runs.method} at {name}": runs.site(name) for name in common}
    methods |= {f"{baseline.method} (baseline) at {name}": baseline.site(name) for name in common}
    pairs = [(f"{runs.method} at {name}", f"{baseline.method} (baseline) at {name}") for name in common]
    compared = compare_pairs(methods, pairs, metric, view="local", level=level, resamples=resamples, seed=seed)
    return dict(zip(common, compared, strict=True))


def _spread(
    name: str,
    means: Array,
    drawn: Array | None,
    norm: Norm,
    runs: MethodRuns,
    resampling: Resampling | None,
    level: float,
) -> Estimate:
    value = float(norm(means[:, None])[0])
    if drawn is None or resampling is None:
        return Estimate(name, value, None, None, level, "no predictions: no interval", len(runs.runs))
    deviations = (drawn - means[:, None]) * resampling.inflation**0.5
    low, high = norm_interval(means, deviations, norm, centre=float(means.mean()), level=level)
    how = f"inverted test over images, {resampling.resamples} resamples, for these trained networks"
    return _estimate(name, value, low, high, level, how, runs, resampling)


def _worst(
    metric: str, means: Array, drawn: Array | None, runs: MethodRuns, resampling: Resampling | None, level: float
) -> Estimate:
    """The worst site's figure. Which site is worst is not known either: the bound towards the better allows for every
    site that could be worst, the other one is the lowest of the sites' own bounds."""
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
    figures = sign * means
    name = f"{metric}: worst site"
    if drawn is None or resampling is None:
        return Estimate(name, float(means[figures.argmin()]), None, None, level, "no predictions: no interval",
                        len(runs.runs))  # fmt: skip
    low, high = worst_interval(figures, (sign * drawn - figures[:, None]) * resampling.inflation**0.5, level)
    how = f"simultaneous over the sites that could be worst, {resampling.resamples} resamples of images, cautious"
    bounds = sorted((sign * low, sign * high))
    return _estimate(name, float(means[figures.argmin()]), bounds[0], bounds[1], level, how, runs, resampling)


def worst_interval(figures: Array, deviations: Array, level: float) -> tuple[float, float]:
    """The interval of the lowest true figure, when `figures` (m,) are the true ones plus noise like `deviations`."""
    from scipy.stats import norm

    errors = deviations.std(1, ddof=1)
    z = float(norm.ppf((1 + level) / 2))
    candidates = figures - z * errors <= (figures + z * errors).min()
    scaled = -deviations[candidates] / np.maximum(errors[candidates], 1e-12)[:, None]
    simultaneous = max(float(np.quantile(scaled.max(0), (1 + level) / 2)), z)
    low = float((figures - z * errors).min())
    high = float((figures[candidates] + simultaneous * errors[candidates]).min())
    return low, high


def _estimate(
    name: str, value: float, low: float, high: float, level: float, how: str, runs: MethodRuns, resampling: Resampling
) -> Estimate:
    images = resampling.counts.shape[1]
    sizes = {"images": images, "groups": resampling.groups, "resamples": resampling.resamples}
    return Estimate(name, value, low, high, level, how, len(runs.runs), **sizes)
