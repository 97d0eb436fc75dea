"""Blame: whose reply a method's server half fails over, when clients are not trusted.

What a reply must look like is checked before a method sees it. Should one pass that the method cannot use all the same,
because it raises an error or makes a state that is not finite, that is the failure of the client who sent it, and no
reason to end the run for the others. The round is done once more from what was received, without one client after the
other, until it goes through; each attempt takes the server's share of a round and asks no client for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from crossward.core.cohort import Cohort
from crossward.core.engine import Payload
from crossward.core.method import Clients
from crossward.core.tree import Tree, finite
from crossward.errors import RunError

Attempt = Callable[[Clients], Tree]  # clients -> the state after a round


class NotFinite(ArithmeticError):
    """A state that holds NaN or infinity."""


class _EndOfRecord(Exception):
    """A step that nobody has been asked yet: what went wrong lies before it."""


class _Replay:
    """The clients of a round that answer what they have answered, without some from a step on."""

    def __init__(self, cohort: Cohort, without: frozenset[int], since: int) -> None:
        self._cohort = cohort
        self._without = without
        self._since = since
        self._position = 0
        self.ids = list(cohort.asks[0].jobs)

    def ask(self, step: str, payload: Payload) -> Mapping[int, Tree]:
        number = self._position
        if number == len(self._cohort.asks):
            raise _EndOfRecord
        self._position += 1
        replies = self._cohort.replies_to(number, self._without if number >= self._since else ())
        self.ids = list(replies)
        return replies

    def leave_out(self, client: int, why: str) -> None:
        self.ids = [other for other in self.ids if other != client]

    def failure_of(self, client: int) -> str:
        return self._cohort.failure_of(client)


def state_without_culprits(attempt: Attempt, cohort: Cohort) -> Tree:
    """The state after a round. Clients over whose replies it fails are out of it; RunError, and errors that no client
    causes, are raised as they are."""
    while True:
        try:
            return _finite_state(attempt, cohort)
        except RunError:
            raise
        except Exception as error:
            culprits, number = _find_culprits(attempt, cohort)
            if not culprits:
                raise
            for site in culprits:
                cohort.reject(site, number, f"rejected: the method cannot use its reply ({type(error).__name__})")
            cohort.rewind()


def _find_culprits(attempt: Attempt, cohort: Cohort) -> tuple[list[int], int]:
    """The clients without whose replies, from which step on, the round goes through; none if it never does."""
    if not cohort.asks:
        return [], 0
    last = len(cohort.asks) - 1
    for number in dict.fromkeys((last, 0)):
        sites = list(cohort.replies_to(number))
        for site in sites:
            if len(sites) > 1 and _goes_through(attempt, cohort, {site}, number):
                return [site], number
        culprits = _several_culprits(attempt, cohort, sites, number)
        if len(culprits) < len(sites):
            return culprits, number
    return [], 0


def _several_culprits(attempt: Attempt, cohort: Cohort, sites: list[int], number: int) -> list[int]:
    """The clients that spoil a round of those that were added before them, in order."""
    culprits = list(sites)
    for site in sites:
        fewer = [each for each in culprits if each != site]
        if _goes_through(attempt, cohort, {*fewer}, number):
            culprits = fewer
    return culprits


def _goes_through(attempt: Attempt, cohort: Cohort, without: set[int], number: int) -> bool:
    try:
        _finite_state(attempt, _Replay(cohort, frozenset(without), number))
    except _EndOfRecord:
        return True
    except Exception:
        return False
    return True


def _finite_state(attempt: Attempt, clients: Clients) -> Tree:
    state = attempt(clients)
    if not finite(state):
        raise NotFinite("the state after the round holds NaN or infinity")
    return state
