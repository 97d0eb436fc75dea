"""The catalogue of methods. Nothing is imported before it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossward.names import found

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
    kind: type[Method] = found("method", name, METHODS)
    return kind
