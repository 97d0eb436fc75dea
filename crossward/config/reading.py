"""Reading a configuration: TOML and --set, with every mistake named by key, line and nearest valid name."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from crossward import nets
from crossward.config.schema import Config, NetSettings, SiteSettings
from crossward.core.method import Method
from crossward.core.plugin import Plugin
from crossward.core.training import Training
from crossward.data.sources.settings import SOURCES
from crossward.errors import ConfigError
from crossward.methods import METHODS, method_class
from crossward.names import nearest
from crossward.plugins import PLUGINS, plugin_class

T = TypeVar("T")
NOT_VALID = "the configuration is not valid:"
Key = tuple[str, ...]
Where = Mapping[Key, str]  # the line or the flag that a key was written in
GIVEN = {  # what every net is told besides its options
    "size": "Set data.size.",
    "channels": "Set data.channels where the source has it.",
    "classes": "They are the classes of its labels.",
}
HEADER = re.compile(r"^\s*\[+\s*([^\[\]]+?)\s*\]+\s*(#.*)?$")
ASSIGNMENT = re.compile(r"^\s*([A-Za-z0-9_\-.\"]+)\s*=")


def read(file: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a TOML file, with `a.b=c` overrides."""
    data, where = sections(file)
    return checked(overridden(data, overrides), {**where, **_flags(overrides)})


def sections(file: Path) -> tuple[dict[str, Any], Where]:
    """What a TOML file says, and in which lines."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {file}: {error}") from None
    try:
        return tomllib.loads(text), _lines(text, file)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def checked(data: Mapping[str, Any], where: Where | None = None) -> Config:
    """A configuration from a mapping; all mistakes are told at once."""
    places = where or {}
    data = _as_published(data, places)
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        told = [_told(e, data, places) for e in error.errors()]
        raise ConfigError(NOT_VALID, details=told) from None
    if wrong := _wrong_names(config, places):
        raise ConfigError(NOT_VALID, details=wrong)
    return config


def _as_published(data: Mapping[str, Any], where: Where) -> Mapping[str, Any]:
    """[train] recipe = "paper" stands for the settings of the method's paper; keys written beside it go before them."""
    train = data.get("train")
    if not isinstance(train, Mapping) or "recipe" not in train:
        return data
    name = str((data.get("method") or {}).get("name", "fedavg")).split("+")[0]
    written = {key: value for key, value in train.items() if key != "recipe"}
    known = method_class(name).recipe if name in METHODS else {}  # a wrong name is told with the other mistakes
    if train["recipe"] != "paper" or (name in METHODS and not known):
        having = ", ".join(n for n in METHODS if method_class(n).recipe)
        told = f"train.recipe: {train['recipe']!r} is not known of {name}{_place(('train', 'recipe'), where)}."
        raise ConfigError(NOT_VALID, details=[f'{told} There is "paper", for {having}.'])
    return {**data, "train": {**known, **written}}


def method_of(config: Config) -> Method:
    return _made(method_class(config.method_name), config.method.options)


def plugins_of(config: Config) -> tuple[Plugin, ...]:
    return tuple(_made(plugin_class(name), config.plugin.get(name, {})) for name in config.plugin_names)


def _wrong_names(config: Config, where: Where) -> list[str]:
    """Mistakes in what a method, a plugin or a net alone can judge."""
    wrong = _wrong(("method",), config.method_name, METHODS, method_class, config.method.options, where)
    if len(set(config.plugin_names)) < len(config.plugin_names):
        wrong.append(f"method.name: {config.method.name!r} carries a plugin twice{_place(('method', 'name'), where)}.")
    for name in dict.fromkeys([*config.plugin_names, *config.plugin]):
        at = ("plugin", name)
        wrong += _wrong(at, name, PLUGINS, plugin_class, config.plugin.get(name, {}), where)
        if name in PLUGINS and name not in config.plugin_names:
            carried = f'method.name = "{config.method.name}+{name}"'
            wrong.append(f"plugin.{name}: the method does not carry it{_place(at, where)}. Write {carried}.")
    own = [((("site", str(i), "net")), entry.net) for i, entry in enumerate(config.site) if entry.net]
    return wrong + [line for at, net in [(("net",), config.net), *own] for line in _wrong_net(at, net, where)]


def _wrong_net(at: Key, net: NetSettings, where: Where) -> list[str]:
    told = [
        f"{'.'.join(at)}.{key}: it is given by the data{_place((*at, key), where)}. {GIVEN[key]}"
        for key in net.options
        if key in GIVEN
    ]
    options = [key for key in net.options if key not in GIVEN]
    for name in net.name if isinstance(net.name, tuple) else (net.name,):
        if name == "auto" or nets.is_own(name):
            continue
        if name in nets.NETS:
            told += _alien(at, options, nets.NETS[name].options, where, name)
        else:
            place = _place((*at, "name"), where)
            told.append(f"{'.'.join(at)}.name: there is no net {name!r}{place}. {nets.meant(name)}")
    return told


