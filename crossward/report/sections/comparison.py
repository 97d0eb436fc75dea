"""Comparison: the table of figures, intervals and verdicts, how methods learn, and what they cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from crossward.comparison.study_results import POOLED, CostFigure, MethodFigure, ReachRow
from crossward.comparison.study_spec import Column as FigureColumn
from crossward.comparison.study_spec import parse_column
from crossward.report import vega
from crossward.report.content import (
    REFERENCE,
    Block,
    Cell,
    Chart,
    Chooser,
    Column,
    DataTable,
    Figure,
    MethodName,
    Option,
    Picker,
    Section,
    Tab,
    Tabs,
    Verdict,
)
from crossward.report.differences import Difference, differences, reference_of
from crossward.report.net_sizes import NetSize, net_size
from crossward.report.source import ReportSource
from crossward.report.verdict_words import name_of, view_words
from crossward.report.wording import (
    axis_title,
    capital,
    counted,
    level_words,
    listed,
    metric_name,
    metric_unit,
    number_text,
    within_range,
)

MOST_LINES = 6
MOST_POINTS = 250  # of a line; of longer runs every second, third … round is drawn
MEGABYTE = 1e6
CURVE_WIDTH = 460  # pixels below which a chart of curves scrolls


def comparison_section(source: ReportSource) -> Section | None:
    blocks: list[Block] = [*_tables(source), *learning_blocks(source), *_cost_blocks(source)]
    if not blocks:
        return None
    return Section("comparison", "Comparison", tuple(blocks), (_lead(source),))


def _lead(source: ReportSource) -> str:
    column = source.headline
    rounds = (
        "in the round that validation chose" if column.when == "best" else f"over the last {source.spec.last} rounds"
    )
    return f"Mean over seeds ± standard deviation, {rounds}, on test images that chose nothing."


# the table ------------------------------------------------------------------------------------------------------------
def _tables(source: ReportSource) -> Iterator[Block]:
    settings = list(source.tables.settings)
    if len(settings) < 2:
        yield from _setting_tables(source, settings[0] if settings else "")
        return
    pooled = [POOLED] if any(pair.setting == POOLED for pair in source.tables.pairs) else []
    made = [(setting, tuple(_setting_tables(source, setting))) for setting in [*pooled, *settings]]
    tabs = [Tab(capital(setting) or "(no setting)", tables) for setting, tables in made if tables]
    if tabs:
        yield Tabs("comparison-settings", "Setting", tuple(tabs))


def _setting_tables(source: ReportSource, setting: str) -> Iterator[DataTable]:
    for table in (method_table(source, setting), pair_table(source, setting)):
        if table is not None:
            yield table


def method_table(source: ReportSource, setting: str) -> DataTable | None:
    """A row for each method: its figure in every column, its difference to the reference, the verdict."""
    reference = reference_of(source)
    rows = {row.method: row for row in differences(source, setting=setting)}
    figures = {(f.label, f.column): f for f in source.tables.methods if f.setting == setting}
    columns = [parse_column(name) for name in source.tables.columns if any(key[1] == name for key in figures)]
    labels = [*rows, *(label for label in source.tables.labels if label not in rows)]
    labels = [label for label in labels if label in rows or any((label, c.name) in figures for c in columns)]
    if not labels:
        return None
    headers = [Column("method"), *(_header(source, column) for column in columns)]
    if rows and reference:
        level = level_words(next(iter(rows.values())).level)
        help = f"Paired by seed, with the {level} interval."
        headers += [Column(f"difference to {name_of(source, reference)} [{level}]", "number", help)]
        headers += [Column("verdict", "verdict")]
    body = []
    for label in labels:
        cells: list[Cell] = [MethodName(label, source.order.colour(label))]
        cells += [_figure_cell(source, figures.get((label, column.name)), column) for column in columns]
        if rows and reference:
            cells += _difference_cells(source, rows.get(label), is_reference=label == reference)
        body.append(tuple(cells))
    return DataTable(
        f"comparison-table{_place(source, setting)}", tuple(headers), tuple(body), footnote=_footnote(rows, figures)
    )


def _place(source: ReportSource, setting: str) -> str:
    """What tells addresses of this setting from those of others."""
    return "" if setting in ("", POOLED) else f"-{source.tables.settings.index(setting) + 1}"


def pair_table(source: ReportSource, setting: str) -> DataTable | None:
    """Pairs in which the reference is not, by the first column; None if there are none."""
    reference = reference_of(source)
    column = source.headline
    body: list[tuple[Cell, ...]] = []
    wanted = {(pair.a, pair.b) for pair in source.tables.pairs if reference not in (pair.a, pair.b)}
    for other in [label for label in source.labels if any(b == label for _, b in wanted)]:
        for row in differences(source, setting=setting, reference=other):
            if (row.method, other) in wanted:
                cells = _difference_cells(source, row, is_reference=False)
                first = MethodName(row.method, source.order.colour(row.method))
                body.append((first, MethodName(other, source.order.colour(other)), *cells))
    if not body:
        return None
    level = level_words(source.spec.level)
    headers = (
        Column("method"),
        Column("compared with"),
        Column(f"difference [{level}]", "number", "Paired by seed."),
        Column("verdict", "verdict", "Of the method on the left."),
    )
    title = f"Other comparisons, in {metric_name(column.metric)}, {view_words(source, column.view)}"
    return DataTable(f"pairs{_place(source, setting)}", headers, tuple(body), title=title)


def _header(source: ReportSource, column: FigureColumn) -> Column:
    unit = metric_unit(column)
    title = f"{metric_name(column.metric)}, {view_words(source, column.view)}"
    if len({parse_column(name).when for name in source.tables.columns}) > 1:
        title += ", chosen round" if column.when == "best" else f", last {counted(source.spec.last, 'round')}"
    title += f" ({unit})" if unit else ""
    when = "the round that validation chose" if column.when == "best" else f"mean of the last {source.spec.last} rounds"
    return Column(title, "number", f"{column.name}: {when}")


def _figure_cell(source: ReportSource, figure: MethodFigure | None, column: FigureColumn) -> Figure:
    if figure is None:
        return Figure(None, note="no such figure")
    scale = column.scale
    estimate, spread = figure.estimate, figure.spread
    sizes = counted(spread.n, "seed") + (f", {estimate.images:,} test images" if estimate.images else "")
    note = sizes
    if estimate.low is not None and estimate.high is not None:
        bounds = within_range(estimate.low, estimate.high, column.metric)
        low, high = (number_text(None if bound is None else scale * bound) for bound in bounds)
        note = f"{level_words(estimate.level)} interval {low} to {high}; {sizes}; {estimate.how}"
    elif spread.std is None:
        note = f"{sizes}: no interval"
    runs = source.run_ids(figure.label, None if figure.setting == POOLED else figure.setting)
    deviation = None if spread.std is None else scale * spread.std
    return Figure(scale * spread.mean, deviation, note=note, runs=runs)


def _difference_cells(source: ReportSource, row: Difference | None, *, is_reference: bool) -> list[Cell]:
    if is_reference:
        return [None, Verdict(REFERENCE)]
    if row is None:
        return [None, Verdict("not compared")]
    scale = source.headline.scale
    p = "" if row.p is None else f"; p = {row.p:.3g}, Holm over {row.pairs}"
    note = f"{row.how}; better in {row.wins} of {row.seeds} seeds{p}"
    low, high = ((None if bound is None else scale * bound) for bound in (row.low, row.high))
    runs = (*source.run_ids(row.method), *source.run_ids(row.reference))
    figure = Figure(scale * row.value, None, low, high, signed=True, note=note, runs=runs)
    noise = "smaller than the noise floor: chance alone makes such differences"
    return [figure, Verdict(row.word, noise if row.exceeds_noise is False else "")]


def _footnote(rows: Mapping[str, Difference], figures: Mapping[tuple[str, str], MethodFigure]) -> str:
    parts = []
    deviations = dict.fromkeys(figure.spread.kind for figure in figures.values() if figure.spread.std is not None)
    if deviations:
        parts.append(f"±: {listed(list(deviations))}.")
    hows = list(dict.fromkeys(row.how for row in rows.values()))
    if hows:
        parts.append(f"Intervals of differences: {'; '.join(hows[:2])}.")
    pairs = max((row.pairs for row in rows.values()), default=0)
    if pairs > 1:
        parts.append(f"Verdicts are Holm-corrected over {pairs} comparisons.")
    if stored := sum(figure.stored for figure in figures.values()):
        parts.append(f"{stored} figures are stored ones, whose run directories are gone.")
    parts.append("A number names its runs when you point at it.")
    return " ".join(parts)


# curves ---------------------------------------------------------------------------------------------------------------
def shown_methods(source: ReportSource, most: int = MOST_LINES) -> tuple[str, ...]:
    """The methods that charts show first: training alone, the best, in the order of the page."""
    ranked = [row.method for row in differences(source)]
    reference = reference_of(source)
    first = [label for label in (source.alone, reference) if label is not None]
    wanted = list(dict.fromkeys([*first, *ranked, *source.labels]))[:most]
    return tuple(label for label in source.labels if label in wanted)


def method_picker(source: ReportSource) -> Picker:
    options = [Option(label, label, source.order.colour(label)) for label in source.labels]
    return Picker(vega.METHODS, "Methods", tuple(options), shown_methods(source), MOST_LINES)


def learning_blocks(source: ReportSource) -> Iterator[Block]:
    """Learning curves: a tab for each view, and the controls that all of them follow."""
    column = source.headline
    every = sorted(("mean", "worst", "global"), key=lambda view: view != column.view)  # first what the verdict is about
    views = [view for view in every if any(run.rounds.has(view, column.metric) for run in source.runs)]
    charts = {view: chart for view in views if (chart := curve_chart(source, view, column)) is not None}
    if not charts:
        return
    if len(source.labels) > 1:
        yield method_picker(source)
    settings = drawn_settings(source)
    if len(settings) > 1:
        options = tuple(Option(setting, setting or "(no setting)") for setting in settings)
        yield Chooser(vega.SETTING, "Setting", options, settings[0])
    tabs = [Tab(capital(view_words(source, view)), (chart,)) for view, chart in charts.items()]
    if len(tabs) == 1:
        yield next(iter(charts.values()))
    else:
        yield Tabs("learning", "Which test images", tuple(tabs))


def drawn_settings(source: ReportSource) -> tuple[str, ...]:
    """The settings that have curves: those with run directories."""
    return tuple(dict.fromkeys(run.setting for run in source.runs))


def curve_chart(source: ReportSource, view: str, column: FigureColumn) -> Chart | None:
    settings = drawn_settings(source)
    rows = [row for label in source.labels for setting in settings
            for row in curve_rows(source, label, setting, view, column)]  # fmt: skip
    if not rows:
        return None
    words = view_words(source, view)
    several = any(row["low"] is not None for row in rows)
    spec = vega.curves(
        rows,
        order=source.order,
        shown=shown_methods(source),
        settings=settings,
        title=axis_title(column, words),
    )
    ends = {row["method"]: row["value"] for row in rows if row["setting"] == settings[0]}
    return Chart(
        id=f"learning-{view}",
        title=f"How they learn: {metric_name(column.metric)}, {words}",
        caption="Test images, round by round. " + ("Band: lowest to highest seed." if several else "One seed."),
        spec=spec,
        alt="Last round: " + "; ".join(f"{label} {number_text(value)}" for label, value in ends.items()),
        min_width=CURVE_WIDTH,
    )


def curve_rows(
    source: ReportSource, label: str, setting: str, view: str, column: FigureColumn
) -> Iterator[dict[str, Any]]:
    """The mean over seeds in each round; where some runs have ended earlier, over those that are left."""
    curves = [run.rounds.curve(view, column.metric) for run in source.of(label, setting)]
    rounds = sorted({round for curve in curves for round in curve})
    step = len(rounds) // MOST_POINTS + 1
    names = source.run_names(label, setting)
    for position, round in enumerate(rounds):
        if position % step and round != rounds[-1]:
            continue
        values = [column.scale * curve[round] for curve in curves if round in curve]
        low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
        yield {
            "method": label,
            "setting": setting,
            "round": round,
            "value": _rounded(fmean(values)),
            "low": _rounded(low),
            "high": _rounded(high),
            "interval": "" if low is None or high is None else f"{low:.1f} to {high:.1f}",
            "n": counted(len(values), "seed"),
            "runs": names,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


# costs ----------------------------------------------------------------------------------------------------------------
def _cost_blocks(source: ReportSource) -> Iterator[Block]:
    by_setting: dict[str, list[ReachRow]] = {}
    for row in source.tables.reach:
        by_setting.setdefault(row.setting, []).append(row)
    reach = [reach_table(source, rows, number) for number, rows in enumerate(by_setting.values())]
    if len(reach) == 1:
        yield reach[0]
    elif reach:
        names = [capital(setting) or "(no setting)" for setting in by_setting]
        tabs = [Tab(name, (table,)) for name, table in zip(names, reach, strict=True)]
        yield Tabs("reach-settings", "Setting", tuple(tabs))
    if source.tables.costs:
        yield cost_table(source, source.tables.costs)


def reach_table(source: ReportSource, rows: Sequence[ReachRow], number: int = 0) -> DataTable:
    """Rounds and megabytes until a target was reached."""
    columns = (
        Column("method"),
        Column("reached by", "text", "Seeds that reached the target at all."),
        Column("rounds", "number", "Mean over the seeds that reached it ± standard deviation."),
        Column("megabytes", "number", "Up and down, all hospitals, until then."),
        Column(f"× {rows[0].reference}'s rounds", "number", wide_only=True),
        Column(f"× {rows[0].reference}'s bytes", "number", wide_only=True),
    )
    body = []
    for row in rows:
        runs = source.run_ids(row.label, row.setting)
        cells: list[Cell] = [MethodName(row.label, source.order.colour(row.label)), f"{row.reached} of {row.runs}"]
        mib = 2**20 / MEGABYTE
        for spread, scale, digits in ((row.rounds, 1.0, 1), (row.mib, mib, 1), (row.times_rounds, 1.0, 2), (row.times_bytes, 1.0, 2)):  # fmt: skip # noqa: E501
            if spread is None:
                cells.append(Figure(None, note="not reached"))
            else:
                deviation = None if spread.std is None else scale * spread.std
                cells.append(Figure(scale * spread.mean, deviation, digits=digits, runs=runs))
        body.append(tuple(cells))
    target = number_text(100 * rows[0].target) + " %" if rows[0].target <= 1 else number_text(rows[0].target)
    return DataTable(
        f"reach-{number}",
        columns,
        tuple(body),
        title=f"Rounds and traffic until {target} is reached",
        caption=f"{_reach_words(source, rows[0].metric)}; the target is where {rows[0].reference} ends.",
        footnote="The first evaluated round that reaches the target counts.",
    )


def _reach_words(source: ReportSource, metric: str) -> str:
    """What is to be reached, in the words of the page: "f1 on test, local view" is the mean of the hospitals' F1."""
    parts = re.fullmatch(r"(\w+) on test, (\w+) view", metric)
    if parts is None:
        return metric
    view = {"local": "mean"}.get(parts[2], parts[2])
    return f"{capital(metric_name(parts[1]))}, {view_words(source, view)}"


