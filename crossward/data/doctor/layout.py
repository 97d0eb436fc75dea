"""The layout of a folder, an archive or a file of images: what is there, and the [data] section that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LOOKED_AT = 2000  # files whose content is looked at, evenly over all


@dataclass(frozen=True)
class Remark:
    """Something of the layout that a person should know, and what deals with it."""

    what: str
    deal: str


@dataclass(frozen=True)
class Layout:
    """What is there, and how it is read."""

    settings: Mapping[str, Any]  # of [data]
    files: tuple[str, ...] = ()  # that may be images
    formats: Mapping[str, int] = field(default_factory=dict)  # of the files that were looked at, by content
    misnamed: tuple[str, ...] = ()  # named after another format; as they are called outside of the folder
    reasons: Mapping[str, str] = field(default_factory=dict)  # setting -> why it is so
    others: int = 0  # files that are no images
    remarks: tuple[Remark, ...] = ()


def sampled(names: Sequence[str], most: int = LOOKED_AT) -> Sequence[str]:
    """At most so many of them, evenly over all."""
    step = max(1, -(-len(names) // most))
    return names[::step]
