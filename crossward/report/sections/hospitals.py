"""Hospitals: what each has of each method, who gains over training alone, and who fares worst, in every setting."""

from __future__ import annotations

from typing import Any

from crossward.report import vega
from crossward.report.content import (
    Block,
    Cell,
    Chart,
    Column,
    DataTable,
    Figure,
    Link,
    MethodName,
    Note,
    Section,
    Tab,
    Tabs,
    page_id,
)
from crossward.report.sections.comparison import method_picker, shown_methods
from crossward.report.site_figures import SiteFigure, SiteFigures, all_site_figures, best_method, sheet_sites, site_name
from crossward.report.source import ReportSource
from crossward.report.wording import (
    axis_title,
    capital,
    counted,
    interval_text,
    level_words,
    metric_name,
    metric_unit,
    number_text,
)

MOST_DOTS = 40  # hospitals in the dot plot
MOST_COLUMNS = 6  # methods in the table of gains


def hospitals_section(source: ReportSource) -> Section | None:
    """None if no setting has several hospitals with figures."""
    found = [figures for figures in all_site_figures(source) if len(figures.sites) > 1]
    if not found:
        return None
    blocks: list[Block] = []
    if len(source.labels) > 1:
        blocks.append(method_picker(source))
    linked = bool(sheet_sites(found))
    made = {each.setting: tuple(_setting_blocks(source, each, linked=linked)) for each in found}
    if len(found) == 1:
        blocks += made[found[0].setting]
    else:
        tabs = [Tab(capital(setting) or "(no setting)", inner) for setting, inner in made.items()]
        blocks.append(Tabs("hospital-settings", "Setting", tuple(tabs)))
    if not linked:
        count = len(dict.fromkeys(site for each in found for site in each.sites))
        blocks.append(Note(f"There are {count} hospitals. `crossward report --hospital NAME` writes the page of one."))
    lead = "Each hospital's own test images, in the round that validation chose."
    if len(source.settings) > 1 and len(found) == 1 and found[0].setting:
        lead += f" Setting: {found[0].setting}."
    return Section("hospitals", "Hospitals", tuple(blocks), (lead,))


def _setting_blocks(source: ReportSource, figures: SiteFigures, *, linked: bool) -> list[Block]:
    blocks: list[Block] = [dot_chart(source, figures)]
    if figures.rows:
        blocks.append(spread_table(source, figures))
    blocks.append(gain_table(source, figures, linked=linked))
    return blocks


def dot_chart(source: ReportSource, figures: SiteFigures) -> Chart:
    """A row for each hospital, a dot for each method."""
    column = source.headline
    sites = _drawn_sites(source, figures)
    rows: list[dict[str, Any]] = [
        {
            "group": site_name(figure.site),
            "method": figure.label,
            "value": round(column.scale * figure.value, 2),
            "interval": interval_of(figure.low, figure.high, column.scale),
            "n": f"{counted(figure.seeds, 'seed')}, {figure.images:,} test images",
            "runs": source.run_names(figure.label, figures.setting),
        }
        for site in sites
        for figure in figures.of_site(site)
    ]
    caption = "A dot for each method, at each hospital's own test images."
    if len(sites) < len(figures.sites):
        caption += (
            f" The {len(sites)} of {len(figures.sites)} hospitals that lie lowest and highest; the table has all."
        )
    return Chart(
        id=f"hospital-dots{figures.suffix}",
        title=f"{metric_name(column.metric)}, hospital by hospital",
        caption=caption,
        spec=vega.dot_plot(
            rows,
            order=source.order,
            shown=shown_methods(source),
            groups=list(dict.fromkeys(row["group"] for row in rows)),
            title=axis_title(column, "the hospital's own test images"),
        ),
        alt=_dots_alt(source, figures),
        min_width=340,
    )


def _drawn_sites(source: ReportSource, figures: SiteFigures) -> list[str]:
    """All hospitals, or those that lie lowest and highest."""
    if len(figures.sites) <= MOST_DOTS:
        return list(figures.sites)
    best = best_method(source, figures.setting)
    ranked = sorted((f for f in figures.figures.values() if f.label == best), key=lambda f: f.value)
    half = MOST_DOTS // 2
    kept = {figure.site for figure in (*ranked[:half], *ranked[-half:])}
    return [figure.site for figure in ranked if figure.site in kept]


def _dots_alt(source: ReportSource, figures: SiteFigures) -> str:
    scale = source.headline.scale
    parts = []
    for label in shown_methods(source):
        values = [figure.value for figure in figures.figures.values() if figure.label == label]
        if values:
            parts.append(f"{label} {number_text(scale * min(values))} to {number_text(scale * max(values))}")
    return "Lowest to highest hospital: " + "; ".join(parts)


