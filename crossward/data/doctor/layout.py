"""The layout of a folder, an archive or a file of images: what is there, and the [data] section that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Item = TypeVar("Item")
LOOKED_AT = 2000  # files whose content is looked at, evenly over all


@dataclass(frozen=True)
class Remark:
    """Something of the layout that a person should know, and what deals with it."""

    what: str
    deal: str


@dataclass
class Reading:
    """The settings of [data] as they are found, why each is set, and what a person should know of the choice."""

    settings: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)

    def set(self, key: str, value: Any, why: str) -> None:
        self.settings[key] = value
        self.reasons[key] = why

    def unset(self, *keys: str) -> None:
        for key in keys:
            self.settings.pop(key, None)
            self.reasons.pop(key, None)

    def remark(self, what: str, deal: str) -> None:
        self.remarks.append(Remark(what, deal))


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
    ways: tuple[str, ...] = ()  # to classes, if these settings find none


def sampled(names: Sequence[Item], most: int = LOOKED_AT) -> Sequence[Item]:
    """At most so many of them, evenly over all."""
    step = max(1, -(-len(names) // most))
    return names[::step]
