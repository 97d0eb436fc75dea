"""The dashboard's pages and what they load: HTML from templates, the report's style and script, and its own scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from crossward import __version__
from crossward.report.assets import chart_library, page_file, page_style, safe_json
from crossward.report.dashboard.catalogue import ListedRun
from crossward.report.theme import CONFIG, THEMES

PACKAGE = "crossward.report.dashboard"
JAVASCRIPT = "text/javascript; charset=utf-8"
CSS = "text/css; charset=utf-8"
SCRIPTS = ("live.js", "list.js", "run.js", "federation.js")
MAX_CONFIGURATION = 100_000  # characters that are shown


@cache
def assets() -> dict[str, tuple[str, str]]:
    """What pages load, by name: content and type."""
    style = page_style() + _own_file("dashboard.css")
    own = {name: (_own_file(name), JAVASCRIPT) for name in SCRIPTS}
    return {
        "style.css": (style, CSS),
        "vega.js": (chart_library(), JAVASCRIPT),
        "page.js": (page_file("page.js"), JAVASCRIPT),
        **own,
    }


def list_page(folder: str) -> str:
    return _render("list.html.j2", folder=folder)


def run_page(run: ListedRun, name: str, charts: dict[str, dict[str, Any]], about: dict[str, Any]) -> str:
    configuration = json.dumps(about.get("config", {}), indent=2, ensure_ascii=False)
    documents = {id: {"title": chart["title"], "spec": chart["spec"], "width": 0} for id, chart in charts.items()}
    return _render(
        "run.html.j2",
        id=run.id,
        name=name,
        charts=charts,
        documents=Markup(safe_json(documents)),
        configuration=configuration[:MAX_CONFIGURATION],
    )


def federation_page(run: ListedRun, name: str) -> str:
    return _render("federation.html.j2", id=run.id, name=name)


def differences_page(names: Sequence[str], differences: Sequence[tuple[str, str, str]]) -> str:
    return _render("differences.html.j2", names=names, differences=differences)


def message_page(title: str, words: str, *, wait: bool = False) -> str:
    """A page of a few words; one that waits asks again by itself."""
    return _render("message.html.j2", title=title, words=words, wait=wait)


def _own_file(name: str) -> str:
    return resources.files(PACKAGE).joinpath("page", name).read_text(encoding="utf-8")


def _render(template: str, **values: Any) -> str:
    tokens = Markup(safe_json({**THEMES, "config": CONFIG}))
    return _environment().get_template(template).render(tokens=tokens, version=__version__, **values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader(PACKAGE, "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