def _wrong(
    at: Key,
    name: str,
    table: Iterable[str],
    find: Callable[[str], type[Any]],
    options: Mapping[str, Any],
    where: Where,
) -> list[str]:
    if name not in table:
        return [f"{at[0]}: there is no {at[0]} {name!r}{_place((*at, 'name'), where)}. {nearest(name, table)}"]
    known = [f.name for f in fields(find(name)) if f.init]
    told = _alien(at, options, known, where)
    try:
        _made(find(name), {key: value for key, value in options.items() if key in known})
    except ValidationError as error:
        told += _told_together(at, error.errors(), where)
    return told


def _told_together(at: Key, errors: Iterable[ErrorDetails], where: Where) -> list[str]:
    """A line for each value; one that may be of several kinds, none of which it is, has a reason for each."""
    reasons: dict[Key, list[ErrorDetails]] = {}
    for e in errors:
        field, *rest = e["loc"]
        reasons.setdefault((*at, str(field), *(str(part) for part in rest if isinstance(part, int))), []).append(e)
    return [
        f"{'.'.join(key)}: {' or '.join([*(_reason(e) for e in wrong[:-1]), _message(wrong[-1])])}{_place(key, where)}"
        for key, wrong in reasons.items()
    ]


def _alien(at: Key, options: Iterable[str], known: Iterable[str], where: Where, of: str = "") -> list[str]:
    dotted, names, whose = ".".join(at), list(known), f" of {of}" if of else ""
    return [
        f"{dotted}.{key}: no such option{whose}{_place((*at, key), where)}. {nearest(key, names)}"
        for key in options
        if key not in names
    ]


def _made(kind: type[T], options: Mapping[str, Any]) -> T:
    return TypeAdapter(kind).validate_python(dict(options))


def differences(old: Any, new: Any, at: str = "") -> list[str]:
    """Every setting that two configurations disagree on."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = dict.fromkeys([*old, *new])
        return [d for k in keys for d in differences(old.get(k), new.get(k), f"{at}.{k}" if at else str(k))]
    return [] if old == new else [f"{at}: {old!r} in the run, {new!r} now"]


def overridden(settings: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The settings with each "a.b=c" put in its place; what was given stays as it is."""
    data = deepcopy(dict(settings))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {override!r} is not of the form a.b=c")
        *parents, leaf = key.strip().split(".")
        node = data
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"--set {override!r}: {parent!r} is a value, not a section")
        node[leaf] = _value(text.strip())
    return data


def _value(text: str) -> Any:
    """As TOML would read it; what TOML cannot read is a string, so that quotes may be left out."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _lines(text: str, file: Path) -> dict[Key, str]:
    found: dict[Key, str] = {}
    section: Key = ()
    entries: Counter[Key] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            section = _parts(header[1])
            if line.lstrip().startswith("[["):  # an entry of a list: site.0, site.1
                section, entries[section] = (*section, str(entries[section])), entries[section] + 1
            found.setdefault(section, f"{file}, line {number}")
        elif assignment := ASSIGNMENT.match(line):
            found.setdefault((*section, *_parts(assignment[1])), f"{file}, line {number}")
    return found


def _flags(overrides: Iterable[str]) -> dict[Key, str]:
    return {_parts(o.partition("=")[0]): f"--set {o}" for o in overrides}


def _parts(dotted: str) -> Key:
    return tuple(part.strip().strip('"') for part in dotted.split("."))


def _told(error: ErrorDetails, data: Mapping[str, Any], where: Where) -> str:
    key = tuple(str(part) for part in error["loc"] if not (error["loc"][0] == "data" and part in SOURCES))
    place = _place(key, where)
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{'.'.join(key)}: no such key{place}. {nearest(key[-1], _known(key[:-1], data))}"
    return f"{'.'.join(key)}: {_message(error)}{place}"


def _place(key: Key, where: Where) -> str:
    """Where the key, or the nearest section around it, was written."""
    places = [where[key[:n]] for n in range(len(key), 0, -1) if key[:n] in where]
    return f" ({places[0]})" if places else ""


def _reason(error: ErrorDetails) -> str:
    return error["msg"][0].lower() + error["msg"][1:]


def _message(error: ErrorDetails) -> str:
    text = _reason(error)
    return text if error["type"] == "missing" else f"{text}, not {error['input']!r}"


def _known(section: Key, data: Mapping[str, Any]) -> list[str]:
    if not section:
        return list(Config.model_fields)
    if section == ("data",):
        return list(SOURCES[data["data"].get("source", "phantom")].model_fields)
    if section[0] == "site":
        return list(SiteSettings.model_fields)
    if section == ("train",):
        return [f.name for f in fields(Training)]
    kind = Config.model_fields[section[0]].annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return [f.name for f in fields(kind)] if is_dataclass(kind) else []
