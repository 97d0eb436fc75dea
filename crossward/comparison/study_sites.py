"""Study sites: a method site by site, what each site gains over training alone, and how far the sites are apart."""

from __future__ import annotations

from collections.abc import Sequence

from crossward.comparison.intervals import within_fractions
from crossward.comparison.reach import UNBOUNDED
from crossward.comparison.site_spread import ScoredSites, SiteFigure, spread_of_sites
from crossward.comparison.study_cells import Cell
from crossward.comparison.study_pairs import MethodCells
from crossward.comparison.study_results import SiteGain, SiteRow
from crossward.comparison.study_scores import StudyScores
from crossward.comparison.study_spec import Column
from crossward.comparison.verdicts import NOT_DISTINGUISHABLE, ScoredMethod


def site_row(method: MethodCells, baseline: MethodCells | None, column: Column, scores: StudyScores) -> SiteRow | None:
    """None if fewer than two sites have the figure in every seed."""
    scored = _scored(method, column, scores)
    other = _scored(baseline, column, scores) if baseline and _same_data(method, baseline) else None
    if len(scored.sites) < 2:
        return None
    spread = spread_of_sites(scored, other if other and other.sites else None, level=scores.spec.level)
    sites = tuple(_site_gain(site, column) for site in spread.sites)
    compared = [site.gain.value for site in sites if site.gain]
    sign = -1 if column.lower_is_better else 1
    return SiteRow(
        label=method.label,
        setting=method.setting,
        column=column.name,
        baseline=spread.baseline,
        sites=sites,
        worst_site=spread.worst_site,
        worst=spread.worst,
        std=spread.std,
        gini=spread.gini,
        max_min=spread.max_min,
        sites_better=sum(sign * gain > 0 for gain in compared),
        sites_compared=len(compared),
    )


def _same_data(a: MethodCells, b: MethodCells) -> bool:
    first, second = a.data(), b.data()
    return all(first[seed] == second[seed] for seed in first if seed in second)


def _site_gain(figure: SiteFigure, column: Column) -> SiteGain:
    gain = figure.gain
    estimate = figure.estimate if column.metric in UNBOUNDED else within_fractions(figure.estimate)
    if gain is None:
        return SiteGain(figure.site, estimate, None, 0, 0, None, NOT_DISTINGUISHABLE)
    tests = gain.tests
    difference = gain.difference if column.metric in UNBOUNDED else within_fractions(gain.difference, least=-1.0)
    return SiteGain(figure.site, estimate, difference, tests.wins, tests.losses, gain.p_adjusted, gain.verdict)


def _scored(method: MethodCells, column: Column, scores: StudyScores) -> ScoredSites:
    """The sites that have the figure in every seed; stored figures stand where there is no run."""
    cells = [cell for cell in method.cells if _sites(cell, column)]
    by_seed = {each.seed: found for each in method.stored if (found := each.site_values(column))}
    by_seed |= {cell.run.seed: _site_values(cell, column) for cell in cells}
    by_seed = dict(sorted(by_seed.items()))
    sites = {}
    for site in next(iter(by_seed.values()), {}):
        if all(site in found for found in by_seed.values()):
            figures = {seed: found[site] for seed, found in by_seed.items()}
            rows = {cell.run.seed: scores.site_drawn(cell, column).get(site) for cell in cells}
            drawn = {seed: row for seed, row in rows.items() if row is not None}
            sites[site] = ScoredMethod(figures, drawn)
    counts = {site: scores.image_count(cells, column.when, "local", site) for site in sites}
    together = scores.image_count(cells, column.when, "local")
    return ScoredSites(method.label, column.metric, scores.spec.split, sites, counts, together)


def _sites(cell: Cell, column: Column) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = cell.document(column.when).get("local", {}).get("sites", {})
    return found


def _site_values(cell: Cell, column: Column) -> dict[str, float]:
    return {site: each[column.metric] for site, each in _sites(cell, column).items() if column.metric in each}


def local_label(methods: Sequence[MethodCells], wanted: str | None) -> str | None:
    """The label that sites gain over: the one that was asked for, or that of local training."""
    if wanted is not None:
        return wanted
    return next((each.label for each in methods for cell in each.cells if cell.facts.method == "local"), None)