def cost_table(source: ReportSource, costs: Sequence[CostFigure]) -> DataTable:
    """Time, traffic, and the size of the network."""
    settings = len({cost.setting for cost in costs}) > 1
    columns = [Column("method"), *([Column("setting")] if settings else [])]
    columns += [
        Column("rounds", "number"),
        Column("seconds", "number", "Of the machine that ran it, for the whole run, evaluation included."),
        Column("up (MB)", "number", "From all hospitals to the server, in all rounds."),
        Column("down (MB)", "number", "From the server to all hospitals, in all rounds."),
        Column("parameters", "number", "Of the network that a hospital deploys."),
        Column("GFLOPs", "number", "Of one image through the network.", wide_only=True),
    ]
    body = []
    for cost in costs:
        runs = source.run_ids(cost.label, cost.setting)
        members = source.of(cost.label, cost.setting)
        size = net_size(members[0]) if members else NetSize(None, None)
        parameters = cost.parameters if cost.parameters is not None else size.parameters
        cells: list[Cell] = [MethodName(cost.label, source.order.colour(cost.label))]
        cells += [cost.setting] if settings else []
        note = counted(cost.seeds, "seed")
        cells += [
            Figure(cost.rounds, digits=0, note=note, runs=runs),
            Figure(cost.seconds, digits=0, note=note, runs=runs),
            Figure(cost.bytes_up / MEGABYTE, note=note, runs=runs),
            Figure(cost.bytes_down / MEGABYTE, note=note, runs=runs),
            Figure(parameters, digits=0, note=size.note, runs=runs),
            Figure(size.gflops, digits=4, note=size.note, runs=runs),
        ]
        body.append(tuple(cells))
    return DataTable(
        "costs",
        tuple(columns),
        tuple(body),
        title="What it takes",
        caption="Means over seeds. Seconds depend on the machine and on what else ran there.",
    )
