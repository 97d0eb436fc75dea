"""The look of the report: the colours of light and dark as tokens, and what Vega-Lite is configured with.

A specification names colours as tokens ("token:better"). `themed` puts the colours of one theme in their place; the
page does the same in page.js when somebody changes the theme. Names in data are never touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PREFIX = "token:"
UNTOUCHED = frozenset({"data", "datasets", "domain", "sort", "values"})  # keys below which there are names, not colours
FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"

LIGHT: Mapping[str, str] = {
    "ink": "#1a2230",
    "muted": "#5b6475",
    "faint": "#98a2b3",
    "hairline": "#e6e9ef",
    "page": "#fbfcfe",
    "card": "#ffffff",
    "band": "#eef1f5",
    "better": "#0b5cad",
    "same": "#98a2b3",
    "worse": "#d95f02",
    "better-tint": "#e7f0f9",
    "same-tint": "#f1f3f6",
    "worse-tint": "#fdeee2",
    "better-text": "#0b5cad",
    "same-text": "#475467",
    "worse-text": "#a34702",
    "alone": "#98a2b3",
    "method-1": "#0072b2",
    "method-2": "#e69f00",
    "method-3": "#009e73",
    "method-4": "#cc79a7",
    "method-5": "#d55e00",
    "method-6": "#56b4e9",
    "method-7": "#1a2230",
    "ramp-0": "#eef4fb",
    "ramp-1": "#08458a",
    "ramp-text-0": "#1a2230",
    "ramp-text-1": "#ffffff",
    "good": "#2f7d4f",
    "focus": "#0b5cad",
}
DARK: Mapping[str, str] = {
    "ink": "#e8ebf1",
    "muted": "#a3adbf",
    "faint": "#7d889c",
    "hairline": "#2a3342",
    "page": "#10151d",
    "card": "#171e29",
    "band": "#232c3a",
    "better": "#5aa9f0",
    "same": "#7d889c",
    "worse": "#ff9a4d",
    "better-tint": "#16304a",
    "same-tint": "#232c3a",
    "worse-tint": "#40270f",
    "better-text": "#8cc5f8",
    "same-text": "#c2cad8",
    "worse-text": "#ffb981",
    "alone": "#8b95a7",
    "method-1": "#4aa3df",
    "method-2": "#f0b53a",
    "method-3": "#2fc198",
    "method-4": "#e29bc4",
    "method-5": "#ff8345",
    "method-6": "#8fd3ff",
    "method-7": "#e8ebf1",
    "ramp-0": "#1b2736",
    "ramp-1": "#7fbdf5",
    "ramp-text-0": "#e8ebf1",
    "ramp-text-1": "#10151d",
    "good": "#66c28c",
    "focus": "#8cc5f8",
}
METHOD_COLOURS = 7  # then they come again, dashed
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
THEMES: Mapping[str, Mapping[str, str]] = {"light": LIGHT, "dark": DARK}

CONFIG: Mapping[str, Any] = {
    "background": "transparent",
    "font": FONT,
    "padding": 4,
    "view": {"stroke": None},
    "title": {"color": f"{PREFIX}ink", "fontSize": 13, "fontWeight": 600, "anchor": "start"},
    "axis": {
        "domain": False,
        "ticks": False,
        "gridColor": f"{PREFIX}hairline",
        "labelColor": f"{PREFIX}muted",
        "labelFontSize": 12,
        "labelPadding": 6,
        "labelLimit": 170,
        "titleColor": f"{PREFIX}muted",
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 10,
    },
    "legend": {
        "labelColor": f"{PREFIX}ink",
        "titleColor": f"{PREFIX}muted",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 220,
    },
    "header": {"labelColor": f"{PREFIX}ink", "titleColor": f"{PREFIX}muted", "labelFontSize": 12},
    "text": {"color": f"{PREFIX}ink", "fontSize": 12},
    "rule": {"color": f"{PREFIX}faint"},
    "line": {"strokeWidth": 2},
    "scale": {"bandPaddingInner": 0.1},
}


def themed(spec: Any, theme: str) -> Any:
    """A specification, or a part of it, with the colours of a theme; data and domains are left as they are."""
    tokens = THEMES[theme]
    match spec:
        case str() if spec.startswith(PREFIX):
            return tokens.get(spec.removeprefix(PREFIX), spec)
        case Mapping():
            return {key: value if key in UNTOUCHED else themed(value, theme) for key, value in spec.items()}
        case list() | tuple():
            return [themed(value, theme) for value in spec]
    return spec


def css_variables(theme: str) -> str:
    """The tokens as CSS declarations: "--ink:#1a2230;…"."""
    return "".join(f"--{name}:{colour};" for name, colour in THEMES[theme].items())


@dataclass(frozen=True)
class MethodOrder:
    """The methods of a page in one order, so that each has one colour everywhere; training alone is grey."""

    labels: tuple[str, ...]
    alone: frozenset[str] = field(default_factory=frozenset)

    def colour(self, label: str) -> str:
        if label in self.alone:
            return f"{PREFIX}alone"
        others = [each for each in self.labels if each not in self.alone]
        return f"{PREFIX}method-{others.index(label) % METHOD_COLOURS + 1}"

    def dash(self, label: str) -> tuple[int, ...]:
        """Methods that share a colour differ in the dashes of their line."""
        others = [each for each in self.labels if each not in self.alone]
        cycle = 0 if label in self.alone else others.index(label) // METHOD_COLOURS
        return DASHES[cycle % len(DASHES)]

    def colours(self, labels: Sequence[str] | None = None) -> list[str]:
        return [self.colour(label) for label in labels or self.labels]
