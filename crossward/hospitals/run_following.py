"""What people see of a run across hospitals as it goes on: a line for each event and round, and whom it waits for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossward.errors import StorageError
from crossward.foreign import MAX_NAME, ForeignError, printable
from crossward.hospitals.federation_state import (
    Activity,
    FederationState,
    Phase,
    state_from,
    state_words,
    waited_for,
)
from crossward.hospitals.federation_terms import EVENT_LOG
from crossward.hospitals.text_tail import TextTail
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import FAILURE, FEDERATION_STATE, TERMS

METRICS_FILE = "metrics.jsonl"
BROKEN = "broken"  # its files are damaged
ENDED = ("finished", "failed", "stopped", BROKEN)
REMINDER = 30.0  # seconds after which people are reminded of whom a run waits for
LOST_REMINDER = 5.0  # the same while a site is away, for those who want to see every change
SILENT_EVENTS = ("log",)  # for programs


def run_status(run: Path) -> str:
    """ "waiting" for sites, "running", or one of ENDED."""
    if not (run / "run.json").exists():
        return "failed" if (run / FAILURE).exists() else "waiting"
    try:
        return printable(RunDir(run).about.get("status", BROKEN), MAX_NAME)
    except StorageError:
        return BROKEN


def failure_reason(run: Path) -> str:
    """Why a run failed, in one line; empty if it did not, or does not say."""
    rundir = RunDir(run)
    if run_status(run) not in ("failed", BROKEN):
        return ""
    try:
        document = rundir.about if rundir.described else rundir.read(FAILURE)
    except StorageError as error:
        return printable(error.what)
    return printable(document.get("error", ""))


def read_state(run: Path) -> FederationState | None:
    """What the coordinator knew last of the sites of a run; None if it has not written that yet. A file that is not as
    a coordinator writes it is an error."""
    file = run / FEDERATION_STATE
    if not file.exists():
        return None
    try:
        return state_from(RunDir(run).read(FEDERATION_STATE))
    except ForeignError as error:
        raise StorageError(f"{file} is damaged: {error}") from None


@dataclass
class RunFollower:
    """The lines that people should see of a run since the last look."""

    run: Path
    every_change: bool = False  # a line also when a site begins or ends a step
    clock: Callable[[], float] = time.time
    _events: TextTail = field(init=False, repr=False)
    _rounds: TextTail = field(init=False, repr=False)
    _round: int = field(default=0, init=False)  # the last that was reported
    _told: tuple[Any, ...] = field(default=(), init=False)  # what the last line about the state was about
    _told_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._events = TextTail(self.run / EVENT_LOG)
        self._rounds = TextTail(self.run / METRICS_FILE)

    def skip(self) -> None:
        """Leave out what has happened so far; rounds that run again after a crash have been seen, too."""
        self._events.skip()
        while lines := self._rounds.new_lines():
            self._round = max([self._round, *(metrics["round"] for metrics in _documents(lines))])

    def news(self) -> list[str]:
        events = _documents(self._events.new_lines())
        lines = [event_line(event) for event in events if event.get("event") not in SILENT_EVENTS]
        for metrics in _documents(self._rounds.new_lines()):
            if metrics["round"] > self._round:
                self._round = metrics["round"]
                lines.append(round_line(metrics))
        if lines:
            self._told_at = self.clock()
        return [*lines, *self._state_lines()]

    def _state_lines(self) -> list[str]:
        """Whom the run waits for, if that has changed, or if people have not seen a line for a while."""
        state = read_state(self.run)
        if state is None or state.phase not in (Phase.GATHERING, Phase.ROUNDS) or not waited_for(state):
            return []
        now = self.clock()
        about = (state.phase, state.round, *((name, site.activity) for name, site in state.sites.items()))
        is_lost = any(site.activity == Activity.LOST for site in state.sites.values())
        reminder = LOST_REMINDER if self.every_change and is_lost else REMINDER
        is_news = about != self._told and (self.every_change or state.phase == Phase.GATHERING)
        if not is_news and now - self._told_at < reminder:
            return []
        self._told, self._told_at = about, now
        return [state_words(state, now)]


class RunsFollower:
    """The lines that people should see of all runs of a coordinator since the last look, each with the run's name."""

    def __init__(self, coordinator: Path, *, every_change: bool = False) -> None:
        self.coordinator = coordinator
        self.every_change = every_change
        self._ended: set[str] = set()
        self._followers: dict[str, RunFollower] = {}
        for run in federation_runs(coordinator):
            if run_status(run) in ENDED:
                self._ended.add(run.name)
            else:
                self._follower(run).skip()

    def news(self) -> Iterator[str]:
        for run in federation_runs(self.coordinator):
            if run.name in self._ended:
                continue
            status = run_status(run)
            try:
                yield from [f"{run.name}: {line}" for line in self._follower(run).news()]
            except StorageError as error:  # one damaged run keeps nobody from seeing the others
                yield f"{run.name}: {printable(error.what)}"
                self._ended.add(run.name)
            if status in ENDED:
                self._ended.add(run.name)

    def _follower(self, run: Path) -> RunFollower:
        return self._followers.setdefault(run.name, RunFollower(run, self.every_change))


def federation_runs(coordinator: Path) -> list[Path]:
    """The directories of a coordinator's runs."""
    return [file.parent for file in sorted((coordinator / "runs").glob(f"*/{TERMS}"))]


def _documents(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of lines; what is damaged is left out."""
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            yield document


def round_line(metrics: dict[str, Any]) -> str:
    """A round that is done."""
    clients = len(metrics["clients"])
    parts = [f"round {metrics['round']}: {clients - len(metrics['failures'])} of {clients} sites"]
    means = (metrics["metrics"] or {}).get("val", {}).get("local", {}).get("mean", {})
    parts += [f"{name} {means[name]:.3f}" for name in ("f1", "dice") if isinstance(means.get(name), float)]
    return f"{', '.join(parts)}, {metrics['seconds']:.1f} s"


def event_line(event: dict[str, Any]) -> str:
    line = str(event.get("event", "event"))
    if "site" in event:
        line += f" {event['site']}"
        if "round" in event:
            line += f", round {event['round']}"
    if "why" in event:
        line += f": {event['why']}"
    return printable(line)
