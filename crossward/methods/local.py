"""Local training: every hospital for itself, as many epochs as in the federation and nothing sent.
The baseline that joining a federation has to beat.

Departures: none; each site starts from weights of its own, drawn from the run's seed and its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from crossward.core import select
from crossward.core.disclosure import Disclosure
from crossward.core.method import Method, Need, RoundContext
from crossward.core.select import Select
from crossward.core.site import Site
from crossward.core.tree import Tree


@dataclass(frozen=True)
class Local(Method):
    shared: ClassVar[Select] = select.nothing
    needs: ClassVar[frozenset[Need]] = frozenset()
    discloses: ClassVar[Mapping[str, Disclosure]] = {}
    server_needs: ClassVar[str] = ""

    def start(self, ctx: RoundContext) -> Tree:
        return {}

    def train(self, site: Site, down: Tree) -> Tree:
        site.fit()
        return {}

    def aggregate(self, state: Tree, replies: Mapping[int, Tree], ctx: RoundContext) -> Tree:
        return state
