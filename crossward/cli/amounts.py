"""Bytes and seconds as people read them."""

from __future__ import annotations


def in_words(seconds: float) -> str:
    """3 s, 12 min, 2 h 05 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def size_in_words(count: float) -> str:
    """1.5 GiB, 12.0 MiB, 3 KiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 2**10:.0f} KiB"
