"""Mistakes in a configuration as people read them: which key, in which line, and the nearest valid name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from crossward.config.schema import Config, SiteSettings
from crossward.config.toml_lines import Key, Where, place
from crossward.core.training import Training
from crossward.data.sources import setting_names
from crossward.names import nearest


def schema_mistakes(error: ValidationError, document: Mapping[str, Any], where: Where) -> list[str]:
    """A line for each mistake that the schema finds."""
    return [_schema_mistake(details, document, where) for details in error.errors()]


def _schema_mistake(details: ErrorDetails, document: Mapping[str, Any], where: Where) -> str:
    key = tuple(str(part) for part in details["loc"])
    dotted = ".".join(key)
    if details["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        if key == ("data", "depth"):
            return f"{dotted}: images of this source have 8 bits{place(key, where)}. Leave it out."
        return f"{dotted}: no such key{place(key, where)}. {nearest(key[-1], _known_keys(key[:-1], document))}"
    return f"{dotted}: {_message(details)}{place(key, where)}"


def option_mistakes(section: Key, error: ValidationError, where: Where) -> list[str]:
    """A line for each value; one that may be of several types, none of which it is, has a reason for each."""
    reasons: dict[Key, list[ErrorDetails]] = {}
    for details in error.errors():
        field, *rest = details["loc"]
        indices = [str(part) for part in rest if isinstance(part, int)]
        reasons.setdefault((*section, str(field), *indices), []).append(details)
    lines = []
    for key, wrong in reasons.items():
        alternatives = [*(_reason(details) for details in wrong[:-1]), _message(wrong[-1])]
        lines.append(f"{'.'.join(key)}: {' or '.join(alternatives)}{place(key, where)}")
    return lines


def unknown_options(
    section: Key, options: Iterable[str], known: Iterable[str], where: Where, of: str = ""
) -> list[str]:
    """A line for each option that there is not."""
    names = list(known)
    owner = f" of {of}" if of else ""
    lines = []
    for option in options:
        if option not in names:
            key = (*section, option)
            lines.append(f"{'.'.join(key)}: no such option{owner}{place(key, where)}. {nearest(option, names)}")
    return lines


def _reason(details: ErrorDetails) -> str:
    return details["msg"][0].lower() + details["msg"][1:]


def _message(details: ErrorDetails) -> str:
    reason = _reason(details)
    return reason if details["type"] == "missing" else f"{reason}, not {details['input']!r}"


def _known_keys(section: Key, document: Mapping[str, Any]) -> list[str]:
    if not section:
        return list(Config.model_fields)
    if section == ("data",):
        return setting_names(document["data"].get("source", "phantom"))
    if section[0] == "site":
        return list(SiteSettings.model_fields)
    if section == ("train",):
        return [field.name for field in fields(Training)]
    annotation = Config.model_fields[section[0]].annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return list(annotation.model_fields)
    return [field.name for field in fields(annotation)] if is_dataclass(annotation) else []
