"""A page as one HTML file that loads nothing: template, style, script, charts and the library that draws them.

The page forbids itself every connection by its content-security policy. Scripts and the style are allowed by their
hashes, so nothing that a name in the data contains can run: names reach the page as escaped text or as JSON.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from crossward.errors import ConfigError
from crossward.report.assets import INSTALL, chart_library, page_file, page_style, safe_json
from crossward.report.content import (
    BETTER,
    REFERENCE,
    WORSE,
    Chart,
    Figure,
    HospitalPage,
    Page,
    RunSource,
    Section,
    Verdict,
    charts_of,
)
from crossward.report.theme import CONFIG, PREFIX, THEMES
from crossward.report.wording import capital, interval_text, number_text

if TYPE_CHECKING:
    from jinja2 import Environment

PACKED_ROWS = 8  # from here on, rows are packed column by column
MOST_NOTES = 4  # above the fold
MOST_RUNS = 10  # that a tooltip names


def render_page(page: Page) -> str:
    """The whole file."""
    style = page_style()
    library = chart_library()
    script = page_file("page.js")
    template = _environment(page.sources).get_template("page.html.j2")
    from markupsafe import Markup

    charts = {chart.id: _chart_document(chart) for chart in charts_of(page)}
    return template.render(
        page=page,
        policy=content_security_policy([library, script], style),
        style=Markup(style),
        library=Markup(library),
        script=Markup(script),
        charts=Markup(safe_json(charts)),
        tokens=Markup(safe_json({**THEMES, "config": CONFIG})),
        most_notes=MOST_NOTES,
    )


def render_section(section: Section | HospitalPage, sources: Sequence[RunSource] = ()) -> tuple[str, dict[str, Any]]:
    """The HTML of a section's blocks, and its charts by id: what a page that is there already takes in."""
    module = _environment(sources).get_template("blocks.html.j2").make_module({"sources": _by_id(sources)})
    html = str(module.blocks(section.blocks))  # type: ignore[attr-defined]  # a macro of the template
    return html, {chart.id: _chart_document(chart) for chart in charts_of(section)}


def content_security_policy(scripts: Sequence[str], style: str) -> str:
    """Nothing but these scripts and this style may run, and nothing may connect anywhere."""
    hashes = " ".join(_hash(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src {_hash(style)}; img-src data: blob:; "
        "connect-src 'none'; form-action 'none'; base-uri 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


# parts of the file ----------------------------------------------------------------------------------------------------
def _chart_document(chart: Chart) -> dict[str, Any]:
    document: dict[str, Any] = {"title": chart.title, "spec": pack(chart.spec), "width": chart.min_width}
    if chart.columns:
        rows = [dict(zip(chart.columns, row, strict=True)) for row in chart.rows]
        document["table"] = pack({"values": rows})["values"]
    return document


def pack(part: Any) -> Any:
    """A specification whose long lists of rows are stored column by column, each repeated text once."""
    match part:
        case Mapping():
            return {
                key: _packed_rows(value) if key == "values" and _is_table(value) else pack(value)
                for key, value in part.items()
            }
        case list() | tuple():
            return [pack(value) for value in part]
        case float() if not math.isfinite(part):
            return None
    return part


def _is_table(rows: Any) -> bool:
    return (
        isinstance(rows, list | tuple)
        and len(rows) >= PACKED_ROWS
        and all(isinstance(row, Mapping) and row.keys() == rows[0].keys() for row in rows)
    )


def _packed_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns = {name: _packed_column([pack(row[name]) for row in rows]) for name in rows[0]}
    return {"$packed": {"length": len(rows), "columns": columns}}


def _packed_column(values: list[Any]) -> Any:
    if not all(isinstance(value, str | None) for value in values):
        return values
    distinct = list(dict.fromkeys(values))
    if len(distinct) > len(values) // 2:
        return values
    place = {value: position for position, value in enumerate(distinct)}
    return {"distinct": distinct, "index": [place[value] for value in values]}


# cells ----------------------------------------------------------------------------------------------------------------
def _environment(sources: Sequence[RunSource]) -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise ConfigError("the report needs packages that are not installed", hint=f"{INSTALL} brings them.") from None

    environment = Environment(
        loader=PackageLoader("crossward.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["sources"] = _by_id(sources)
    environment.filters |= {
        "kind": lambda value: type(value).__name__,
        "figure_value": lambda figure: number_text(figure.value, figure.digits, signed=figure.signed),
        "figure_number": number_text,
        "figure_interval": interval_text,
        "plain_cell": lambda value: number_text(value, 1) if isinstance(value, float) else value,
        "tag_class": lambda word: word if word in (BETTER, WORSE, REFERENCE) else "same",
        "colour_class": lambda token: token.removeprefix(PREFIX),
        "row_class": lambda widths: "w-" + "-".join(map(str, widths or (1, 1))),
        "sort_key": sort_key,
        "tip": _tip,
        "capital": capital,
    }
    return environment


def _by_id(sources: Sequence[RunSource]) -> dict[str, RunSource]:
    return {source.id: source for source in sources}


def sort_key(value: Any) -> str | float | None:
    """What a table sorts a cell by, where that is not its text."""
    match value:
        case Figure():
            return "" if value.value is None else round(value.value, 6)
        case Verdict():
            return {BETTER: 3, REFERENCE: 2, WORSE: 0}.get(value.word, 1)
        case bool():
            return int(value)
        case int() | float():
            return value
    return None


def _tip(value: Any, sources: Mapping[str, RunSource]) -> str:
    if isinstance(value, Verdict):
        return value.note
    if not isinstance(value, Figure):
        return ""
    names = [sources[run].name for run in value.runs if run in sources]
    lines = [value.note] if value.note else []
    if names:
        more = " …" if len(names) > MOST_RUNS else ""
        lines.append(f"{'run' if len(names) == 1 else 'runs'}: {', '.join(names[:MOST_RUNS])}{more}")
    return "\n".join(lines)
