"""The figure of each hospital under each method, from the tables, or from the runs where the tables have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from crossward.comparison.study_results import SiteGain, SiteRow
from crossward.comparison.study_spec import parse_column
from crossward.report.content import NOT_DISTINGUISHABLE, shown
from crossward.report.differences import differences
from crossward.report.source import ReportSource
from crossward.report.verdict_words import headline_figures
from crossward.report.wording import within_range

MOST_SHEETS = 60  # hospitals with a page of their own; more are written one by one


@dataclass(frozen=True)
class SiteFigure:
    """One hospital under one method, as fractions."""

    site: str
    label: str
    value: float
    low: float | None
    high: float | None
    seeds: int
    images: int
    gain: float | None = None  # over training alone
    gain_low: float | None = None
    gain_high: float | None = None
    wins: int = 0
    verdict: str = NOT_DISTINGUISHABLE
    level: float = 0.95

    @property
    def word(self) -> str:
        """The tag of the gain; empty if nothing was compared."""
        if self.gain is None:
            return ""
        return self.verdict if self.gain_low is not None else "no interval"


@dataclass(frozen=True)
class SiteFigures:
    """All hospitals under all methods, in one setting."""

    setting: str
    sites: tuple[str, ...]  # as they are called in the runs
    figures: Mapping[tuple[str, str], SiteFigure]  # (label, site)
    rows: Mapping[str, SiteRow]  # label -> worst site and spread, where the tables have them
    number: int = 1  # of the setting

    @property
    def suffix(self) -> str:
        """What tells addresses of this setting from those of others."""
        return "" if self.number == 1 else f"-{self.number}"

    def of_site(self, site: str) -> list[SiteFigure]:
        return [figure for (_, name), figure in self.figures.items() if name == site]


def all_site_figures(source: ReportSource) -> list[SiteFigures]:
    """The figures of every setting that has any."""
    found = [site_figures(source, setting, number) for number, setting in enumerate(source.settings, 1)]
    return [figures for figures in found if figures.sites]


def site_figures(source: ReportSource, setting: str, number: int = 1) -> SiteFigures:
    rows = {row.label: row for row in source.tables.sites if row.setting == setting}
    figures: dict[tuple[str, str], SiteFigure] = {}
    for label in source.labels:
        of_label = _of_tables(rows[label]) if label in rows else _of_runs(source, label, setting)
        figures |= {(label, site): figure for site, figure in of_label.items()}
    names = dict.fromkeys([*source.sites, *(site for _, site in figures)])
    present = {site for _, site in figures}
    return SiteFigures(setting, tuple(site for site in names if site in present), figures, rows, number)


def sheet_sites(found: Sequence[SiteFigures]) -> tuple[str, ...]:
    """The hospitals that have a page of their own in the report: all, unless there is one, or there are too many."""
    sites = tuple(dict.fromkeys(site for figures in found for site in figures.sites))
    return sites if 2 <= len(sites) <= MOST_SHEETS else ()


def best_method(source: ReportSource, setting: str) -> str:
    """The method that is best by the first column in a setting: over all its hospitals."""
    if rows := differences(source, setting=setting):
        return rows[0].method
    if figures := headline_figures(source, setting):
        return figures[0].label
    return next(run.label for run in source.every if run.setting == setting)


def _of_tables(row: SiteRow) -> dict[str, SiteFigure]:
    metric = parse_column(row.column, by_site=True).metric
    return {gain.site: _of_gain(row.label, gain, metric) for gain in row.sites}


def _of_gain(label: str, gain: SiteGain, metric: str) -> SiteFigure:
    estimate = gain.estimate
    compared = gain.gain
    low, high = within_range(estimate.low, estimate.high, metric)
    return SiteFigure(
        site=gain.site,
        label=label,
        value=estimate.value,
        low=low,
        high=high,
        seeds=estimate.seeds,
        images=estimate.images,
        gain=None if compared is None else compared.value,
        gain_low=None if compared is None else compared.low,
        gain_high=None if compared is None else compared.high,
        wins=gain.wins,
        verdict=gain.verdict,
        level=estimate.level,
    )


def _of_runs(source: ReportSource, label: str, setting: str) -> dict[str, SiteFigure]:
    """Means over seeds of what metrics.jsonl says, in the round that validation chose: without intervals."""
    metric = source.headline.metric
    values: dict[str, list[float]] = {}
    images: dict[str, int] = {}
    for run in source.of(label, setting):
        for site, scores in run.rounds.site_metrics().items():
            if isinstance(scores.get(metric), float):
                values.setdefault(site, []).append(scores[metric])
                images[site] = int(scores.get("n") or 0)
    return {
        site: SiteFigure(site, label, fmean(each), None, None, len(each), images[site]) for site, each in values.items()
    }


def site_name(site: str) -> str:
    """A hospital as the page calls it."""
    return shown(site, 60)
