"""Tasks: a table of names; the classes are imported when one is asked for, so that torch is not needed to list them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from crossward.errors import ConfigError
from crossward.names import found, nearest

if TYPE_CHECKING:
    from crossward.core.task import Task

TASKS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "classification": ("crossward.tasks.classification", "Classification"),
    "segmentation": ("crossward.tasks.segmentation", "Segmentation"),
})  # fmt: skip


def names() -> tuple[str, ...]:
    return tuple(TASKS)


def task(name: str, classes: tuple[str, ...], **options: Any) -> Task:
    """The named task over `classes`, with the options its class knows."""
    kind = found("task", name, TASKS)
    _check_classes(classes)
    known = [f.name for f in fields(kind) if f.name != "classes"]
    unknown = [f"{key}: {nearest(key, known)}" for key in options if key not in known]
    if unknown:
        raise ConfigError(f"The task {name!r} does not know these options.", details=unknown)
    return cast("Task", kind(classes=tuple(classes), **options))


def _check_classes(classes: tuple[str, ...]) -> None:
    twice = sorted({c for c in classes if classes.count(c) > 1})
    if twice:
        raise ConfigError("Each class may be named once.", details=twice)
    if len(classes) < 2:
        raise ConfigError(f"A task needs at least two classes, not {len(classes)}.", details=list(classes))
