"""The catalogue of methods: name -> where its class is. Nothing is imported before it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from crossward.errors import ConfigError
from crossward.names import nearest

if TYPE_CHECKING:
    from crossward.core.method import Method

METHODS = {
    "fedavg": ("crossward.methods.fedavg", "FedAvg"),
    "fedprox": ("crossward.methods.fedprox", "FedProx"),
    "scaffold": ("crossward.methods.scaffold", "Scaffold"),
    "local": ("crossward.methods.local", "Local"),
    "central": ("crossward.methods.central", "Central"),
}


def method_class(name: str) -> type[Method]:
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}", hint=nearest(name, METHODS))
    module, attribute = METHODS[name]
    found: type[Method] = getattr(import_module(module), attribute)
    return found
