"""The catalogue of tasks. A task's class is imported when it is needed, so listing tasks needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from crossward.errors import ConfigError
from crossward.names import import_from_catalogue, nearest

if TYPE_CHECKING:
    from crossward.core.task import Task

TASKS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "classification": ("crossward.tasks.classification", "Classification"),
    "multi-label": ("crossward.tasks.multi_label", "MultiLabel"),
    "segmentation": ("crossward.tasks.segmentation", "Segmentation"),
})  # fmt: skip


def names() -> tuple[str, ...]:
    return tuple(TASKS)


def task(name: str, classes: tuple[str, ...], **options: Any) -> Task:
    """The named task over `classes`, with the options of its class."""
    task_class = import_from_catalogue("task", name, TASKS)
    _check_classes(classes)
    known = [f.name for f in fields(task_class) if f.name != "classes"]
    unknown = [f"{key}: {nearest(key, known)}" for key in options if key not in known]
    if unknown:
        raise ConfigError(f"The task {name!r} does not know these options.", details=unknown)
    return cast("Task", task_class(classes=tuple(classes), **options))


def _check_classes(classes: tuple[str, ...]) -> None:
    duplicates = sorted({c for c in classes if classes.count(c) > 1})
    if duplicates:
        raise ConfigError("Each class may be named once.", details=duplicates)
    if len(classes) < 2:
        raise ConfigError(f"A task needs at least two classes, not {len(classes)}.", details=list(classes))
