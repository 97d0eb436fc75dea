"""The catalogue of plugins. Nothing is imported before it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossward.names import import_from_catalogue

if TYPE_CHECKING:
    from crossward.core.plugin import Plugin

PLUGINS = {
    "prox": ("crossward.plugins.prox", "Prox"),
    "bsm": ("crossward.plugins.bsm", "Bsm"),
    "npr": ("crossward.plugins.npr", "Npr"),
    "ft": ("crossward.plugins.finetune", "Finetune"),
}


def plugin_class(name: str) -> type[Plugin]:
    cls: type[Plugin] = import_from_catalogue("plugin", name, PLUGINS)
    return cls
