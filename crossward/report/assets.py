"""What pages of the report and of the dashboard are made with: style, scripts, and the library that draws charts.

Nothing here imports torch: the dashboard starts at once.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any

from crossward.disk import write_atomically
from crossward.errors import ConfigError, CrosswardError
from crossward.report.theme import THEMES, css_variables
from crossward.user_folders import cache_folder

INSTALL = "pip install 'crossward[report]'"


def safe_json(document: Any) -> str:
    """JSON that can stand within a script element: it contains no angle bracket, ampersand or line separator."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page_file(name: str) -> str:
    return resources.files("crossward.report").joinpath("page", name).read_text(encoding="utf-8")


@cache
def chart_library() -> str:
    """vega, vega-lite and vega-embed, of the version that also draws the figures for a paper. Making the bundle takes
    seconds during which no other thread runs, so it is stored in the user's cache."""
    module = vl_convert()
    stored = cache_folder() / "report" / f"vega-{module.__version__}.js"
    with suppress(OSError, ValueError):
        return stored.read_text(encoding="utf-8")
    text: str = module.javascript_bundle().replace("</script", "<\\/script")
    with suppress(OSError, CrosswardError):
        stored.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(stored, text.encode(), durable=False, contended=True)
    return text


def vl_convert() -> Any:
    """The module vl_convert, if it is installed."""
    try:
        import vl_convert as module
    except ImportError:
        raise ConfigError("the report needs packages that are not installed", hint=f"{INSTALL} brings them.") from None
    return module


def page_style() -> str:
    light = f"--names:none;{css_variables('light')}"
    dark = f"--names:invert(1);{css_variables('dark')}"  # names in pictures are dark
    dots = "".join(f".dot.{name}{{background:var(--{name})}}" for name in THEMES["light"])
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"{dots}\n{page_file('style.css')}"
        f"@media print{{:root,:root[data-theme],:root:not([data-theme=light]){{color-scheme:light;{light}}}}}\n"
    )
