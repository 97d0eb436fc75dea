"""What a coordinator knows of its sites at a moment, as it stands in federation-state.json of a run directory: who is
connected, who does which step since when, who is waited for and how long yet, who was left out and why, bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from crossward import foreign
from crossward.foreign import MAX_WHOLE, ForeignError, printable

MAX_SITES = 10_000
MAX_STEP = 60  # characters of a step's name
LONGEST = 1e11  # seconds since 1970, and of any duration: the year 5138


class Activity(StrEnum):
    """What a site does, as far as the coordinator knows."""

    ABSENT = "not here"  # it has not come, or has gone between two steps
    OPENING = "opening"  # it reads its images and says what they are
    READY = "ready"  # it takes part, and is asked for nothing
    WORKING = "working"
    LOST = "lost"  # it went away in a step, and is waited for
    DONE = "done"  # with the step it was last asked for
    LEFT_OUT = "left out"  # of the step it was last asked for
    REFUSED = "refused"  # it cannot take part in the run


class Phase(StrEnum):
    """What a run across hospitals is doing."""

    GATHERING = "gathering"  # it waits for its sites before round 1
    ROUNDS = "rounds"
    FINISHED = "finished"
    FAILED = "failed"


STEP_WORDS = {"train": "training", "judge": "evaluating", "deploy": "storing its network"}
WAITED_FOR = (Activity.OPENING, Activity.WORKING, Activity.LOST)  # until there is an answer, or the time is up
OVER = (Phase.FINISHED, Phase.FAILED)


@dataclass
class SiteState:
    """Times are seconds since 1970 by the coordinator's clock; 0 is none."""

    activity: Activity = Activity.ABSENT
    connected: bool = False
    since: float = 0.0  # when the activity began
    until: float = 0.0  # when the coordinator stops waiting for it
    step: str = ""  # that it was last asked for
    round: int = 0
    seconds: float = 0.0  # that the last step took which it answered
    why: str = ""  # it was left out or refused, or is lost
    left_out: int = 0  # times
    bytes: int = 0  # received from it in this run, since the coordinator was started


@dataclass
class FederationState:
    """A run across hospitals at the moment `written`."""

    federation: str = ""
    phase: Phase = Phase.GATHERING
    since: float = 0.0  # when the phase, or the round, began
    until: float = 0.0  # when it stops waiting for its sites before round 1
    least: int = 1  # sites that it needs to begin
    round: int = 0
    rounds: int = 0  # planned
    why: str = ""  # it failed
    written: float = 0.0
    sites: dict[str, SiteState] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(site.bytes for site in self.sites.values())

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def state_from(document: Mapping[str, Any]) -> FederationState:
    """A state from JSON; ForeignError if it is not as a coordinator writes it."""
    sites = document.get("sites", {})
    if not isinstance(sites, Mapping) or len(sites) > MAX_SITES:
        raise ForeignError("sites is not a table of sites")
    return FederationState(
        federation=printable(document.get("federation", ""), foreign.MAX_NAME),
        phase=Phase(foreign.choice(document.get("phase"), "phase", [*Phase])),
        since=_seconds(document, "since"),
        until=_seconds(document, "until"),
        least=_count(document, "least"),
        round=_count(document, "round"),
        rounds=_count(document, "rounds"),
        why=printable(document.get("why", "")),
        written=_seconds(document, "written"),
        sites={printable(name, foreign.MAX_NAME): _site_from(site) for name, site in sites.items()},
    )


def _site_from(document: object) -> SiteState:
    if not isinstance(document, Mapping):
        raise ForeignError("a site is not a table")
    return SiteState(
        activity=Activity(foreign.choice(document.get("activity"), "activity", [*Activity])),
        connected=document.get("connected") is True,
        since=_seconds(document, "since"),
        until=_seconds(document, "until"),
        step=printable(document.get("step", ""), MAX_STEP),
        round=_count(document, "round"),
        seconds=_seconds(document, "seconds"),
        why=printable(document.get("why", "")),
        left_out=_count(document, "left_out"),
        bytes=_count(document, "bytes"),
    )


