"""`crossward federation run`, `status` and `stop`: runs across hospitals, from the coordinator's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossward.config.reading import method_of, plugins_of, read
from crossward.errors import ConfigError, RunError, StorageError
from crossward.hospitals.build import refuse_pooled
from crossward.hospitals.flower.coordinator import LOG, Terms, founded, new_id
from crossward.hospitals.flower.coordinator_up import ENDED, FLOWER, at, nodes, status, submit
from crossward.hospitals.flower.processes import LINK
from crossward.hospitals.kit import read_coordinator
from crossward.names import nearest, plain
from crossward.runs.run_directory import TERMS, RunDir

LOOK = 0.5  # seconds
Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """How `federation run` was called."""

    name: str | None = None
    deadline: float = 3600.0
    patience: float = 120.0
    wait: float = 600.0
    least: int | None = None  # None: all sites
    own_data: bool = False
    public: Path | None = None
    insecure: bool = False


def begin(file: Path, coordinator: Path, sets: Sequence[str], asked: Asked) -> Path:
    """Write a run down and have Flower start it; what can be known to be wrong is refused before."""
    kit = read_coordinator(coordinator)
    config = read(file, sets)
    plugins_of(config)
    refuse_pooled(method_of(config), config.method.name)
    least = len(kit.sites) if asked.least is None else asked.least
    if not 1 <= least <= len(kit.sites):
        raise ConfigError(f"--least {least}: there are {len(kit.sites)} sites")
    stem = asked.name or f"{config.method.name.replace('+', '-')}-s{config.run.seed}"
    folder = _free(kit.folder / "runs", plain(stem, "a run"), given=asked.name is not None)
    if asked.public is not None and not asked.public.exists():
        raise ConfigError(f"--public {asked.public}: there is no such folder or archive")
    public = str(asked.public.absolute()) if asked.public else ""
    settings = (asked.deadline, asked.patience, asked.wait, least, asked.own_data, public)
    founded(folder, config, Terms(new_id(), kit.name, kit.sites, *settings))
    submit(at(kit, insecure=asked.insecure), folder)
    return folder


def follow(run: Path, say: Say) -> None:
    """Tell of each round as it ends, until the run does."""
    rundir, told, heard = RunDir(run), 0, 0
    while True:
        now = status(run)
        for event in _lines(rundir, LOG)[heard:]:
            heard += 1
            say(_event(event))
        for line in _lines(rundir, "metrics.jsonl")[told:]:
            told += 1
            say(_round(line))
        if now in ENDED:
            break
        time.sleep(LOOK)
    if now != "finished":
        about = rundir.about if (run / "run.json").exists() else rundir.read("failed.json")
        raise RunError(f"{run} {now}", details=str(about.get("error", "")).splitlines(), hint=f"{run / LOG} has more.")


def stop(coordinator: Path, name: str, *, insecure: bool) -> Path:
    """End a run for good; what it has computed stays."""
    run = found(coordinator, name)
    if status(run) in ENDED:
        raise ConfigError(f"{name} has ended already: it is {status(run)}")
    if (run / FLOWER).exists():
        place = at(read_coordinator(coordinator), insecure=insecure)
        place.flwr("stop", RunDir(run).read(FLOWER)["run"], LINK)
    rundir = RunDir(run)
    if (run / "run.json").exists():
        rundir.mark("stopped")
    else:
        rundir.write("failed.json", {"error": "stopped before its first round"})
    return run


def found(coordinator: Path, name: str) -> Path:
    runs = coordinator / "runs"
    if not (runs / name / TERMS).is_file():
        known = [file.parent.name for file in sorted(runs.glob(f"*/{TERMS}"))]
        raise ConfigError(f"there is no run {name!r} in {runs}", hint=nearest(name, known) if known else "")
    return runs / name


def overview(coordinator: Path, *, insecure: bool) -> dict[str, Any]:
    """Who is connected, and how every run stands."""
    kit = read_coordinator(coordinator)
    try:
        known = nodes(at(kit, insecure=insecure))
        online: int | None = sum(node.get("status") == "online" for node in known)
    except RunError:
        online = None  # the coordinator is not up
    runs = [_overview(file.parent) for file in sorted((coordinator / "runs").glob(f"*/{TERMS}"))]
    return {"federation": kit.name, "sites": list(kit.sites), "online": online, "runs": runs}


def _overview(run: Path) -> dict[str, Any]:
    rundir = RunDir(run)
    rounds, events = _lines(rundir, "metrics.jsonl"), _lines(rundir, LOG)
    faults = [event for event in events if event["event"] in ("fault", "refused")]
    return {
        "run": run.name,
        "status": status(run),
        "rounds": len(rounds),
        "last": rounds[-1] if rounds else None,
        "faults": len(faults),
        "last_fault": _event(faults[-1]) if faults else "",
    }


def _round(line: dict[str, Any]) -> str:
    words = [f"round {line['round']}: {len(line['clients']) - len(line['failures'])} of {len(line['clients'])} sites"]
    means = (line["metrics"] or {}).get("val", {}).get("local", {}).get("mean", {})
    words += [f"{name} {means[name]:.3f}" for name in ("f1", "dice") if isinstance(means.get(name), float)]
    return f"{', '.join(words)}, {line['seconds']:.1f} s"


def _event(event: dict[str, Any]) -> str:
    where = f", round {event['round']}" if "round" in event else ""
    site = f" {event['site']}{where}" if "site" in event else ""
    return f"{event['event']}{site}{': ' + event['why'] if 'why' in event else ''}"


def _lines(rundir: RunDir, name: str) -> list[dict[str, Any]]:
    try:
        return rundir.lines(name)
    except StorageError:  # it is not there yet
        return []


def _free(runs: Path, stem: str, *, given: bool) -> Path:
    if given:
        if (runs / stem).exists():
            raise ConfigError(f"there is a run {stem} already in {runs}", hint="Give another --name.")
        return runs / stem
    number = 1
    while (runs / f"{stem}-{number}").exists():
        number += 1
    return runs / f"{stem}-{number}"
