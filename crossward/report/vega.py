"""Vega-Lite specifications of the report's figures: forest plot, curves, heat map, dot plot, scatter.

Each function takes rows of plain data and returns a specification with the data inside. Colours are tokens of theme.py.
Charts fill the width of their card; their height follows from what they show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from crossward.report.content import BETTER, NOT_DISTINGUISHABLE, WORSE
from crossward.report.theme import PREFIX, MethodOrder

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
FIGURE_WIDTH = 640  # of a chart that no card gives a width
LABEL = 14  # pixels between two labels at the ends of lines
CHARACTER = 6.6  # pixels, about
LONGEST_NAME = 140  # pixels of a name above a column
METHODS = "methods"  # the parameter that holds the methods that are shown
SETTING = "setting"  # the parameter that holds the setting that is shown
CHOSEN = f"indexof({METHODS}, datum.method) >= 0"


def token(name: str) -> str:
    return f"{PREFIX}{name}"


def chart(rows: Rows, *, height: int | Mapping[str, Any], **parts: Any) -> Spec:
    """The frame of every specification: schema, data, size. `parts` are layer, mark, encoding, params and so on.

    Give the height in pixels where it is known: of a height in steps beside a width that follows the card, Vega-Lite
    writes a warning into the console.
    """
    return {
        "$schema": SCHEMA,
        "data": {"values": [dict(row) for row in rows]},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        **parts,
    }


def tips(**fields: str) -> list[Spec]:
    """Tooltips: title="field" for text, title="field|.1f" for a number with its format; underscores are blanks."""
    entries = []
    for title, field in fields.items():
        name, _, pattern = field.partition("|")
        entry = {"field": name, "title": title.replace("_", " ")}
        entries.append(entry | ({"type": "quantitative", "format": pattern} if pattern else {"type": "nominal"}))
    return entries


def method_scale(order: MethodOrder, labels: Sequence[str]) -> Spec:
    return {"domain": list(labels), "range": order.colours(labels)}


def span(values: Sequence[float | None], *, pad: float = 0.05, least: float = 1.0) -> list[float]:
    """A domain that holds the values, with some room on both sides."""
    defined = [value for value in values if value is not None and math.isfinite(value)]
    low, high = (min(defined), max(defined)) if defined else (0.0, 1.0)
    room = max((high - low) * pad, least * pad)
    return [low - room, high + room]


# differences ----------------------------------------------------------------------------------------------------------
def forest_plot(rows: Rows, *, title: str, noise: float | None) -> Spec:
    """Differences with their intervals, a row each: label, value, low, high, verdict, interval, n, runs (texts).

    The band is the noise floor: what chance alone makes. Rows without an interval are points alone.
    """
    known = [row[key] for row in rows for key in ("value", "low", "high")]
    domain = span([*known, 0.0, noise, -noise if noise else None], pad=0.06)
    labels = list(dict.fromkeys(row["label"] for row in rows))
    y = {"field": "label", "type": "nominal", "sort": labels, "axis": {"title": None, "labelColor": token("ink")}}
    x = {"field": "value", "type": "quantitative", "title": title, "scale": {"domain": domain, "nice": False}}
    x |= {"axis": {"grid": True, "tickCount": 8}}
    meaning = {
        "field": "verdict",
        "type": "nominal",
        "scale": {
            "domain": [BETTER, NOT_DISTINGUISHABLE, WORSE],
            "range": [token("better"), token("same"), token("worse")],
        },
        "legend": None,
    }
    tooltip = tips(method="label", difference="value|+.1f", interval="interval", verdict="verdict", n="n", runs="runs")
    layers: list[Spec] = []
    if noise:
        band = {"x": {"datum": -noise, "type": "quantitative"}, "x2": {"datum": noise}}
        layers.append({"data": {"values": [{}]}, "mark": {"type": "rect", "color": token("band")}, "encoding": band})
    zero = {"x": {"datum": 0, "type": "quantitative"}}
    layers.append({"data": {"values": [{}]}, "mark": {"type": "rule", "color": token("faint")}, "encoding": zero})
    layers.append(
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "rule", "strokeWidth": 2.5, "strokeCap": "round"},
            "encoding": {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}, "color": meaning,
                         "tooltip": tooltip},
        }
    )  # fmt: skip
    layers.append(
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {"y": y, "x": x, "color": meaning, "tooltip": tooltip},
        }
    )
    return chart(rows, height=24 * len(labels), layer=layers)


# curves ---------------------------------------------------------------------------------------------------------------
def curves(
    rows: Rows,
    *,
    order: MethodOrder,
    shown: Sequence[str],
    title: str,
    settings: Sequence[str] = (),
    x_title: str = "round",
    height: int = 320,
) -> Spec:
    """Lines over rounds, a band for the spread over seeds, names at the ends of the lines that do not overlap.

    Rows: method, round, value, low, high (or None), n, interval, runs; and setting, if there are several. The parameter
    `methods` holds those shown, `setting` the setting.
    """
    labels = [label for label in order.labels if any(row["method"] == label for row in rows)]
    domain = span([row[key] for row in rows for key in ("value", "low", "high")], pad=0.04)
    color = {"field": "method", "type": "nominal", "scale": method_scale(order, labels), "legend": None}
    dash: Spec = {"field": "method", "type": "nominal", "legend": None}
    dash["scale"] = {"domain": labels, "range": [list(order.dash(label)) for label in labels]}
    rounds = [row["round"] for row in rows] or [0]
    x: Spec = {"field": "round", "type": "quantitative", "title": x_title}
    x["axis"] = {"grid": False, "tickMinStep": 1, "format": "d"}
    x["scale"] = {"domain": [min(rounds), max(rounds)], "nice": False}
    y = {"field": "value", "type": "quantitative", "title": title, "scale": {"domain": domain, "nice": False}}
    y["axis"] = {"grid": True, "tickCount": 6}
    chosen = {"filter": f"{CHOSEN} && datum.{SETTING} === {SETTING}" if len(settings) > 1 else CHOSEN}
    gap = (domain[1] - domain[0]) * LABEL / height
    layers = [
        {
            "transform": [chosen, {"filter": "isValid(datum.low)"}],
            "mark": {"type": "area", "opacity": 0.13},
            "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": color},
        },
        {
            "transform": [chosen],
            "mark": {"type": "line", "strokeJoin": "round"},
            "encoding": {"x": x, "y": y, "color": color, "strokeDash": dash},
        },
        {"transform": [chosen], **_hovered({"x": x, "y": y, "color": color}, always=len(set(rounds)) == 1)},
        *_end_labels(rows, chosen, color, y, gap),
    ]
    params: list[Spec] = [{"name": METHODS, "value": list(shown)}]
    if len(settings) > 1:
        params.append({"name": SETTING, "value": settings[0]})
    room = min(int((max(map(len, labels), default=0) + 6) * CHARACTER) + 14, 190)
    padding = {"left": 4, "top": 8, "bottom": 4, "right": room}
    return chart(rows, height=height, padding=padding, params=params, layer=layers)


def _hovered(where: Spec, *, always: bool) -> Spec:
    """Points that show on hover what they are; always shown where a line would have one point."""
    near = {"type": "point", "fields": ["method", "round"], "nearest": True, "on": "pointerover", "clear": "pointerout"}
    seen = {"condition": {"param": "hover", "empty": False, "value": 1}, "value": int(always)}
    tooltip = tips(method="method", round="round", value="value|.1f", seeds="interval", n="n", runs="runs")
    return {
        "params": [{"name": "hover", "select": near}],
        "mark": {"type": "point", "filled": True, "size": 55},
        "encoding": where | {"opacity": seen, "tooltip": tooltip},
    }


def _end_labels(rows: Rows, chosen: Spec, color: Spec, y: Spec, gap: float) -> list[Spec]:
    """Each shown line's name and last value. Sorted by value, the lowest positions that keep `gap` between them when
    labels are only pushed up, and the highest when they are only pushed down, both keep it; so does their mean."""
    last = {(row["method"], row.get(SETTING)): row for row in rows}
    ends = [
        {"method": row["method"], SETTING: row.get(SETTING), "value": row["value"],
         "text": f"{row['method'][:24]}  {row['value']:.1f}"}
        for row in last.values()
    ]  # fmt: skip
    upward = {"sort": [{"field": "value", "order": "ascending"}], "ignorePeers": True}
    place: list[Spec] = [
        chosen,
        {"window": [{"op": "row_number", "as": "rank"}], **upward},
        {"calculate": f"datum.value - datum.rank * {gap:.6g}", "as": "slack"},
        {"window": [{"op": "max", "field": "slack", "as": "up"}], "frame": [None, 0], **upward},
        {"window": [{"op": "min", "field": "slack", "as": "down"}], "frame": [0, None], **upward},
        {"calculate": f"(datum.up + datum.down) / 2 + datum.rank * {gap:.6g}", "as": "place"},
    ]
    at_end = {"x": {"value": "width"}, "y": y | {"field": "place"}}
    dot = {"type": "point", "filled": True, "size": 40, "xOffset": 9, "clip": False, "opacity": 1}
    text = {"type": "text", "align": "left", "dx": 17, "baseline": "middle", "fontSize": 12}
    words = {"text": {"field": "text", "type": "nominal"}}
    return [
        {"data": {"values": ends}, "transform": place, "mark": dot, "encoding": at_end | {"color": color}},
        {"data": {"values": ends}, "transform": place, "mark": text, "encoding": at_end | words},
    ]


# counts ---------------------------------------------------------------------------------------------------------------
def heat_map(
    rows: Rows,
    *,
    x: Sequence[str],
    y: Sequence[str],
    tooltip: Sequence[Spec],
    pattern: str = "d",
    step: int = 25,
    top: float | None = None,
) -> Spec:
    """A cell for each pair, with its number in it: rows have x, y, value and what the tooltip names. The darkest colour
    is that of `top`, or of the largest value."""
    most = top or max((row["value"] for row in rows if row["value"] is not None), default=0) or 1
    turned = len(x) > 8 or max(map(len, x), default=0) > 8
    x_axis = {"orient": "top", "title": None, "labelAngle": -50 if turned else 0, "labelLimit": LONGEST_NAME}
    where = {
        "x": {"field": "x", "type": "nominal", "sort": list(x), "axis": x_axis},
        "y": {"field": "y", "type": "nominal", "sort": list(y), "axis": {"title": None, "labelColor": token("ink")}},
        "tooltip": list(tooltip),
    }
    shade = {
        "field": "value",
        "type": "quantitative",
        "legend": None,
        "scale": {"type": "sqrt", "domain": [0, most], "range": [token("ramp-0"), token("ramp-1")]},
    }
    ink: Spec = {"condition": {"test": f"datum.value > {0.36 * most}", "value": token("ramp-text-1")}}
    ink |= {"value": token("ramp-text-0")}
    number = {"field": "value", "type": "quantitative", "format": pattern}
    faint = {"condition": {"test": "datum.value === 0", "value": 0.45}, "value": 1}
    layers = [
        {"mark": {"type": "rect", "cornerRadius": 3}, "encoding": where | {"color": shade}},
        {"mark": {"type": "text", "fontSize": 11},
         "encoding": where | {"text": number, "color": ink, "opacity": faint}},
    ]  # fmt: skip
    room = {"left": 4, "top": 4, "bottom": 4, "right": 28 if turned else 4}
    return chart(rows, height=step * len(y), padding=room, layer=layers)


# hospitals ------------------------------------------------------------------------------------------------------------
def dot_plot(rows: Rows, *, order: MethodOrder, shown: Sequence[str], groups: Sequence[str], title: str) -> Spec:
    """A row for each group (hospital), a dot for each method: rows have group, method, value, interval, n, runs."""
    labels = [label for label in order.labels if any(row["method"] == label for row in rows)]
    x = {"field": "value", "type": "quantitative", "title": title, "axis": {"grid": True, "tickCount": 6}}
    x["scale"] = {"domain": span([row["value"] for row in rows]), "nice": False, "zero": False}
    y = {"field": "group", "type": "nominal", "sort": list(groups), "axis": {"title": None, "labelColor": token("ink")}}
    color = {"field": "method", "type": "nominal", "scale": method_scale(order, labels)}
    color["legend"] = {"orient": "top", "title": None, "columns": 3, "symbolType": "circle"}
    tooltip = tips(hospital="group", method="method", value="value|.1f", interval="interval", n="n", runs="runs")
    ends = [{"op": "min", "field": "value", "as": "least"}, {"op": "max", "field": "value", "as": "most"}]
    reach = [{"aggregate": ends, "groupby": ["group"]}]
    layers = [
        {
            "transform": [{"filter": CHOSEN}, *reach],
            "mark": {"type": "rule", "color": token("hairline"), "strokeWidth": 3},
            "encoding": {"y": y, "x": x | {"field": "least"}, "x2": {"field": "most"}},
        },
        {
            "transform": [{"filter": CHOSEN}],
            "mark": {"type": "point", "filled": True, "size": 75, "opacity": 0.95},
            "encoding": {"y": y, "x": x, "color": color, "tooltip": tooltip},
        },
    ]
    params = [{"name": METHODS, "value": list(shown)}]
    return chart(rows, height=26 * len(groups), params=params, layer=layers)


def bars(rows: Rows, *, names: Sequence[str], title: str, tooltip: Sequence[Spec]) -> Spec:
    """Counts as bars from zero, with the number at the end: rows have name, value and what the tooltip names."""
    y = {"field": "name", "type": "nominal", "sort": list(names), "axis": {"title": None, "labelColor": token("ink")}}
    x = {"field": "value", "type": "quantitative", "title": title, "axis": {"grid": True, "tickCount": 4}}
    number = {"text": {"field": "value", "type": "quantitative", "format": ",d"}}
    return chart(
        rows,
        height=20 * len(names),
        encoding={"y": y, "x": x, "tooltip": list(tooltip)},
        layer=[
            {"mark": {"type": "bar", "color": token("method-1"), "cornerRadiusEnd": 2, "height": 11}},
            {"mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 11}, "encoding": number},
        ],
    )


def scatter(
    rows: Rows,
    *,
    x: str,
    y: str,
    color: str,
    colours: Mapping[str, str],
    tooltip: Sequence[Spec],
    shape: str | None = None,
    height: int = 420,
) -> Spec:
    """Points in a plane that has no units: rows have the fields x, y, color and perhaps shape."""
    bare = {"title": None, "axis": None, "scale": {"zero": False, "nice": True}}
    encoding: Spec = {
        "x": {"field": x, "type": "quantitative", **bare},
        "y": {"field": y, "type": "quantitative", **bare},
        "color": {
            "field": color,
            "type": "nominal",
            "scale": {"domain": list(colours), "range": list(colours.values())},
        },
        "tooltip": list(tooltip),
    }
    encoding["color"]["legend"] = {"orient": "bottom", "title": None, "columns": 4, "symbolType": "circle"}
    if shape is not None:
        encoding["shape"] = {"field": shape, "type": "nominal", "legend": {"orient": "bottom", "title": None}}
    mark = {"type": "point", "filled": True, "size": 22, "opacity": 0.7}
    return chart(rows, height=height, mark=mark, encoding=encoding)
