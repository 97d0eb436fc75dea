"""Site spread: what each site has of a method, which one is worst, and how far they are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from crossward.comparison.intervals import LEVEL, Estimate, check_level, seeds_and_images_estimate
from crossward.comparison.method_runs import MethodRun, MethodRuns
from crossward.comparison.norm_intervals import Norm, gini, largest_gap, norm_interval, sample_deviation
from crossward.comparison.resampling import RESAMPLES, DrawnFrom, resampled, resampling_for, set_replicates
from crossward.comparison.verdicts import ComparedMetric, PairComparison, ScoredMethod, compare_scored, judge
from crossward.comparison.weighted_metrics import Array, plain_metric
from crossward.core.evaluation import LOWER_IS_BETTER
from crossward.errors import ConfigError

SPREADS: dict[str, Norm] = {
    "sample standard deviation over sites (n - 1)": sample_deviation,
    "Gini's index over sites": gini,
    "largest minus smallest site": largest_gap,
}
FEWEST_RESAMPLES = 50  # in which every site has a figure, for an interval


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


@dataclass(frozen=True)
class ScoredSites:
    """A metric of a method, by site and seed."""

    method: str
    metric: str
    split: str
    sites: Mapping[str, ScoredMethod]
    drawn_from: Mapping[str, DrawnFrom | None]  # the images of each site
    all_images: DrawnFrom | None

    @property
    def seeds(self) -> int:
        return max(len(site.figures) for site in self.sites.values())


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
    scored = [_scored_sites(each, metric, resamples, seed) if each else None for each in (runs, baseline)]
    assert scored[0] is not None
    return spread_of_sites(scored[0], scored[1], level=level)


def _scored_sites(runs: MethodRuns, metric: str, resamples: int, seed: int) -> ScoredSites:
    resampling = resampling_for([runs], "local", resamples=resamples, seed=seed)
    sites = {}
    drawn_from: dict[str, DrawnFrom | None] = {}
    for name in runs.sites:
        figures = {run.seed: _site_figure(run, name, metric) for run in runs.runs}
        defined = {seed: value for seed, value in figures.items() if value is not None}
        if len(defined) < len(figures):
            raise ConfigError(f"some runs of {runs.method} have no {metric} at {name} on {runs.split}")
        drawn = {}
        for run in runs.runs:
            if resampling is not None and name in run.own and resampled(metric, run.task):
                drawn[run.seed] = set_replicates([run.own[name]], metric, resampling)[0]
        sites[name] = ScoredMethod(defined, drawn)
        drawn_from[name] = resampling_for([runs.site(name)], "local", resamples=resamples, seed=seed)
    return ScoredSites(runs.method, metric, runs.split, sites, drawn_from, resampling)


def spread_of_sites(scored: ScoredSites, baseline: ScoredSites | None, *, level: float = LEVEL) -> SiteSpread:
    """The same of figures that are there already."""
    check_level(level)
    names = tuple(scored.sites)
    if len(names) < 2:
        raise ConfigError(f"{scored.method} has {len(names)} site(s) on {scored.split}: a spread needs two at least")
    means = np.array([fmean(scored.sites[name].figures.values()) for name in names])
    drawn = _drawn(scored)
    worst = int(means.argmax() if scored.metric in LOWER_IS_BETTER else means.argmin())
    spread = [_spread(f"{scored.metric}: {kind}", means, drawn, norm, scored, level) for kind, norm in SPREADS.items()]
    gains = _gains(scored, baseline, level) if baseline else {}
    sites = [SiteFigure(name, _site_estimate(scored, name, level), gains.get(name)) for name in names]
    return SiteSpread(
        scored.method,
        scored.metric,
        scored.split,
        baseline.method if baseline else None,
        tuple(sites),
        names[worst],
        _worst(means, drawn, scored, level),
        *spread,
    )


def _site_figure(run: MethodRun, name: str, metric: str) -> float | None:
    if name in run.own and resampled(metric, run.task):
        value = plain_metric(metric, run.own[name])
        return None if np.isnan(value) else value
    stored = run.metrics.get("local", {}).get("sites", {}).get(name, {}).get(metric)
    return stored if isinstance(stored, float) else None


def _site_estimate(scored: ScoredSites, name: str, level: float) -> Estimate:
    site = scored.sites[name]
    complete = all(seed in site.drawn for seed in site.figures)
    drawn = np.stack([site.drawn[seed] for seed in site.figures]) if complete else None
    title = f"{scored.metric} on {scored.split} at {name}: {scored.method}"
    return seeds_and_images_estimate(
        title, list(site.figures.values()), drawn, scored.drawn_from.get(name), level=level
    )  # fmt: skip


def _drawn(scored: ScoredSites) -> Array | None:
    """(sites, B): each site's mean over seeds in every resample; None if some predictions are missing."""
    sites = scored.sites.values()
    if scored.all_images is None or not all(seed in site.drawn for site in sites for seed in site.figures):
        return None
    drawn = np.stack([np.mean([site.drawn[seed] for seed in site.figures], axis=0) for site in sites])
    defined = ~np.isnan(drawn).any(0)
    return np.asarray(drawn[:, defined]) if defined.sum() >= FEWEST_RESAMPLES else None


