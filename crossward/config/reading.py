"""Reading a configuration from TOML, a mapping and "a.b=c" overrides, and writing it as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from crossward.config.mistakes import schema_mistakes
from crossward.config.options import BuiltParts, build_parts
from crossward.config.schema import Config
from crossward.config.toml_lines import Key, Where, place, read_toml, split_key
from crossward.core.method import Method
from crossward.core.plugin import Plugin
from crossward.errors import ConfigError
from crossward.methods import METHODS, method_class

NOT_VALID = "the configuration is not valid:"


def read_config(
    file: Path,
    overrides: Sequence[str] = (),
    complete: Callable[[dict[str, Any]], Mapping[str, Any]] = lambda document: document,
) -> Config:
    """The configuration in a TOML file, with "a.b=c" overrides; `complete` adds what the file may leave out."""
    document, where = read_toml(file)
    return config_from(complete(with_overrides(document, overrides)), {**where, **_override_places(overrides)})


def config_from(document: Mapping[str, Any], where: Where | None = None) -> Config:
    """A configuration from a mapping; every mistake in it is reported at once."""
    places = where or {}
    document = _with_recipe(document, places)
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError(NOT_VALID, details=schema_mistakes(error, document, places)) from None
    parts, mistakes = build_parts(config, places)
    if mistakes:
        raise ConfigError(NOT_VALID, details=mistakes)
    config._parts = parts
    return config


def method_of(config: Config) -> Method:
    """The method that the configuration names, with its options."""
    return _parts(config).method


def plugins_of(config: Config) -> tuple[Plugin, ...]:
    """The plugins that the method's name carries, with their options."""
    return _parts(config).plugins


def _parts(config: Config) -> BuiltParts:
    """What was built when the configuration was checked; one that was made directly is checked now."""
    if config._parts is None:
        config._parts = config_from(config.canonical())._parts
    parts: BuiltParts = config._parts
    return parts


def _with_recipe(document: Mapping[str, Any], where: Where) -> Mapping[str, Any]:
    """[train] recipe = "paper" stands for the settings of the method's paper; keys written beside it go before them."""
    train = document.get("train")
    if not isinstance(train, Mapping) or "recipe" not in train:
        return document
    name = str((document.get("method") or {}).get("name", "fedavg")).split("+")[0]
    published = method_class(name).recipe if name in METHODS else {}  # a wrong name is reported with other mistakes
    if train["recipe"] != "paper" or (name in METHODS and not published):
        having = ", ".join(each for each in METHODS if method_class(each).recipe)
        mistake = f"train.recipe: {train['recipe']!r} is not known of {name}{place(('train', 'recipe'), where)}."
        raise ConfigError(NOT_VALID, details=[f'{mistake} There is "paper", for {having}.'])
    written = {key: value for key, value in train.items() if key != "recipe"}
    return {**document, "train": {**published, **written}}


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """Every setting that two configurations disagree on."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = dict.fromkeys([*old, *new])
        return [
            difference
            for name in names
            for difference in differences(old.get(name), new.get(name), f"{key}.{name}" if key else str(name))
        ]
    return [] if old == new else [f"{key}: {old!r} in the run, {new!r} now"]


def with_overrides(document: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of the document with each "a.b=c" put in its place."""
    changed = deepcopy(dict(document))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {override!r} is not of the form a.b=c")
        *parents, leaf = key.strip().split(".")
        section = changed
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ConfigError(f"--set {override!r}: {parent!r} is a value, not a section")
        section[leaf] = _override_value(text.strip())
    return changed


def _override_value(text: str) -> Any:
    """As TOML would read it; what TOML cannot read is a string, so that quotes may be left out."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml(document: Config | Mapping[str, Any]) -> str:
    """A configuration as TOML; settings that are None are left out, as their absence means the default."""
    settings = document.canonical() if isinstance(document, Config) else document
    return tomli_w.dumps(_without_none(settings))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_none(inner) for inner in value]
    return value


def _override_places(overrides: Iterable[str]) -> dict[Key, str]:
    return {split_key(override.partition("=")[0]): f"--set {override}" for override in overrides}
