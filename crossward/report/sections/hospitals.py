"""Hospitals: what each has of each method, who gains over training alone, who fares worst, and a sheet for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from crossward.report import vega
from crossward.report.content import (
    Block,
    Cell,
    Chart,
    Column,
    DataTable,
    Details,
    Fact,
    Figure,
    HospitalPage,
    Link,
    MethodName,
    Note,
    Row,
    Section,
    Strong,
    Text,
    Verdict,
    page_id,
)
from crossward.report.differences import differences
from crossward.report.holdings import Holdings, source_holdings
from crossward.report.sections.comparison import method_picker, shown_methods
from crossward.report.site_figures import SiteFigure, SiteFigures, site_figures, site_name
from crossward.report.source import ReportSource
from crossward.report.verdict_words import headline_figures, name_of
from crossward.report.wording import (
    axis_title,
    counted,
    interval_text,
    interval_words,
    level_words,
    listed,
    metric_name,
    metric_unit,
    number_text,
)

MOST_DOTS = 40  # hospitals in the dot plot
MOST_SHEETS = 60  # hospitals with a page of their own; more are written one by one
MOST_COLUMNS = 6  # methods in the table of gains
MOST_CLASSES = 16  # on a hospital's sheet


def hospitals_section(source: ReportSource) -> Section | None:
    figures = site_figures(source)
    if len(figures.sites) < 2:
        return None
    blocks: list[Block] = []
    if len(source.labels) > 1:
        blocks.append(method_picker(source))
    blocks.append(dot_chart(source, figures))
    if figures.rows:
        blocks.append(spread_table(source, figures))
    blocks.append(gain_table(source, figures))
    if len(figures.sites) > MOST_SHEETS:
        count = len(figures.sites)
        blocks.append(Note(f"There are {count} hospitals. `crossward report --hospital NAME` writes the page of one."))
    lead = "Each hospital's own test images, in the round that validation chose."
    if len(source.settings) > 1:
        lead += f" Setting: {source.settings[0] or 'the first'}."
    return Section("hospitals", "Hospitals", tuple(blocks), (lead,))


def dot_chart(source: ReportSource, figures: SiteFigures) -> Chart:
    """A row for each hospital, a dot for each method."""
    column = source.headline
    sites = _drawn_sites(source, figures)
    rows: list[dict[str, Any]] = [
        {
            "group": site_name(figure.site),
            "method": figure.label,
            "value": round(column.scale * figure.value, 2),
            "interval": _interval(figure.low, figure.high, column.scale),
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
        id="hospital-dots",
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
    best = best_method(source)
    ranked = sorted((f for f in figures.figures.values() if f.label == best), key=lambda f: f.value)
    half = MOST_DOTS // 2
    kept = {figure.site for figure in (*ranked[:half], *ranked[-half:])}
    return [figure.site for figure in ranked if figure.site in kept]


def best_method(source: ReportSource) -> str:
    """The method that the verdict is about: the best by the first column."""
    rows = differences(source)
    if rows:
        return rows[0].method
    figures = headline_figures(source)
    return figures[0].label if figures else source.labels[0]


def _dots_alt(source: ReportSource, figures: SiteFigures) -> str:
    scale = source.headline.scale
    parts = []
    for label in shown_methods(source):
        values = [figure.value for figure in figures.figures.values() if figure.label == label]
        if values:
            parts.append(f"{label} {number_text(scale * min(values))} to {number_text(scale * max(values))}")
    return "Lowest to highest hospital: " + "; ".join(parts)


def _interval(low: float | None, high: float | None, scale: float, *, signed: bool = False) -> str:
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
        "hospital-spread",
        tuple(columns),
        tuple(body),
        title="Who fares worst, and how far hospitals are apart",
        footnote="Of the hospitals' means over seeds. Intervals are over test images, for these trained networks.",
    )


def gain_table(source: ReportSource, figures: SiteFigures) -> DataTable:
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
    linked = len(figures.sites) <= MOST_SHEETS
    body = []
    for site in figures.sites:
        known = {figure.label: figure for figure in figures.of_site(site)}
        some = next(iter(known.values()))
        name: Cell = Link(site_name(site), f"#{page_id('hospital', site)}") if linked else site_name(site)
        cells: list[Cell] = [name, some.images or None]
        if alone:
            cells.append(_value_cell(source, known.get(alone), figures.setting))
        for label in methods:
            make = _gain_cell if gains else _value_cell
            cells.append(make(source, known.get(label), figures.setting))
        body.append(tuple(cells))
    metric = metric_name(column.metric)
    what = "What each hospital gains over training alone" if gains else "Each hospital's figure under each method"
    level = level_words(some.level)
    return DataTable(
        "hospital-gains",
        tuple(headers),
        tuple(body),
        title=what,
        caption=f"Points of {metric}, with the {level} interval." if gains else metric,
        footnote="A hospital's name opens the page that can be printed and handed over." if linked else "",
    )


def _value_cell(source: ReportSource, figure: SiteFigure | None, setting: str) -> Figure:
    if figure is None:
        return Figure(None)
    scale = source.headline.scale
    interval = _interval(figure.low, figure.high, scale)
    note = f"{counted(figure.seeds, 'seed')}, {figure.images:,} test images" + (
        f"; interval {interval}" if interval else ""
    )
    return Figure(scale * figure.value, note=note, runs=source.run_ids(figure.label, setting))


def _gain_cell(source: ReportSource, figure: SiteFigure | None, setting: str) -> Figure:
    if figure is None or figure.gain is None:
        return Figure(None)
    scale = source.headline.scale
    low, high = ((None if bound is None else scale * bound) for bound in (figure.gain_low, figure.gain_high))
    note = f"{figure.word}; better in {figure.wins} of {figure.seeds} seeds; {figure.images:,} test images"
    return Figure(
        scale * figure.gain, None, low, high, signed=True, note=note, runs=source.run_ids(figure.label, setting)
    )


# a sheet for each hospital --------------------------------------------------------------------------------------------
def hospital_pages(source: ReportSource, only: str | None = None) -> tuple[HospitalPage, ...]:
    """The sheet of every hospital, or of one; a sheet holds nothing of any other hospital."""
    figures = site_figures(source)
    if only is None and not 2 <= len(figures.sites) <= MOST_SHEETS:
        return ()
    holdings = source_holdings(source)
    return tuple(hospital_page(source, figures, holdings, site) for site in figures.sites if only in (None, site))


def hospital_page(source: ReportSource, figures: SiteFigures, holdings: Holdings | None, site: str) -> HospitalPage:
    known = figures.of_site(site)
    id = page_id("hospital", site)
    name = site_name(site)
    charts: list[Block] = [*_gain_chart(source, known, id)]
    if holdings is not None and site in holdings.counts:
        charts.append(_class_chart(holdings, site, id))
    blocks: list[Block] = [Row(tuple(charts), (3, 2))] if len(charts) == 2 else charts
    blocks.append(_site_table(source, figures, known, id))
    blocks.append(Details("What the numbers mean", _meaning(source)))
    return HospitalPage(id, site, f"{name}: {_site_title(source, known)}", _site_lead(source, known), _site_facts(known, holdings, site), tuple(blocks))  # fmt: skip # noqa: E501


def _best_here(source: ReportSource, known: Sequence[SiteFigure]) -> SiteFigure | None:
    """The figure of the method that is best over all hospitals: choosing the best here would flatter."""
    best = best_method(source)
    return next((figure for figure in known if figure.label == best), known[0] if known else None)


def _site_title(source: ReportSource, known: Sequence[SiteFigure]) -> str:
    column = source.headline
    figure = _best_here(source, known)
    if figure is None:
        return "no figures"
    metric = metric_name(column.metric)
    if figure.gain is None:
        return f"{number_text(column.scale * figure.value)} {metric_unit(column)} {metric} with {figure.label}"
    size = number_text(column.scale * figure.gain, 1, True)
    unit = "points" if metric_unit(column) == "%" else metric_unit(column)
    return f"{size} {unit} of {metric} with {figure.label}, compared with training alone"


def _site_lead(source: ReportSource, known: Sequence[SiteFigure]) -> Text:
    figure = _best_here(source, known)
    if figure is None:
        return ()
    column = source.headline
    unit = metric_unit(column)
    value = number_text(column.scale * figure.value)
    start: list[str | Strong] = [
        "With ",
        Strong(figure.label),
        f", the best method over all hospitals, this hospital reaches {value} {unit} on its own "
        f"{figure.images:,} test images ({counted(figure.seeds, 'seed')}).",
    ]
    if figure.gain is not None:
        start.append(f" {_gain_sentence(figure, column.scale)}")
    return tuple(start)


def _gain_sentence(figure: SiteFigure, scale: float) -> str:
    if figure.gain_low is None or figure.gain_high is None:
        return "There is no interval for its gain over training alone: it may be chance."
    interval = interval_words(figure.gain_low, figure.gain_high, figure.level, scale)
    words = {"better": "better than", "worse": "worse than"}.get(figure.verdict, "not distinguishable from")
    return f"That is {words} training alone ({interval}; better in {figure.wins} of {figure.seeds} seeds)."


def _site_facts(known: Sequence[SiteFigure], holdings: Holdings | None, site: str) -> tuple[Fact, ...]:
    facts = []
    if holdings is not None and site in holdings.counts:
        if holdings.what != "test images":
            facts.append(Fact(holdings.what.capitalize(), f"{holdings.total(site):,}"))
        missing = holdings.missing(site)
        facts.append(Fact("Classes without an image", listed([site_name(name) for name in missing]) or "none"))
    if known:
        facts += [Fact("Test images", f"{known[0].images:,}"), Fact("Seeds", str(known[0].seeds))]
    return tuple(facts)


def _gain_chart(source: ReportSource, known: Sequence[SiteFigure], id: str) -> Iterator[Chart]:
    scale = source.headline.scale
    rows = [
        {
            "label": figure.label,
            "value": round(scale * (figure.gain or 0.0), 2),
            "low": None if figure.gain_low is None else round(scale * figure.gain_low, 2),
            "high": None if figure.gain_high is None else round(scale * figure.gain_high, 2),
            "verdict": figure.verdict if figure.gain_low is not None else "not distinguishable",
            "interval": _interval(figure.gain_low, figure.gain_high, scale, signed=True),
            "n": f"{counted(figure.seeds, 'seed')}, {figure.images:,} test images",
            "runs": source.run_names(figure.label),
        }
        for figure in sorted(known, key=lambda each: each.value, reverse=not source.headline.lower_is_better)
        if figure.gain is not None and figure.label != source.alone
    ]
    if not rows:
        return
    unit = "points" if metric_unit(source.headline) == "%" else metric_unit(source.headline)
    yield Chart(
        id=f"{id}-gains",
        title="Gain over training alone",
        caption="At this hospital. Blue: better. Grey: not distinguishable. Orange: worse.",
        spec=vega.forest_plot(rows, title=f"{unit} of {metric_name(source.headline.metric)}".strip(), noise=None),
        alt="; ".join(f"{row['label']} {row['value']:+.1f} {row['interval']}: {row['verdict']}" for row in rows),
    )


def _class_chart(holdings: Holdings, site: str, id: str) -> Chart:
    """The hospital's images by class."""
    counts = holdings.counts[site]
    order = sorted(range(len(counts)), key=lambda k: -counts[k])
    kept, rest = (order, []) if len(order) <= MOST_CLASSES else (order[: MOST_CLASSES - 1], order[MOST_CLASSES - 1 :])
    rows: list[dict[str, Any]] = [{"name": site_name(holdings.classes[k]), "value": counts[k]} for k in sorted(kept)]
    if rest:
        rows.append({"name": f"{len(rest)} other classes", "value": sum(counts[k] for k in rest)})
    return Chart(
        id=f"{id}-classes",
        title="What this hospital holds",
        caption=f"{holdings.what.capitalize()} of each class.",
        spec=vega.bars(rows, names=[row["name"] for row in rows], title="images",
                       tooltip=vega.tips(**{"class": "name"}, images="value|,d")),
        alt="; ".join(f"{row['name']} {row['value']}" for row in rows),
        columns=("class", "images"),
        rows=tuple(zip((site_name(name) for name in holdings.classes), counts, strict=True)),
    )  # fmt: skip


