"""Vega-Lite specifications of decisions: curves of one class with bands, a confusion matrix, a reliability diagram, and
dots with intervals. The reader chooses class, method and specificity; the parameters below hold the choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crossward.report import vega
from crossward.report.theme import MethodOrder
from crossward.report.vega import CHOSEN, METHODS, Rows, Spec, token

CLASS = "shown_class"
METHOD = "shown_method"
SPECIFICITY = "specificity"
OF_CLASS = f"datum.name === {CLASS}"
AT_SPECIFICITY = f"abs(datum.specificity - {SPECIFICITY}) < 0.01"
INTERVAL = "isValid(datum.low) ? format(datum.low, '.1f') + ' to ' + format(datum.high, '.1f') : 'none'"
DOT_STEP = 11  # pixels from one method's dot to the next
LEGEND: Mapping[str, Any] = {
    "orient": "top",
    "title": None,
    "columns": 2,  # for narrow screens: a legend that is wider than its chart is cut off
    "symbolType": "circle",
    "symbolOpacity": 1,
    "values": {"expr": METHODS},  # those that are shown
}


def with_interval() -> Spec:
    """The interval in words, computed in the page: it need not be stored for every point."""
    return {"calculate": INTERVAL, "as": "interval"}


def method_colour(order: MethodOrder, labels: Sequence[str], *, legend: bool = True) -> Spec:
    scale = vega.method_scale(order, labels)
    return {"field": "method", "type": "nominal", "scale": scale, "legend": dict(LEGEND) if legend else None}


def _percent(field: str, title: str, *, grid: bool = True) -> Spec:
    axis = {"grid": grid, "tickCount": 6}
    scale = {"domain": [0, 100], "nice": False}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def curve_chart(
    rows: Rows,
    *,
    order: MethodOrder,
    shown: Sequence[str],
    x: tuple[str, str],
    y: str,
    chosen: str,
    tooltip: Sequence[Spec],
    specificity: float | None = None,
    height: int = 320,
) -> Spec:
    """Lines of one class with their bands: rows have method, name, the x field, value, low, high, and what the tooltip
    names. `x` is the field and its title. With `specificity` the chosen one is marked (ROC: x is 100 minus it)."""
    labels = [label for label in order.labels if any(row["method"] == label for row in rows)]
    where = {"x": _percent(x[0], x[1], grid=False), "y": _percent("value", y)}
    colour = method_colour(order, labels)
    nearest = {"type": "point", "fields": ["method", x[0]], "nearest": True, "on": "pointerover", "clear": "pointerout"}
    lit = {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0}
    layers: list[Spec] = [
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "area", "opacity": 0.13},
            "encoding": {
                "x": where["x"],
                "y": where["y"] | {"field": "low"},
                "y2": {"field": "high"},
                "color": colour,
            },
        },
        {"mark": {"type": "line", "interpolate": "linear"}, "encoding": where | {"color": colour}},
        {
            "params": [{"name": "hover", "select": nearest}],
            "mark": {"type": "point", "filled": True, "size": 50},
            "encoding": where | {"color": colour, "opacity": lit, "tooltip": list(tooltip)},
        },
    ]
    params = [{"name": METHODS, "value": list(shown)}, {"name": CLASS, "value": chosen}]
    if specificity is not None:
        params.append({"name": SPECIFICITY, "value": specificity})
        layers = [_diagonal(), _marked(where), *layers, _marked_dots(where, colour)]
    transform = [{"filter": OF_CLASS}, {"filter": CHOSEN}, with_interval()]
    return vega.chart(rows, height=height, params=params, transform=transform, layer=layers)


def _diagonal() -> Spec:
    ends = [{"a": 0, "b": 0}, {"a": 100, "b": 100}]
    encoding = {"x": {"field": "a", "type": "quantitative"}, "y": {"field": "b", "type": "quantitative"}}
    dashed = {"type": "line", "color": token("faint"), "strokeDash": [3, 4], "strokeWidth": 1}
    return {"data": {"values": ends}, "mark": dashed, "encoding": encoding}


def _marked(where: Mapping[str, Any]) -> Spec:
    """The chosen specificity, as a line across the figure."""
    return {
        "data": {"values": [{}]},
        "transform": [{"calculate": f"100 - {SPECIFICITY}", "as": "at"}],
        "mark": {"type": "rule", "color": token("faint")},
        "encoding": {"x": {"field": "at", "type": "quantitative", "scale": where["x"]["scale"]}},
    }


def _marked_dots(where: Mapping[str, Any], colour: Spec) -> Spec:
    mark = {"type": "point", "filled": True, "size": 70, "opacity": 1}
    return {"transform": [{"filter": AT_SPECIFICITY}], "mark": mark, "encoding": {**where, "color": colour}}


def interval_dots(
    rows: Rows,
    *,
    order: MethodOrder,
    shown: Sequence[str],
    groups: Sequence[str],
    title: str,
    tooltip: Sequence[Spec],
    at: float | None = None,
    narrow: bool = False,
) -> Spec:
    """A row for each group, in it a dot with its interval for each chosen method: rows have group, method, value, low,
    high. With `at`, rows have a specificity as well, and those of the chosen one are shown. `narrow` rows have no
    room for one more method."""
    labels = [label for label in order.labels if any(row["method"] == label for row in rows)]
    y: Spec = {"field": "group", "type": "nominal", "sort": list(groups), "title": None}
    y["axis"] = {"labelColor": token("ink"), "grid": True, "bandPosition": 0, "tickBand": "extent"}
    offset = {"field": "method", "type": "nominal", "sort": labels, "scale": {"paddingOuter": 0.6}}
    x = {"field": "value", "type": "quantitative", "title": title, "axis": {"grid": True, "tickCount": 6}}
    x["scale"] = {"domain": [0, 100], "nice": False}
    colour = method_colour(order, labels)
    place = {"y": y, "yOffset": offset, "color": colour, "tooltip": list(tooltip)}
    layers = [
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "rule", "strokeWidth": 2, "strokeCap": "round", "opacity": 0.55},
            "encoding": place | {"x": x | {"field": "low"}, "x2": {"field": "high"}},
        },
        {"mark": {"type": "point", "filled": True, "size": 42, "opacity": 1}, "encoding": place | {"x": x}},
    ]
    params: list[Spec] = [{"name": METHODS, "value": list(shown)}]
    transform: list[Spec] = [{"filter": CHOSEN}, with_interval()]
    if at is not None:
        params.append({"name": SPECIFICITY, "value": at})
        transform.insert(0, {"filter": AT_SPECIFICITY})
    step = max(24, DOT_STEP * min(len(shown) + (not narrow), 6))
    return vega.chart(rows, height=step * max(len(groups), 1), params=params, transform=transform, layer=layers)


def confusion_chart(rows: Rows, *, classes: Sequence[str], chosen: str) -> Spec:
    """Percent of a class (a row) that are called so (a column): rows have x, y, value, images, of, method."""
    tooltip = vega.tips(truth="y", predicted="x", share="value|.1f", images="images", of="of", method="method")
    spec = vega.heat_map(rows, x=classes, y=classes, tooltip=tooltip, pattern=".0f")
    return spec | {
        "params": [{"name": METHOD, "value": chosen}],
        "transform": [{"filter": f"datum.method === {METHOD}"}],
    }


def reliability_chart(rows: Rows, *, order: MethodOrder, shown: Sequence[str], height: int = 320) -> Spec:
    """How often a method is right when it is so sure: rows have method, confidence, value, low, high, n."""
    labels = [label for label in order.labels if any(row["method"] == label for row in rows)]
    where = {
        "x": _percent("confidence", "how sure the network is (%)", grid=False),
        "y": _percent("value", "how often it is right (%)"),
    }
    colour = method_colour(order, labels)
    tooltip = vega.tips(
        method="method", sure="confidence|.1f", right="value|.1f", interval="interval", images="n|.0f", runs="runs"
    )
    size = {"field": "n", "type": "quantitative", "scale": {"range": [12, 220]}, "legend": None}
    layers: list[Spec] = [
        _diagonal(),
        {"mark": {"type": "line", "strokeWidth": 1.5, "opacity": 0.6}, "encoding": where | {"color": colour}},
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "rule", "opacity": 0.45},
            "encoding": {
                "x": where["x"],
                "y": where["y"] | {"field": "low"},
                "y2": {"field": "high"},
                "color": colour,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "opacity": 0.9},
            "encoding": where | {"color": colour, "size": size, "tooltip": tooltip},
        },
    ]
    params = [{"name": METHODS, "value": list(shown)}]
    return vega.chart(rows, height=height, params=params, transform=[{"filter": CHOSEN}, with_interval()], layer=layers)