def interval_of(low: float | None, high: float | None, scale: float, *, signed: bool = False) -> str:
    if low is None or high is None:
        return ""
    return interval_text(Figure(0.0, low=scale * low, high=scale * high, signed=signed))


# tables ---------------------------------------------------------------------------------------------------------------
def spread_table(source: ReportSource, figures: SiteFigures) -> DataTable:
    """Worst hospital and spread of each method."""
    column = source.headline
    scale = column.scale
    unit = f" ({metric_unit(column)})" if metric_unit(column) else ""
    alone = source.alone
    columns = [
        Column("method"),
        Column("worst hospital"),
        Column(f"its {metric_name(column.metric)}{unit}", "number"),
        Column("standard deviation", "number", "Between hospitals."),
        Column("largest − smallest", "number", "Between hospitals."),
        Column("Gini", "number", "0: all hospitals alike.", wide_only=True),
    ]
    if alone:
        columns.append(Column("hospitals above training alone", "number"))
    body = []
    for row in figures.rows.values():
        runs = source.run_ids(row.label, figures.setting)
        cells: list[Cell] = [MethodName(row.label, source.order.colour(row.label)), site_name(row.worst_site)]
        for estimate, factor, digits in ((row.worst, scale, 1), (row.std, scale, 1), (row.max_min, scale, 1), (row.gini, 1.0, 3)):  # fmt: skip # noqa: E501
            low, high = ((None if bound is None else factor * bound) for bound in (estimate.low, estimate.high))
            cells.append(Figure(factor * estimate.value, None, low, high, digits, note=estimate.how, runs=runs))
        if alone:
            compared = row.sites_compared
            cells.append("" if row.label == alone or not compared else f"{row.sites_better} of {compared}")
        body.append(tuple(cells))
    return DataTable(
        f"hospital-spread{figures.suffix}",
        tuple(columns),
        tuple(body),
        title="Who fares worst, and how far hospitals are apart",
        footnote="Of the hospitals' means over seeds. Intervals are over test images, for these trained networks.",
    )


def gain_table(source: ReportSource, figures: SiteFigures, *, linked: bool) -> DataTable:
    """A row for each hospital: its figure when it trains alone, and what it gains under each method."""
    column = source.headline
    alone = source.alone
    methods = [label for label in shown_methods(source, MOST_COLUMNS + 1) if label != alone][:MOST_COLUMNS]
    unit = f" ({metric_unit(column)})" if metric_unit(column) else ""
    gains = any(figure.gain is not None for figure in figures.figures.values())
    headers = [Column("hospital"), Column("test images", "number")]
    if alone:
        headers.append(Column(f"training alone{unit}", "number"))
    headers += [Column(label if gains else f"{label}{unit}", "number") for label in methods]
    body = []
    for site in figures.sites:
        known = {figure.label: figure for figure in figures.of_site(site)}
        some = next(iter(known.values()))
        name: Cell = Link(site_name(site), f"#{page_id('hospital', site)}") if linked else site_name(site)
        cells: list[Cell] = [name, some.images or None]
        if alone:
            cells.append(value_cell(source, known.get(alone), figures.setting))
        for label in methods:
            make = gain_cell if gains else value_cell
            cells.append(make(source, known.get(label), figures.setting))
        body.append(tuple(cells))
    metric = metric_name(column.metric)
    what = "What each hospital gains over training alone" if gains else "Each hospital's figure under each method"
    level = level_words(some.level)
    return DataTable(
        f"hospital-gains{figures.suffix}",
        tuple(headers),
        tuple(body),
        title=what,
        caption=f"Points of {metric}, with the {level} interval." if gains else metric,
        footnote="A hospital's name opens the page that can be printed and handed over." if linked else "",
    )


def value_cell(source: ReportSource, figure: SiteFigure | None, setting: str) -> Figure:
    if figure is None:
        return Figure(None)
    scale = source.headline.scale
    interval = interval_of(figure.low, figure.high, scale)
    note = f"{counted(figure.seeds, 'seed')}, {figure.images:,} test images" + (
        f"; interval {interval}" if interval else ""
    )
    return Figure(scale * figure.value, note=note, runs=source.run_ids(figure.label, setting))


def gain_cell(source: ReportSource, figure: SiteFigure | None, setting: str) -> Figure:
    if figure is None or figure.gain is None:
        return Figure(None)
    scale = source.headline.scale
    low, high = ((None if bound is None else scale * bound) for bound in (figure.gain_low, figure.gain_high))
    note = f"{figure.word}; better in {figure.wins} of {figure.seeds} seeds; {figure.images:,} test images"
    return Figure(
        scale * figure.gain, None, low, high, signed=True, note=note, runs=source.run_ids(figure.label, setting)
    )
