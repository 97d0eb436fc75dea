"""Methods that misbehave, for the tests of the engines and of the conformance checks. They are here, and not in tests/,
because the worker processes of the pool must be able to import them.

Departures: from every rule.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch

from crossward.core.method import Method
from crossward.core.site import Site
from crossward.core.tree import Tree
from crossward.core.weights import Weights
from crossward.errors import RunError
from crossward.methods.scaffold import Scaffold

BOARD: Tree = {}  # where HiddenInModule keeps its state


@dataclass(frozen=True)
class Faulty(Method):
    """FedAvg, but one site ends its process, raises, raises an error for people, or diverges."""

    fault: Literal["exit", "raise", "words", "nan"] = "raise"
    site: str = "site-1"

    def train(self, site: Site, down: Tree) -> Tree:
        reply = super().train(site, down)
        if site.name != self.site:
            return reply
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "raise":
            raise ZeroDivisionError(f"{site.name} has run out of film")
        if self.fault == "words":
            raise RunError(f"{site.name} has no film", details=["35 mm"], hint="Buy some.")
        site.memory["seen"] = True
        Weights.of(site.model).map(lambda t: torch.full_like(t, torch.nan)).into(site.model)
        return reply | {"model": Weights.of(site.model, self.returns)}


@dataclass(frozen=True)
class HiddenOnModel(Scaffold):
    """c_i is kept on a live object, not in the memory."""

    def train(self, site: Site, down: Tree) -> Tree:
        site.memory["c"] = getattr(site.model, "hidden", down["c"].zeros())
        reply = super().train(site, down)
        object.__setattr__(site.model, "hidden", site.memory.pop("c"))
        return reply


@dataclass(frozen=True)
class HiddenInModule(Scaffold):
    """The client reads an object of the server's instead of its payload."""

    def broadcast(self, state: Tree) -> Tree:
        BOARD["c"] = state["c"]
        return {"model": state["model"]}

    def train(self, site: Site, down: Tree) -> Tree:
        return super().train(site, down | {"c": BOARD["c"]})


@dataclass(frozen=True)
class EditsPayload(Scaffold):
    """The client changes the tensors that the server sent."""

    def train(self, site: Site, down: Tree) -> Tree:
        reply = super().train(site, down)
        for tensor in down["c"].values():
            tensor.add_(1)
        return reply
