"""The tables of a site.toml: each is read on its own, and a mistake in it is named with its key and line."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from crossward.config.mistakes import schema_mistakes
from crossward.config.toml_lines import read_toml
from crossward.errors import ConfigError
from crossward.names import nearest

Settings = TypeVar("Settings", bound=BaseModel)


def read_table(
    file: Path, name: str, settings: type[Settings], what: str, *, only: Collection[str] = (), but: Collection[str] = ()
) -> Settings | None:
    """The settings in a table of a TOML file, which may have others; None if it has no such table. `what` the settings
    are is in the error. Of a table that several settings share, `only` these keys are read, or all `but` those: None if
    there is none of them."""
    data, where = read_toml(file)
    if name not in data:
        return None
    table = data[name]
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {name} is {table!r}", hint=f"Write a table, [{name}].")
    table = {key: value for key, value in table.items() if key not in but and (not only or key in only)}
    if not table and (only or but):
        return None
    known = {key: value for key, value in table.items() if key in settings.model_fields}
    problems = [
        f"{name}.{key}: no such key. {nearest(key, settings.model_fields)}" for key in table if key not in known
    ]
    try:
        read = settings.model_validate(known)
    except ValidationError as error:
        problems += [f"{name}.{line}" for line in schema_mistakes(error, table, where)]
    if problems:
        raise ConfigError(f"{what} not valid:", details=problems)
    return read
