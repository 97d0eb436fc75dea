"""Segmentation in detail: images with and without something to segment apart, distances with a penalty for what is
missed or invented, and how Dice is spread at each hospital."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crossward.comparison.intervals import Estimate, seeds_and_images_estimate
from crossward.comparison.method_runs import MethodRun, stored_groups, with_predictions
from crossward.comparison.resampling import draw_by_name
from crossward.comparison.weighted_metrics import Array, PredictedSet, plain_metric, weighted_metric
from crossward.report import vega
from crossward.report.content import (
    Block,
    Cell,
    Chart,
    Column,
    DataTable,
    Figure,
    MethodName,
    Note,
    Option,
    Picker,
    Section,
    Tab,
    Tabs,
    shown,
)
from crossward.report.decision_charts import method_colour
from crossward.report.decisions import distinct_names
from crossward.report.source import ReportRun, ReportSource
from crossward.report.theme import MethodOrder
from crossward.report.vega import CHOSEN, METHODS, Rows, Spec, token
from crossward.report.wording import capital, level_words

RESAMPLES = 200
MOST_LINES = 6
MOST_SITES = 30
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
STEP = 13  # pixels from one method's bar to the next
RESAMPLED = ("dice_positive", "false_positive_rate")
STORED = ("hd95", "hd95_penalised")
COLUMNS = (
    Column(
        "Dice where there is some (%)", "number", "Mean over pairs of image and class in which there is some of it."
    ),
    Column("called where there is none (%)", "number", "Share of pairs without any in which some is predicted."),
    Column("HD95 (pixels)", "number", "95th percentile of distances, where both have pixels: it favours missing."),
    Column("HD95 with penalty (pixels)", "number", "A class that is missed or invented costs the image's diagonal."),
)


def segmentation_section(source: ReportSource) -> Section | None:
    """None for other tasks than segmentation."""
    settings = source.settings_of("segmentation")
    if not settings:
        return None
    predicted = {setting: {label: _read(source.of(label, setting)) for label in source.labels} for setting in settings}
    blocks: list[Block] = []
    kept = [label for label in source.labels if any(predicted[setting][label] for setting in settings)]
    options = tuple(Option(label, label, source.order.colour(label)) for label in kept)
    chosen = tuple(kept[:MOST_LINES])
    if len(options) > 1:
        blocks.append(Picker(METHODS, "Methods", options, chosen, MOST_LINES))
    parts = [
        _setting_blocks(source, setting, predicted[setting], chosen, number)
        for number, setting in enumerate(settings, 1)
    ]
    if len(parts) == 1:
        blocks += parts[0]
    else:
        tabs = [Tab(capital(name) or "(no setting)", tuple(part)) for name, part in zip(settings, parts, strict=True)]
        blocks.append(Tabs("segmentation-settings", "Setting", tuple(tabs)))
    lead = (
        f"On the hospitals' own test images, in the round that validation chose, with {level_words(source.spec.level)} "
    )
    return Section("segmentation", "Segmentation", tuple(blocks), (f"{lead}intervals.",))


def _setting_blocks(
    source: ReportSource,
    setting: str,
    predicted: dict[str, dict[str, MethodRun]],
    chosen: Sequence[str],
    number: int,
) -> list[Block]:
    suffix = "" if number == 1 else f"-{number}"
    blocks: list[Block] = [_table(source, setting, predicted, suffix)]
    if rows := _spread_rows(source, setting, predicted):
        blocks.append(_spread_chart(source, rows, chosen, suffix))
    else:
        blocks.append(Note("The runs keep no predictions, so the spread of Dice over images is not known."))
    return blocks


def _read(runs: Sequence[ReportRun]) -> dict[str, MethodRun]:
    """By run: its predictions on the hospitals' own test images, if they are stored."""
    found = {}
    for run in runs:
        best = run.rounds.best or (run.rounds.evaluated[-1] if run.rounds.evaluated else None)
        if best is None:
            continue
        empty = MethodRun(run.seed, str(run.result.folder), "segmentation", {}, personal=bool(run.about["personal"]))
        read = with_predictions(empty, run.result, "test", best)
        if read.own:
            found[run.id] = read
    return found


