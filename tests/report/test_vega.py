"""Specifications of figures: what they hold, that vl-convert accepts them, and that labels do not overlap."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from crossward.report import vega
from crossward.report.content import Chart
from crossward.report.figures import csv_text, drawn, paper_spec, vl_convert
from crossward.report.theme import CONFIG, DARK, LIGHT, MethodOrder, themed

METHODS = ("fedrep", "fedavg", "fedbm", "local")
ORDER = MethodOrder(METHODS, frozenset({"local"}))


def curve_rows(values: dict[str, float]) -> list[dict]:
    return [
        {"method": method, "round": round, "value": value + round, "low": value, "high": value + 2 * round,
         "interval": "", "n": "three seeds", "runs": "a, b"}
        for method, value in values.items() for round in (1, 2, 3)
    ]  # fmt: skip


def forest_rows() -> list[dict]:
    return [
        {"label": "fedrep", "value": 4.0, "low": 2.0, "high": 6.0, "verdict": "better", "interval": "", "n": "",
         "runs": ""},
        {"label": "fedavg", "value": 0.5, "low": -1.5, "high": 2.5, "verdict": "not distinguishable", "interval": "",
         "n": "", "runs": ""},
        {"label": "fedbm", "value": -1.0, "low": None, "high": None, "verdict": "not distinguishable", "interval": "",
         "n": "", "runs": ""},
    ]  # fmt: skip


def dots() -> list[dict]:
    return [
        {"group": site, "method": method, "value": 50.0 + k, "interval": "", "n": "", "runs": ""}
        for site in ("north", "south")
        for k, method in enumerate(METHODS)
    ]


CELLS = [{"x": x, "y": y, "value": 3 * k} for k, (x, y) in enumerate(itertools.product("ab", "cd"))]
SPECS = {
    "forest": vega.forest_plot(forest_rows(), title="points", noise=0.6),
    "forest without a band": vega.forest_plot(forest_rows(), title="points", noise=None),
    "curves": vega.curves(curve_rows({"fedrep": 50, "local": 40}), order=ORDER, shown=["fedrep"], title="F1 (%)"),
    "heat map": vega.heat_map(CELLS, x=["a", "b"], y=["c", "d"], tooltip=vega.tips(hospital="x")),
    "dots": vega.dot_plot(dots(), order=ORDER, shown=METHODS, groups=["north", "south"], title="F1"),
    "bars": vega.bars([{"name": "cat", "value": 3}], names=["cat"], title="images", tooltip=vega.tips(images="value")),
    "scatter": vega.scatter(
        [{"x": 0.1, "y": 0.2, "class": "cat", "site": "north"}],
        x="x", y="y", color="class", colours={"cat": vega.token("method-1")}, tooltip=vega.tips(hospital="site"),
        shape="site",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_vl_convert_draws_every_kind_of_figure_and_no_token_is_left(name):
    spec = paper_spec(Chart("c", "t", SPECS[name], "alt"))
    assert "token:" not in json.dumps(spec)
    svg = vl_convert().vegalite_to_svg(spec)
    assert svg.startswith("<svg")
    assert len(re.findall(r"<path", svg)) > 3


def test_a_wrong_specification_is_refused():
    with pytest.raises(ValueError, match="Invalid specification"):
        vl_convert().vegalite_to_svg({"data": {"values": []}, "encoding": {}})


def test_the_band_of_the_noise_floor_is_drawn_where_it_was_measured():
    def bands(name: str) -> list[dict]:
        return [layer for layer in SPECS[name]["layer"] if layer["mark"]["type"] == "rect"]

    assert bands("forest")[0]["encoding"]["x2"] == {"datum": 0.6}
    assert bands("forest without a band") == []


@pytest.mark.parametrize("values", [[50, 50.1, 50.2, 50.3], [10, 50, 50, 90], [1, 1, 1, 1]])
def test_names_at_the_ends_of_lines_do_not_overlap(values):
    """The places that Vega computes, read off the drawing."""
    rows = curve_rows(dict(zip(METHODS, values, strict=True)))
    spec = paper_spec(Chart("c", "t", vega.curves(rows, order=ORDER, shown=METHODS, title="F1"), "alt"))
    svg = vl_convert().vegalite_to_svg(spec)
    heights = [
        float(y) for y, text in re.findall(r'translate\([\d.]+,([\d.]+)\)"[^>]*>([^<]*)</text>', svg)
        if text.startswith(METHODS)
    ]  # fmt: skip
    assert len(heights) == 4
    gaps = [b - a for a, b in itertools.pairwise(sorted(heights))]
    assert min(gaps) > 0.95 * vega.LABEL


def test_a_picked_method_alone_is_drawn():
    rows = curve_rows(dict(zip(METHODS, (10, 20, 30, 40), strict=True)))
    spec = paper_spec(Chart("c", "t", vega.curves(rows, order=ORDER, shown=["fedavg"], title="F1"), "alt"))
    svg = vl_convert().vegalite_to_svg(spec)
    assert "fedavg" in svg
    assert ">fedbm" not in svg


def test_training_alone_is_grey_and_colours_stay_with_their_methods():
    assert ORDER.colour("local") == "token:alone"
    many = MethodOrder(tuple(f"m{k}" for k in range(16)))
    assert many.colour("m0") == many.colour("m7") == many.colour("m14")
    assert len({many.dash(label) for label in ("m0", "m7", "m14")}) == 3


def test_both_themes_have_every_colour():
    assert LIGHT.keys() == DARK.keys()
    assert themed({"a": ["token:better"]}, "dark") == {"a": [DARK["better"]]}
    assert "token:" not in json.dumps(themed(CONFIG, "light"))


def test_names_in_data_are_never_taken_for_colours():
    spec = {"data": {"values": [{"label": "token:better"}]}, "scale": {"domain": ["token:worse"]}}
    assert themed(spec, "light") == spec


def test_every_figure_is_written_as_svg_pdf_png_and_csv():
    files = drawn(Chart("forest", "t", SPECS["forest"], "alt"))
    assert files["svg"].startswith(b"<svg")
    assert files["pdf"].startswith(b"%PDF")
    assert files["png"].startswith(b"\x89PNG")
    assert files["csv"].decode("utf-8-sig").splitlines()[0] == "label,value,low,high,verdict,interval,n,runs"


def test_text_that_a_spreadsheet_would_run_is_quoted_in_the_csv():
    chart = Chart("c", "t", {"data": {"values": [{"name": "=cmd()", "value": -1.5}]}}, "alt")
    assert csv_text(chart).splitlines()[1] == "'=cmd(),-1.5"


def test_a_chart_with_a_table_of_its_own_writes_that():
    chart = Chart("c", "t", {"data": {"values": []}}, "alt", columns=("a", "b"), rows=((1, "x, y"),))
    assert csv_text(chart).splitlines() == ["a,b", '1,"x, y"']
