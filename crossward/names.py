"""Catalogues of things by name, hints for unknown names, and names that can stand for a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from crossward.errors import ConfigError

Catalogue = Mapping[str, tuple[str, str]]  # name -> module and attribute, which is imported when it is needed
PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


def import_from_catalogue(noun: str, name: str, catalogue: Catalogue) -> Any:
    """Import the object that the catalogue has under this name; `noun` says in the error what it would be."""
    if name not in catalogue:
        raise ConfigError(f"there is no {noun} {name!r}", hint=nearest(name, catalogue))
    module, attribute = catalogue[name]
    return getattr(import_module(module), attribute)


def module_source(module: str) -> str:
    """The source of a module that is not imported: importing torch takes seconds."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"there is no source of {module}")
    return Path(spec.origin).read_text(encoding="utf-8")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one if one is near, and all of them."""
    names = list(known)
    close = get_close_matches(name.lower(), names, n=1, cutoff=0.4)
    listing = f"Known: {', '.join(names)}."
    return f"Did you mean {close[0]!r}? {listing}" if close else listing


def require_plain_name(name: str, what: str) -> str:
    """The name, if it can stand for a folder or a file: letters, digits, "-", "_" and, but not first, "."."""
    if not PLAIN_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a name for {what}", hint="Use letters, digits, -, _ and dots inside.")
    return name
