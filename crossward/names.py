"""Names: catalogues of things by name, and what a person probably meant by a name that is in none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from crossward.errors import ConfigError

Catalogue = Mapping[str, tuple[str, str]]  # name -> module and attribute, imported when asked for


def found(kind: str, name: str, catalogue: Catalogue) -> Any:
    """The thing of that name, imported."""
    if name not in catalogue:
        raise ConfigError(f"there is no {kind} {name!r}", hint=nearest(name, catalogue))
    module, attribute = catalogue[name]
    return getattr(import_module(module), attribute)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint: the nearest known name if one is near, and all of them."""
    every = list(known)
    close = get_close_matches(name.lower(), every, n=1, cutoff=0.4)
    listed = f"Known: {', '.join(every)}."
    return f"Did you mean {close[0]!r}? {listed}" if close else listed


def plain(name: str, what: str) -> str:
    """The name, if it can stand for a folder or a file: letters, digits, "-", "_" and "." but not first."""
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", name):
        raise ConfigError(f"{name!r} is not a name for {what}", hint="Use letters, digits, -, _ and dots inside.")
    return name
