"""Rounds of a hospital that joined a federation that is over: by itself, with what the federation has."""

from __future__ import annotations

from dataclasses import replace

from crossward.core.engine import Outcome
from crossward.core.evaluation import EvaluatedSites
from crossward.core.method import Clients, RoundContext
from crossward.core.run import Observer, Plan, Progress, RoundRecord, Turn
from crossward.core.tree import Tree


def turn_of(sites: EvaluatedSites) -> Turn | None:
    """Where a site has weights of its own, it trains these and what all share stays as the federation left it. Where
    all weights are shared, it goes on from them as a federation of one does: the method's own round."""
    if not sites.personal:
        return None
    method = sites.method

    def turn(state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        clients.ask("train", method.broadcast(state))
        return state

    return turn


class GivenOnce(Observer):
    """Tells an observer what a newcomer costs in traffic: what it is given before its first round, and no more."""

    def __init__(self, told: Observer) -> None:
        self._told = told

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None:
        self._told.on_start(sites, plan, progress)

    def on_outcome(self, round: int, done: int, of: int, outcome: Outcome) -> None:
        self._told.on_outcome(round, done, of, outcome)

    def on_round(self, record: RoundRecord) -> None:
        given = [t for t in record.traffic if t.direction == "down"] if record.round == 1 else []
        self._told.on_round(replace(record, traffic=given))

    def on_end(self, progress: Progress) -> None:
        self._told.on_end(progress)
