"""The rounds of a hospital that joins a federation that is over: it trains by itself, with what the sites shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crossward.core.engine import Outcome
from crossward.core.evaluation import EvaluatedSites
from crossward.core.method import Clients, RoundContext
from crossward.core.run import Observer, Plan, Progress, RoundRecord, Turn
from crossward.core.tree import Tree


def join_turn(sites: EvaluatedSites) -> Turn | None:
    """What happens in a newcomer's round. A site with weights of its own trains these, and what all share stays as the
    federation left it. Where all weights are shared, it goes on from them as a federation of one does: None, the
    method's own round."""
    if not sites.personal:
        return None
    method = sites.method

    def turn(state: Tree, clients: Clients, ctx: RoundContext) -> Tree:
        clients.ask("train", method.broadcast(state))
        return state

    return turn


class JoinedRunObserver(Observer):
    """Passes everything on to another observer, but of the traffic only what a newcomer receives to begin with, and of
    the notes those that were not `told` before."""

    def __init__(self, observer: Observer, told: Sequence[str] = ()) -> None:
        self._observer = observer
        self._told = {*told}

    def on_notes(self, notes: Sequence[str]) -> None:
        self._observer.on_notes([note for note in notes if note not in self._told])

    def on_start(self, sites: EvaluatedSites, plan: Plan, progress: Progress) -> None:
        self._observer.on_start(sites, plan, progress)

    def on_outcome(self, round: int, done: int, of: int, outcome: Outcome) -> None:
        self._observer.on_outcome(round, done, of, outcome)

    def on_round(self, record: RoundRecord) -> None:
        received = [t for t in record.traffic if t.direction == "down"] if record.round == 1 else []
        self._observer.on_round(replace(record, traffic=received))

    def on_end(self, progress: Progress) -> None:
        self._observer.on_end(progress)