def _site_table(source: ReportSource, figures: SiteFigures, known: Sequence[SiteFigure], id: str) -> DataTable:
    column = source.headline
    unit = f" ({metric_unit(column)})" if metric_unit(column) else ""
    gains = any(figure.gain is not None for figure in known)
    headers = [Column("method"), Column(f"{metric_name(column.metric)}{unit}", "number")]
    if gains:
        headers += [Column("gain over training alone", "number"), Column("verdict", "verdict")]
    body = []
    for figure in sorted(known, key=lambda each: each.value, reverse=not column.lower_is_better):
        low, high = ((None if bound is None else column.scale * bound) for bound in (figure.low, figure.high))
        runs = source.run_ids(figure.label, figures.setting)
        cells: list[Cell] = [MethodName(figure.label, source.order.colour(figure.label))]
        cells.append(Figure(column.scale * figure.value, None, low, high, runs=runs))
        if gains:
            alone = figure.label == source.alone
            cells += [None if alone else _gain_cell(source, figure, figures.setting)]
            cells += [Verdict("reference" if alone else figure.word)]
        body.append(tuple(cells))
    return DataTable(f"{id}-table", tuple(headers), tuple(body), title="Every method at this hospital")


def _meaning(source: ReportSource) -> tuple[Block, ...]:
    column = source.headline
    alone = name_of(source, source.alone) if source.alone else ""
    text = f"{metric_name(column.metric)} on this hospital's own test images, which chose nothing: which round counts was decided on validation images. "  # noqa: E501
    text += "Brackets hold an interval that contains the true value with the stated confidence. "
    if alone:
        text += f"The verdict compares with {alone}, allowing for the number of hospitals that were compared."
    return (Note(text),)