# figures --------------------------------------------------------------------------------------------------------------
def _table(source: ReportSource, setting: str, predicted: dict[str, dict[str, MethodRun]], suffix: str) -> DataTable:
    rows: list[tuple[Cell, ...]] = []
    for label in source.labels:
        runs = source.of(label, setting)
        if not runs:
            continue
        cells: list[Cell] = [MethodName(label, source.order.colour(label))]
        cells += [_resampled_cell(source, runs, predicted[label], metric) for metric in RESAMPLED]
        cells += [_stored_cell(source, runs, metric) for metric in STORED]
        rows.append(tuple(cells))
    foot = (
        "Images with and without something to segment are scored apart: a network that sees nothing scores well by the "
    )
    foot += "latter alone. Mean over hospitals and seeds; distances have an interval over seeds only."
    return DataTable(
        f"segmentation-table{suffix}", (Column("method"), *COLUMNS), tuple(rows), "What overlap alone hides", "", foot
    )


def _resampled_cell(
    source: ReportSource, runs: Sequence[ReportRun], predicted: dict[str, MethodRun], metric: str
) -> Figure:
    known = [run for run in runs if run.id in predicted]
    if len(known) < len(runs) or not known:
        return _stored_cell(source, runs, metric, scale=100.0)
    sets = [list(predicted[run.id].own.values()) for run in known]
    groups = {image: group for run in known for image, group in stored_groups(run.result).items()}
    resampling = draw_by_name([i for some in sets for each in some for i in each.ids], groups, resamples=RESAMPLES)
    figures, drawn = [], []
    for some in sets:
        values = [(plain_metric(metric, each), each) for each in some]
        defined = [(value, each) for value, each in values if not np.isnan(value)]
        if not defined:
            return Figure(None, note="undefined at every hospital")
        figures.append(float(np.mean([value for value, _ in defined])))
        drawn.append(_mean_drawn([each for _, each in defined], metric, resampling))
    estimate = seeds_and_images_estimate(metric, figures, np.stack(drawn), resampling, level=source.spec.level)
    return _cell(estimate, [run.id for run in known], 100.0, bounded=True)


def _mean_drawn(sets: Sequence[PredictedSet], metric: str, resampling: Any) -> Array:
    values = np.stack([weighted_metric(metric, each, resampling.weights(each.ids)) for each in sets])
    defined = ~np.isnan(values)
    return np.asarray(np.where(defined, values, 0).sum(0) / np.maximum(defined.sum(0), 1))


def _stored_cell(source: ReportSource, runs: Sequence[ReportRun], metric: str, scale: float = 1.0) -> Figure:
    figures = []
    for run in runs:
        value = run.rounds.best_metrics.get("test", {}).get("local", {}).get("mean", {}).get(metric)
        if isinstance(value, float):
            figures.append(value)
    if not figures:
        return Figure(None, note="the runs do not have it")
    estimate = seeds_and_images_estimate(metric, figures, None, None, level=source.spec.level)
    return _cell(estimate, [run.id for run in runs], scale, bounded=scale != 1.0)


def _cell(estimate: Estimate, runs: Sequence[str], scale: float, *, bounded: bool) -> Figure:
    ends = [None if end is None else scale * max(end, 0.0) for end in (estimate.low, estimate.high)]
    if bounded:
        ends = [None if end is None else min(end, 100.0) for end in ends]
    n = f"; {estimate.images:,} images" if estimate.images else ""
    return Figure(scale * estimate.value, low=ends[0], high=ends[1], note=f"{estimate.how}{n}", runs=tuple(runs))


