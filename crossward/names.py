"""What a person probably meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint: the nearest known name if one is near, and the others."""
    every = list(known)
    close = get_close_matches(name.lower(), every, n=1, cutoff=0.4)
    listed = f"Known: {', '.join(every)}."
    return f"Did you mean {close[0]!r}? {listed}" if close else listed
