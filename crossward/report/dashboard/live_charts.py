"""The charts of a live run: their specifications, empty. Their rows come as rounds are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crossward.report.dashboard.run_view import MEAN_LOSS, VIEW_NAMES
from crossward.report.theme import METHOD_COLOURS, PREFIX
from crossward.report.vega import Spec, chart, tips

ROWS = "rounds"  # the name of the data that grow


def live_charts(metric: str, planned: int | None, sites: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By id: title, caption, what it shows for people who do not see it, and its specification."""
    percent = f"{metric}, in percent" if metric else "score"
    lines = dict(zip(VIEW_NAMES.values(), (1, 5, 3), strict=True))
    losses = {MEAN_LOSS: f"{PREFIX}ink"} | {
        name: f"{PREFIX}method-{number % METHOD_COLOURS + 1}" for number, name in enumerate(sites)
    }
    return {
        "scores": {
            "title": f"{metric or 'score'} on the test sets".capitalize(),
            "caption": "The mean of the hospitals, the worst of them, and all test images together; by round.",
            "alt": f"Curves of {metric} on the test sets by round. The table of the figure's data has the numbers.",
            "spec": _curves(percent, {line: f"{PREFIX}method-{colour}" for line, colour in lines.items()}, planned, 1),
        },
        "losses": {
            "title": "Training loss",
            "caption": "As the hospitals report it, and their mean.",
            "alt": "Curves of the training loss by round, of each hospital and of their mean.",
            "spec": _curves("loss", losses, planned, 3),
        },
        "seconds": {
            "title": "Seconds for a round",
            "caption": "The time left is reckoned by the last ten.",
            "alt": "The duration of each round in seconds.",
            "spec": _curves("seconds", {"seconds": f"{PREFIX}method-1"}, planned, 1, zero=True),
        },
    }


def _curves(title: str, colours: dict[str, str], planned: int | None, digits: int, *, zero: bool = False) -> Spec:
    """Lines over rounds, up to the last planned one, so that a curve grows into its place."""
    domain = [0, planned] if planned else None
    x: Spec = {"field": "round", "type": "quantitative", "title": "round"}
    x |= {"axis": {"grid": False, "tickMinStep": 1, "format": "d"}}
    x |= {"scale": {"domain": domain, "nice": False} if domain else {"zero": True}}
    y: Spec = {"field": "value", "type": "quantitative", "title": title, "scale": {"zero": zero, "nice": True}}
    y |= {"axis": {"grid": True, "tickCount": 5}}
    color: Spec = {"field": "line", "type": "nominal"}
    color |= {"scale": {"domain": list(colours), "range": list(colours.values())}}
    several = len(colours) > 1
    color |= {"legend": {"orient": "top", "title": None, "columns": 2, "symbolType": "circle"} if several else None}
    tooltip = tips(line="line", round="round", value=f"value|.{digits}f")
    where = {"x": x, "y": y, "color": color}
    layers: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 2, "strokeJoin": "round"}, "encoding": where},
        {"mark": {"type": "point", "filled": True, "size": 22, "opacity": 1}, "encoding": where | {"tooltip": tooltip}},
    ]
    spec = chart([], height=230, layer=layers)
    return spec | {"data": {"name": ROWS, "values": []}}
