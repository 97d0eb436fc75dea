"""`crossward federation run`, `status` and `stop`: runs across hospitals, from the coordinator's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossward.config.reading import method_of, plugins_of, read_config
from crossward.errors import ConfigError, RunError, StorageError
from crossward.hospitals.build import check_allowed_nets, refuse_pooled_method
from crossward.hospitals.federation_terms import EVENT_LOG, FederationTerms, create_run_directory, new_run_id
from crossward.hospitals.flower.coordinator_up import (
    ENDED,
    FLOWER_RUN_FILE,
    list_supernodes,
    open_workspace,
    run_status,
    submit_run,
)
from crossward.hospitals.flower.processes import SUPERLINK_NAME
from crossward.hospitals.flower.run_register import enter_run
from crossward.hospitals.kit import read_coordinator
from crossward.hospitals.kit_files import FEDERATION_FILE
from crossward.names import nearest, require_plain_name
from crossward.runs.run_directory import TERMS, RunDir

POLL_INTERVAL = 0.5  # seconds between two looks at a run's files
METRICS_FILE = "metrics.jsonl"
Say = Callable[[str], None]


@dataclass(frozen=True)
class RunOptions:
    """The options of `federation run`."""

    name: str | None = None
    deadline: float = 3600.0
    patience: float = 120.0
    wait: float = 600.0
    least: int | None = None  # None: all sites
    own_data: bool = False
    public: Path | None = None
    insecure: bool = False


def start_run(file: Path, coordinator: Path, overrides: Sequence[str], options: RunOptions) -> Path:
    """Create the directory of a run and have Flower start it. Mistakes that can be found before are refused."""
    kit = read_coordinator(coordinator)
    config = read_config(file, overrides)
    plugins_of(config)
    refuse_pooled_method(method_of(config), config.method.name)
    least = len(kit.sites) if options.least is None else options.least
    if not 1 <= least <= len(kit.sites):
        raise ConfigError(f"--least {least}: there are {len(kit.sites)} sites")
    default_name = f"{config.method.name.replace('+', '-')}-s{config.run.seed}"
    folder = _new_run_folder(kit.folder / "runs", options.name, default_name)
    if options.public is not None and not options.public.exists():
        raise ConfigError(f"--public {options.public}: there is no such folder or archive")
    terms = FederationTerms(
        id=new_run_id(),
        federation=kit.name,
        sites=kit.sites,
        deadline=options.deadline,
        patience=options.patience,
        wait=options.wait,
        least=least,
        own_data=options.own_data,
        public=str(options.public.absolute()) if options.public else "",
    )
    check_allowed_nets(config.canonical(), list(kit.net), FEDERATION_FILE)
    workspace = open_workspace(kit)
    create_run_directory(folder, config, terms)
    enter_run(workspace.home, folder)
    submit_run(workspace, folder)
    return folder


def follow_run(run: Path, say: Say) -> None:
    """Report events and rounds as they happen, until the run ends; raises if it does not finish."""
    rundir = RunDir(run)
    reported_events = 0
    reported_rounds = 0
    while True:
        status = run_status(run)
        for event in _lines(rundir, EVENT_LOG)[reported_events:]:
            reported_events += 1
            say(_event_line(event))
        for metrics in _lines(rundir, METRICS_FILE)[reported_rounds:]:
            reported_rounds += 1
            say(_round_line(metrics))
        if status in ENDED:
            break
        time.sleep(POLL_INTERVAL)
    if status != "finished":
        document = rundir.about if (run / "run.json").exists() else rundir.read("failed.json")
        error_lines = str(document.get("error", "")).splitlines()
        raise RunError(f"{run} {status}", details=error_lines, hint=f"{run / EVENT_LOG} has more.")


def stop_run(coordinator: Path, name: str, *, insecure: bool) -> Path:
    """End a run for good; what it has computed stays."""
    run = find_run(coordinator, name)
    status = run_status(run)
    if status in ENDED:
        raise ConfigError(f"{name} has ended already: it is {status}")
    rundir = RunDir(run)
    if (run / FLOWER_RUN_FILE).exists():
        workspace = open_workspace(read_coordinator(coordinator))
        workspace.run_flwr("stop", rundir.read(FLOWER_RUN_FILE)["run"], SUPERLINK_NAME)
    if (run / "run.json").exists():
        rundir.mark("stopped")
    else:
        rundir.write("failed.json", {"error": "stopped before its first round"})
    return run


def find_run(coordinator: Path, name: str) -> Path:
    """The directory of a run of this coordinator."""
    runs = coordinator / "runs"
    if not (runs / name / TERMS).is_file():
        known = [file.parent.name for file in sorted(runs.glob(f"*/{TERMS}"))]
        raise ConfigError(f"there is no run {name!r} in {runs}", hint=nearest(name, known) if known else "")
    return runs / name


def federation_status(coordinator: Path, *, insecure: bool) -> dict[str, Any]:
    """How many sites are connected, and the status of every run, as JSON."""
    kit = read_coordinator(coordinator)
    online: int | None = None
    with suppress(RunError):  # the coordinator is not up
        supernodes = list_supernodes(open_workspace(kit))
        online = sum(node.get("status") == "online" for node in supernodes)
    runs = [_describe_run(file.parent) for file in sorted((coordinator / "runs").glob(f"*/{TERMS}"))]
    return {"federation": kit.name, "sites": list(kit.sites), "online": online, "runs": runs}


def _describe_run(run: Path) -> dict[str, Any]:
    rundir = RunDir(run)
    rounds = _lines(rundir, METRICS_FILE)
    faults = [event for event in _lines(rundir, EVENT_LOG) if event["event"] in ("fault", "refused")]
    return {
        "run": run.name,
        "status": run_status(run),
        "rounds": len(rounds),
        "last": rounds[-1] if rounds else None,
        "faults": len(faults),
        "last_fault": _event_line(faults[-1]) if faults else "",
    }


def _round_line(metrics: dict[str, Any]) -> str:
    clients = len(metrics["clients"])
    parts = [f"round {metrics['round']}: {clients - len(metrics['failures'])} of {clients} sites"]
    means = (metrics["metrics"] or {}).get("val", {}).get("local", {}).get("mean", {})
    parts += [f"{name} {means[name]:.3f}" for name in ("f1", "dice") if isinstance(means.get(name), float)]
    return f"{', '.join(parts)}, {metrics['seconds']:.1f} s"


def _event_line(event: dict[str, Any]) -> str:
    line = str(event["event"])
    if "site" in event:
        line += f" {event['site']}"
        if "round" in event:
            line += f", round {event['round']}"
    if "why" in event:
        line += f": {event['why']}"
    return line


def _lines(rundir: RunDir, name: str) -> list[dict[str, Any]]:
    try:
        return rundir.lines(name)
    except StorageError:  # the file is not there yet
        return []


def _new_run_folder(runs: Path, name: str | None, default_name: str) -> Path:
    """The folder of a new run: with a name that was chosen, which must be free, or with the default and a number."""
    if name:
        folder = runs / require_plain_name(name, "a run")
        if folder.exists():
            raise ConfigError(f"there is a run {name} already in {runs}", hint="Give another --name.")
        return folder
    stem = require_plain_name(default_name, "a run")
    number = 1
    while (runs / f"{stem}-{number}").exists():
        number += 1
    return runs / f"{stem}-{number}"