def _gains(scored: ScoredSites, baseline: ScoredSites, level: float) -> dict[str, PairComparison]:
    """What each site has over the baseline, where both have a seed in common; Holm over the sites."""
    what = ComparedMetric(scored.metric, "local", scored.split)
    compared = {}
    for name, site in scored.sites.items():
        other = baseline.sites.get(name)
        if other is None or not set(site.figures) & set(other.figures):
            continue
        names = (f"{scored.method} at {name}", f"{baseline.method} (baseline) at {name}")
        compared[name] = compare_scored(site, other, names, what, level, scored.drawn_from.get(name))
    return dict(zip(compared, judge(list(compared.values()), level), strict=True))


def _spread(name: str, means: Array, drawn: Array | None, norm: Norm, scored: ScoredSites, level: float) -> Estimate:
    value = float(norm(means[:, None])[0])
    if drawn is None or scored.all_images is None:
        return Estimate(name, value, None, None, level, _no_interval(scored), scored.seeds)
    deviations = (drawn - means[:, None]) * scored.all_images.inflation**0.5
    low, high = norm_interval(means, deviations, norm, centre=float(means.mean()), level=level)
    how = f"inverted test over images, {scored.all_images.resamples} resamples, for these trained networks"
    return _estimate(name, value, low, high, level, how, scored.seeds, scored.all_images)


def _no_interval(scored: ScoredSites) -> str:
    if scored.all_images is None:
        return "no predictions: no interval"
    return "some site has so few images that most resamples leave it without a figure: no interval"


def _worst(means: Array, drawn: Array | None, scored: ScoredSites, level: float) -> Estimate:
    """The worst site's figure. Which site is worst is not known either: the bound towards the better allows for every
    site that could be worst, the other one is the lowest of the sites' own bounds."""
    sign = -1.0 if scored.metric in LOWER_IS_BETTER else 1.0
    figures = sign * means
    name = f"{scored.metric}: worst site"
    value = float(means[figures.argmin()])
    images = scored.all_images
    if drawn is None or images is None:
        return Estimate(name, value, None, None, level, _no_interval(scored), scored.seeds)
    low, high = worst_interval(figures, (sign * drawn - figures[:, None]) * images.inflation**0.5, level)
    how = f"simultaneous over the sites that could be worst, {images.resamples} resamples of images, cautious"
    bounds = sorted((sign * low, sign * high))
    return _estimate(name, value, bounds[0], bounds[1], level, how, scored.seeds, images)


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
    name: str, value: float, low: float, high: float, level: float, how: str, seeds: int, images: DrawnFrom
) -> Estimate:
    sizes = {"images": images.images, "groups": images.groups, "resamples": images.resamples}
    return Estimate(name, value, low, high, level, how, seeds, **sizes)
