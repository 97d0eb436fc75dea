"""Writing a configuration as TOML (the standard library only reads it)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dumps(document: Mapping[str, Any]) -> str:
    """Sections of scalars, lists and sections; None is left out, as its absence means the default."""
    return "\n".join(_section(document, ())).strip() + "\n"


def _section(table: Mapping[str, Any], at: tuple[str, ...]) -> list[str]:
    plain = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in plain.items()]
    if at and (lines or not table):
        lines = ["", f"[{'.'.join(map(_key, at))}]", *lines]
    for name, child in table.items():
        if isinstance(child, Mapping):
            lines += _section(child, (*at, name))
    return lines


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one character where JSON is laxer


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case Mapping():
            inside = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
            return f"{{ {inside} }}"
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return repr(value)