def _seconds(document: Mapping[str, Any], key: str) -> float:
    return foreign.finite_number(document.get(key, 0.0), key, least=0.0, most=LONGEST)


def _count(document: Mapping[str, Any], key: str) -> int:
    return foreign.whole_number(document.get(key, 0), key, most=MAX_WHOLE)


# in words -------------------------------------------------------------------------------------------------------------
def state_words(state: FederationState, now: float) -> str:
    """The state in a line: "round 6: north done in 12 s, waiting for south, not connected for 12 of 30 s"."""
    if state.phase == Phase.GATHERING:
        return gathering_words(state, now)
    if state.phase == Phase.FINISHED:
        return f"finished after round {state.round}"
    if state.phase == Phase.FAILED:
        return f"failed: {state.why}" if state.why else "failed"
    if not state.round:
        return "before round 1"
    parts = [words for name, site in state.sites.items() if (words := site_words(name, site, now))]
    return f"round {state.round}: {', '.join(parts) or 'no site is asked for anything at the moment'}"


def gathering_words(state: FederationState, now: float) -> str:
    """Before round 1: who is here, whom the run waits for, and when it gives up."""
    here = [name for name, site in state.sites.items() if site.activity == Activity.READY]
    parts = [f"{_listed(here)} {'is' if len(here) == 1 else 'are'} here"] if here else []
    parts += [f"{name} was refused: {site.why}" for name, site in _doing(state, Activity.REFUSED)]
    parts += [f"{name} reads its images" for name, _ in _doing(state, Activity.OPENING)]
    missing = [name for name, _ in _doing(state, Activity.ABSENT)]
    if missing:
        connected = "not connected" if not any(state.sites[name].connected for name in missing) else "not ready"
        left = f", gives up in {max(0.0, state.until - now):.0f} s" if state.until else ""
        parts.append(f"waiting for {_listed(missing)}, {connected}{left}")
    return "before round 1: " + ("; ".join(parts) or "the run is being prepared")


def site_words(name: str, site: SiteState, now: float) -> str:
    """A site in a round; empty if there is nothing to say of it."""
    for_seconds = max(0.0, now - site.since)
    match site.activity:
        case Activity.DONE:
            return f"{name} done in {site.seconds:.0f} s{'' if site.connected else ', not connected now'}"
        case Activity.WORKING | Activity.OPENING:
            return f"{name} {activity_words(site)} for {for_seconds:.0f} s"
        case Activity.LOST:
            return f"waiting for {name}, not connected for {for_seconds:.0f} of {site.until - site.since:.0f} s"
        case Activity.LEFT_OUT:
            return f"{name} left out: {site.why}"
        case Activity.REFUSED:
            return f"{name} refused: {site.why}"
        case Activity.ABSENT:
            return f"{name} not connected"
        case _:
            return ""


def activity_words(site: SiteState) -> str:
    """What a site does: "training", "waits for work"."""
    match site.activity:
        case Activity.WORKING:
            return STEP_WORDS.get(site.step, f"in step {site.step}")
        case Activity.OPENING:
            return "reads its images"
        case Activity.LOST:
            return "not connected"
        case _:
            return site.activity.value


def waited_for(state: FederationState) -> list[str]:
    """The sites without which the run does not go on at the moment."""
    if state.phase == Phase.GATHERING:
        wanted: tuple[Activity, ...] = (Activity.ABSENT, Activity.OPENING)
    else:
        wanted = WAITED_FOR if state.phase == Phase.ROUNDS else ()
    return [name for name, site in state.sites.items() if site.activity in wanted]


def _doing(state: FederationState, activity: Activity) -> Iterable[tuple[str, SiteState]]:
    return ((name, site) for name, site in state.sites.items() if site.activity == activity)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
