"""Options that the schema leaves open, of the method, its plugins and nets: checked by building what they are for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from crossward import nets
from crossward.config.mistakes import option_mistakes, unknown_options
from crossward.config.schema import Config, NetSettings
from crossward.config.toml_lines import Key, Where, place
from crossward.core.method import Method
from crossward.core.plugin import Plugin
from crossward.methods import METHODS, method_class
from crossward.names import nearest
from crossward.plugins import PLUGINS, plugin_class

T = TypeVar("T")
GIVEN_BY_DATA = {  # what every net gets from the data besides its options
    "size": "Set data.size.",
    "channels": "Set data.channels where the source has it.",
    "classes": "They are the classes of its labels.",
}


@dataclass(frozen=True)
class BuiltParts:
    """The method and the plugins of a configuration, made from their options once."""

    method: Method
    plugins: tuple[Plugin, ...]


def build_parts(config: Config, where: Where) -> tuple[BuiltParts | None, list[str]]:
    """The parts, if there is no mistake in them; and all mistakes."""
    mistakes: list[str] = []
    method: Method | None = None
    if config.method_name in METHODS:
        method = _build(("method",), method_class(config.method_name), config.method.options, where, mistakes)
    else:
        mistakes.append(_unknown_name(("method",), config.method_name, METHODS, where))
    plugins = _build_plugins(config, where, mistakes)
    mistakes += _net_mistakes(("net",), config.net, where)
    for index, site in enumerate(config.site):
        if site.net:
            mistakes += _net_mistakes(("site", str(index), "net"), site.net, where)
    if mistakes or method is None:
        return None, mistakes
    return BuiltParts(method, plugins), []


def _build_plugins(config: Config, where: Where, mistakes: list[str]) -> tuple[Plugin, ...]:
    names = config.plugin_names
    if len(set(names)) < len(names):
        written = place(("method", "name"), where)
        mistakes.append(f"method.name: {config.method.name!r} carries a plugin twice{written}.")
    plugins: dict[str, Plugin] = {}
    for name in dict.fromkeys([*names, *config.plugin]):
        section = ("plugin", name)
        if name not in PLUGINS:
            mistakes.append(_unknown_name(section, name, PLUGINS, where))
            continue
        plugin = _build(section, plugin_class(name), config.plugin.get(name, {}), where, mistakes)
        if name not in names:
            carried = f'method.name = "{config.method.name}+{name}"'
            mistakes.append(f"plugin.{name}: the method does not carry it{place(section, where)}. Write {carried}.")
        elif plugin is not None:
            plugins[name] = plugin
    return tuple(plugins[name] for name in names if name in plugins)


def _build(section: Key, cls: type[T], options: Mapping[str, Any], where: Where, mistakes: list[str]) -> T | None:
    """The method or plugin with these options; None, and `mistakes` says why, if they are wrong."""
    known = [field.name for field in fields(cls) if field.init]  # type: ignore[arg-type]  # each is a dataclass
    unknown = unknown_options(section, options, known, where)
    mistakes += unknown
    try:
        built: T = TypeAdapter(cls).validate_python({key: options[key] for key in options if key in known})
    except ValidationError as error:
        mistakes += option_mistakes(section, error, where)
        return None
    return None if unknown else built


def _unknown_name(section: Key, name: str, table: Iterable[str], where: Where) -> str:
    noun = section[0]
    return f"{noun}: there is no {noun} {name!r}{place((*section, 'name'), where)}. {nearest(name, table)}"


def _net_mistakes(section: Key, net: NetSettings, where: Where) -> list[str]:
    dotted = ".".join(section)
    mistakes = [
        f"{dotted}.{key}: it is given by the data{place((*section, key), where)}. {GIVEN_BY_DATA[key]}"
        for key in net.options
        if key in GIVEN_BY_DATA
    ]
    options = [key for key in net.options if key not in GIVEN_BY_DATA]
    for name in net.name if isinstance(net.name, tuple) else (net.name,):
        if name == "auto" or nets.is_user_net(name):
            continue
        if name in nets.NETS:
            mistakes += unknown_options(section, options, nets.NETS[name].options, where, of=name)
        else:
            written = place((*section, "name"), where)
            mistakes.append(f"{dotted}.name: there is no net {name!r}{written}. {nets.suggestion(name)}")
    return mistakes
