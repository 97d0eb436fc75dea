"""`crossward federation status`: whether the coordinator is up, which sites are connected, and how each run stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from crossward.errors import StorageError
from crossward.foreign import printable
from crossward.hospitals.federation_state import state_words
from crossward.hospitals.federation_terms import EVENT_LOG
from crossward.hospitals.flower.coordinator_up import NOT_UP, is_up, list_supernodes, open_workspace
from crossward.hospitals.flower.node_registry import INSECURE_FILE, read_registry
from crossward.hospitals.flower.processes import FlowerWorkspace
from crossward.hospitals.kit import CoordinatorKit, read_coordinator
from crossward.hospitals.run_following import (
    ENDED,
    METRICS_FILE,
    RunsFollower,
    event_line,
    failure_reason,
    federation_runs,
    read_state,
    run_status,
)
from crossward.hospitals.site_activity import size_words
from crossward.runs.run_directory import RunDir

FOLLOW_INTERVAL = 1.0  # seconds between two looks at the runs
FAULTS = ("fault", "refused")


def federation_status(coordinator: Path) -> dict[str, Any]:
    """Which sites are connected, and the status of every run, as JSON."""
    kit = read_coordinator(coordinator)
    workspace = open_workspace(kit)
    up = is_up(workspace)
    online, connected = _connected(kit, workspace) if up else (None, None)
    runs = [_describe_run(run, up) for run in federation_runs(coordinator)]
    return {
        "federation": kit.name,
        "sites": list(kit.sites),
        "up": up,
        "online": online,
        "connected": connected,
        "runs": runs,
    }


def status_lines(overview: dict[str, Any], folder: Path) -> Iterator[str]:
    """The status for people."""
    sites = overview["sites"]
    if not overview["up"]:
        words = f", {NOT_UP}: `crossward coordinator up {folder}` starts it"
    elif overview["connected"] is None:
        words = f", the coordinator is up, {overview['online']} connected"
    else:
        missing = [name for name in sites if name not in overview["connected"]]
        words = ", the coordinator is up"
        words += f"; connected: {', '.join(overview['connected'])}" if overview["connected"] else ""
        words += f"; not connected: {', '.join(missing)}" if missing else ""
    yield f"{overview['federation']}: {len(sites)} sites ({', '.join(sites)}){words}"
    for run in overview["runs"]:
        received = f", {size_words(run['bytes'])} received" if run["bytes"] else ""
        yield f"  {run['run']}: {run['status']}, {run['rounds']} rounds, {run['faults']} faults{received}"
        for detail in (run["reason"], run["now"], run["last_fault"] if run["last_fault"] != run["reason"] else ""):
            if detail:
                yield f"    {detail}"


def follow_federation(coordinator: Path, say: Callable[[str], None], sleep: Callable[[float], None]) -> None:
    """Say what happens in every run from now on: events, rounds, who does what. Does not return."""
    workspace = open_workspace(read_coordinator(coordinator))
    follower = RunsFollower(coordinator, every_change=True)
    was_up = True
    while True:
        up = is_up(workspace)
        if up != was_up:
            say("the coordinator is up again" if up else f"{NOT_UP}: its runs go on when it is started again")
            was_up = up
        for line in follower.news() if up else ():
            say(line)
        sleep(FOLLOW_INTERVAL)


def _connected(kit: CoordinatorKit, workspace: FlowerWorkspace) -> tuple[int, list[str] | None]:
    """How many nodes are connected, and which sites they are; None if nodes have no keys by which to tell."""
    online = {
        str(node.get("node-id", "")) for node in list_supernodes(workspace.run_flwr) if node.get("status") == "online"
    }
    if (workspace.home / INSECURE_FILE).exists():
        return len(online), None
    registry = read_registry(workspace.home)
    return len(online), [name for name in kit.sites if name in registry and registry[name].node in online]


def _describe_run(run: Path, up: bool) -> dict[str, Any]:
    rundir = RunDir(run)
    rounds = _lines(rundir, METRICS_FILE)
    faults = [event for event in _lines(rundir, EVENT_LOG) if event["event"] in FAULTS]
    status = run_status(run)
    return {
        "run": run.name,
        "status": status,
        "rounds": len(rounds),
        "last": rounds[-1] if rounds else None,
        "faults": len(faults),
        "last_fault": event_line(faults[-1]) if faults else "",
        "reason": failure_reason(run),
        "now": "" if status in ENDED else _now(run, up),
        "bytes": _received(run),
    }


def _received(run: Path) -> int:
    """Bytes that came from the sites, as far as the coordinator has written it down."""
    with suppress(StorageError):
        state = read_state(run)
        return state.bytes if state is not None else 0
    return 0


def _now(run: Path, up: bool) -> str:
    """What a run that has not ended does at the moment."""
    try:
        state = read_state(run)
    except StorageError as error:
        return printable(error.what)
    if state is None:
        return "" if up else f"it goes on when the coordinator is started again; {NOT_UP}"
    if up:
        return state_words(state, time.time())
    return f"{NOT_UP}; {time.time() - state.written:.0f} s ago: {state_words(state, state.written)}"


def _lines(rundir: RunDir, name: str) -> list[dict[str, Any]]:
    try:
        return rundir.lines(name)
    except StorageError:  # the file is not there yet
        return []
