"""The catalogue of plugins: name -> where its class is. Nothing is imported before it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from crossward.errors import ConfigError
from crossward.names import nearest

if TYPE_CHECKING:
    from crossward.core.plugin import Plugin

PLUGINS = {
    "prox": ("crossward.plugins.prox", "Prox"),
    "ft": ("crossward.plugins.finetune", "Finetune"),
}


def plugin_class(name: str) -> type[Plugin]:
    if name not in PLUGINS:
        raise ConfigError(f"there is no plugin {name!r}", hint=nearest(name, PLUGINS))
    module, attribute = PLUGINS[name]
    found: type[Plugin] = getattr(import_module(module), attribute)
    return found
