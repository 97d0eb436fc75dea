"""Figures for a paper: every chart of a page as SVG, PDF, PNG and CSV, made without a browser."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from crossward.disk import cannot_write, write_atomically
from crossward.report.assets import vl_convert
from crossward.report.content import Chart, Page, charts_of
from crossward.report.theme import CONFIG, themed
from crossward.report.vega import FIGURE_WIDTH

VEGA_LITE = "6.4"  # as the page's own library
SCALE = 3  # of PNG: 288 dots per inch
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # text that a spreadsheet would take for a formula


def write_figures(page: Page, folder: Path) -> list[Path]:
    """Write every chart of the page; returns the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    files = []
    for chart in charts_of(page):
        for suffix, content in drawn(chart).items():
            file = folder / f"{chart.id}.{suffix}"
            write_atomically(file, content, durable=False)
            files.append(file)
    return files


def drawn(chart: Chart) -> dict[str, bytes]:
    """The chart by kind of file."""
    converter = vl_convert()
    spec = paper_spec(chart)
    return {
        "svg": converter.vegalite_to_svg(spec, vl_version=VEGA_LITE).encode(),
        "pdf": converter.vegalite_to_pdf(spec, vl_version=VEGA_LITE),
        "png": converter.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=SCALE),
        "csv": csv_text(chart).encode("utf-8-sig"),
    }


def paper_spec(chart: Chart) -> dict[str, Any]:
    """The specification in the light theme, on white, with a width of its own."""
    spec: dict[str, Any] = themed({**chart.spec, "config": CONFIG}, "light")
    width = max(FIGURE_WIDTH, chart.min_width) if spec.get("width") == "container" else spec.get("width")
    return {**spec, **({"width": width} if width else {}), "background": "#ffffff"}


def csv_text(chart: Chart) -> str:
    """The chart's data."""
    columns, rows = table_of(chart)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows([[_safe(value) for value in row] for row in rows])
    return out.getvalue()


def table_of(chart: Chart) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a chart: its own, or those of its specification."""
    if chart.columns:
        return list(chart.columns), [list(row) for row in chart.rows]
    values = chart.spec["data"]["values"]
    columns = list(dict.fromkeys(key for row in values for key in row))
    return columns, [[row.get(name) for name in columns] for row in values]


def _safe(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
