"""What can be wrong with a search beyond its own section: keys that no method has, values that a key does not take."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from crossward.config.reading import config_from
from crossward.core.metric_sum import summed_metrics
from crossward.errors import ConfigError
from crossward.methods import METHODS, method_class
from crossward.names import nearest
from crossward.plugins import PLUGINS, plugin_class
from crossward.studies.choices import own_ranges, searched_cells
from crossward.studies.grid import GridCell, put_key
from crossward.studies.search_space import Choice, Domain, Space, parse_space
from crossward.studies.study_file import NOT_VALID, StudyFile, mistake_line


def space_of(study: StudyFile, cell: GridCell) -> Space:
    """The keys that are searched for the method of this cell; its own ranges stand before the shared ones."""
    search = study.settings.search
    assert search is not None
    has = option_keys(cell.document["method"]["name"])
    shared = {key: written for key, written in search.ranges.items() if not _is_option(key) or key in has}
    return parse_space({**shared, **own_ranges(study, cell)})


def _is_option(key: str) -> bool:
    """Whether the key is one that only some methods have."""
    return key.split(".")[0] in ("method", "plugin")


def option_keys(name: str) -> list[str]:
    """The options of a method and of the plugins that its name carries, as keys."""
    method, *plugins = name.split("+")
    keys = [f"method.{each.name}" for each in fields(method_class(method)) if each.init] if method in METHODS else []
    for plugin in plugins:
        if plugin in PLUGINS:
            keys += [f"plugin.{plugin}.{each.name}" for each in fields(plugin_class(plugin)) if each.init]
    return keys


def check_search(study: StudyFile, metrics: Sequence[str]) -> None:
    """Raise with every mistake at once. `metrics` are those of validation."""
    search = study.settings.search
    if search is None:
        return
    mistakes = [*_key_mistakes(study)]
    for part in summed_metrics(search.metric) if search.metric else ():
        if part not in metrics:
            what = f"there is no metric {part!r} on validation sets"
            mistakes.append(mistake_line(study, ("search", "metric"), what, nearest(part, metrics)))
    mistakes = mistakes or [*_value_mistakes(study)]
    if mistakes:
        raise ConfigError(NOT_VALID, details=list(dict.fromkeys(mistakes)))


def _key_mistakes(study: StudyFile) -> Iterator[str]:
    search = study.settings.search
    assert search is not None
    entries = study.settings.methods()
    known = list(dict.fromkeys(key for entry in entries for key in option_keys(entry.name)))
    for key in search.ranges:
        if _is_option(key) and key not in known:
            yield mistake_line(study, ("search", key), f"no method of the study has {key}", _nearest_key(key, known))
    for cell in searched_cells(study):
        has = option_keys(cell.document["method"]["name"])
        for key in own_ranges(study, cell):
            if _is_option(key) and key not in has:
                at = ("method", str(cell.method), "search", key)
                yield mistake_line(study, at, f"{cell.label} has no {key}", _nearest_key(key, has))


def _nearest_key(key: str, known: Sequence[str]) -> str:
    return nearest(key, known) if known else "There are no options of methods or plugins to search."


def _value_mistakes(study: StudyFile) -> Iterator[str]:
    """Each bound and each value of a list must make a valid configuration."""
    for cell in searched_cells(study):
        own = own_ranges(study, cell)
        for key, domain in space_of(study, cell).items():
            for value in _ends(domain):
                document = copy.deepcopy(cell.document)
                at = ("method", str(cell.method), "search", key) if key in own else ("search", key)
                try:
                    put_key(document, key, value)
                    config_from(document)
                except ConfigError as error:
                    for line in error.details or [error.what]:
                        yield mistake_line(study, at, f"{cell.label} with {value!r}: {line}")


def _ends(domain: Domain) -> tuple[Any, ...]:
    return domain.values if isinstance(domain, Choice) else (domain.low, domain.high)