# spread ---------------------------------------------------------------------------------------------------------------
def _spread_rows(
    source: ReportSource, setting: str, predicted: dict[str, dict[str, MethodRun]]
) -> list[dict[str, Any]]:
    sites = source.sites[:MOST_SITES]
    names = dict(zip(sites, distinct_names(sites, 40), strict=True))
    rows = []
    for label, runs in predicted.items():
        for site in sites:
            sets = [run.own[site] for run in runs.values() if site in run.own]
            dices = np.concatenate([_positive_dices(each) for each in sets]) if sets else np.zeros(0)
            if len(dices):
                q05, q25, q50, q75, q95 = (round(100 * float(q), 1) for q in np.quantile(dices, QUANTILES))
                row = {
                    "group": names[site],
                    "method": label,
                    "q05": q05,
                    "q25": q25,
                    "value": q50,
                    "q75": q75,
                    "q95": q95,
                }
                row |= {"zero": round(100 * float((dices == 0).mean()), 1), "n": len(dices)}
                rows.append(row | {"runs": source.run_names(label, setting)})
    return rows


def _positive_dices(predicted: PredictedSet) -> Array:
    """Dice of every pair of image and class in which there is some of the class."""
    both, guessed, true = np.moveaxis(predicted.predictions, 2, 0)
    return np.asarray((2 * both / np.maximum(guessed + true, 1))[true > 0])


def _spread_chart(source: ReportSource, rows: Rows, chosen: Sequence[str], suffix: str) -> Chart:
    groups = list(dict.fromkeys(row["group"] for row in rows))
    spec = spread_spec(rows, order=source.order, shown=chosen, groups=groups)
    worst = min(rows, key=lambda row: row["value"])
    title = f"{worst['group']} has the lowest median Dice: {worst['value']:.0f} % under {worst['method']}"
    caption = (
        "Images with something to segment, seeds together. Dot: median. Thick: the middle half. Thin: 5 % to 95 %."
    )
    alt = f"Spread of Dice at each hospital. {title}, {worst['n']} images."
    return Chart(f"dice-spread{suffix}", shown(title, 200), spec, alt, caption)


def spread_spec(rows: Rows, *, order: MethodOrder, shown: Sequence[str], groups: Sequence[str]) -> Spec:
    """A row for each hospital, in it the quantiles for each chosen method: q05, q25, value, q75, q95."""
    labels = [label for label in order.labels if any(row["method"] == label for row in rows)]
    x: Spec = {"field": "value", "type": "quantitative", "title": "Dice (%)", "axis": {"grid": True, "tickCount": 6}}
    x["scale"] = {"domain": [0, 100], "nice": False}
    y: Spec = {"field": "group", "type": "nominal", "sort": list(groups), "title": None}
    y["axis"] = {"labelColor": token("ink")}
    tooltip = vega.tips(
        hospital="group", method="method", median="value|.1f", middle_half_from="q25|.1f", to="q75|.1f",
        missed_altogether="zero|.1f", images="n", runs="runs",
    )  # fmt: skip
    offset = {"field": "method", "type": "nominal", "sort": labels, "scale": {"paddingOuter": 0.6}}
    place = {"y": y, "yOffset": offset, "color": method_colour(order, labels), "tooltip": tooltip}
    layers = [
        {"mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6},
         "encoding": place | {"x": x | {"field": "q05"}, "x2": {"field": "q95"}}},
        {"mark": {"type": "rule", "strokeWidth": 6, "opacity": 0.45, "strokeCap": "round"},
         "encoding": place | {"x": x | {"field": "q25"}, "x2": {"field": "q75"}}},
        {"mark": {"type": "point", "filled": True, "size": 50, "opacity": 1}, "encoding": place | {"x": x}},
    ]  # fmt: skip
    height = max(28, STEP * (min(len(shown), MOST_LINES) + 1)) * max(len(groups), 1)
    params = [{"name": METHODS, "value": list(shown)}]
    return vega.chart(rows, height=height, params=params, transform=[{"filter": CHOSEN}], layer=layers)
