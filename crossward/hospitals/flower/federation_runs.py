"""`crossward federation run`, `status` and `stop`: runs across hospitals, from the coordinator's folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossward.config.reading import method_of, plugins_of, read_config
from crossward.errors import ConfigError, RunError
from crossward.hospitals.build import SOURCES_WITH_CLASS_NAMES, check_allowed_nets, refuse_pooled_method
from crossward.hospitals.federation_terms import EVENT_LOG, FederationTerms, create_run_directory, new_run_id
from crossward.hospitals.flower.coordinator_up import (
    FLOWER_RUN_FILE,
    NOT_UP,
    SUPERLINK_LOG,
    is_up,
    open_workspace,
    submit_run,
)
from crossward.hospitals.flower.processes import SUPERLINK_NAME, FlowerWorkspace
from crossward.hospitals.flower.run_register import enter_run
from crossward.hospitals.kit import read_coordinator
from crossward.hospitals.kit_files import FEDERATION_FILE
from crossward.hospitals.run_following import ENDED, RunFollower, federation_runs, read_state, run_status
from crossward.names import nearest, require_plain_name
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import FAILURE, TERMS
from crossward.runs.secure_runs import with_secure_sums

POLL_INTERVAL = 0.5  # seconds between two looks at a run's files
UP_INTERVAL = 5.0  # seconds between two looks at whether the coordinator is up
BEGIN_TIMEOUT = 90.0  # seconds after which a coordinator that is up should have begun with a run
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
    config = read_config(file, overrides, (lambda document: document) if options.own_data else with_images_at_sites)
    plugins_of(config)
    refuse_pooled_method(method_of(config), config.method.name)
    with_secure_sums(config, method_of(config), kit.sites, across_hospitals=True)
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
        authority=kit.ca.read_text(encoding="ascii"),
    )
    check_allowed_nets(config.canonical(), list(kit.net), FEDERATION_FILE)
    workspace = open_workspace(kit)
    if not is_up(workspace):
        raise RunError(
            f"{NOT_UP}, and nothing was started", hint=f"`crossward coordinator up {coordinator}` starts it."
        )
    rundir = create_run_directory(folder, config, terms)
    try:
        enter_run(workspace.home, folder)
        submit_run(workspace, folder)
    except BaseException as error:  # a run that was refused must not come back when the coordinator is started again
        rundir.fail(f"it was not started: {error}" if str(error) else "it was not started")
        raise
    return folder


def with_images_at_sites(document: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run whose images are at the sites: [data] needs no source, and no path of images."""
    data = document.get("data", {})
    if not isinstance(data, dict):
        return document
    names_no_images = data.get("source") in SOURCES_WITH_CLASS_NAMES and "path" not in data
    if "source" in data and not names_no_images:
        return document
    return document | {"data": data | {"source": "hospitals"}}


def follow_run(run: Path, say: Say) -> None:
    """Report events, rounds and whom the run waits for as it happens, until the run ends; raises if it does not
    finish."""
    rundir = RunDir(run)
    follower = RunFollower(run)
    coordinator = _CoordinatorWatch(run, FlowerWorkspace(run.absolute().parents[1]), say)
    while (status := run_status(run)) not in ENDED:
        for line in follower.news():
            say(line)
        coordinator.look()
        time.sleep(POLL_INTERVAL)
    for line in follower.news():
        say(line)
    if status != "finished":
        document = rundir.about if rundir.described else rundir.read(FAILURE)
        error_lines = str(document.get("error", "")).splitlines()
        raise RunError(f"{run} {status}", details=error_lines, hint=f"{run / EVENT_LOG} has more.")


@dataclass
class _CoordinatorWatch:
    """Says when the coordinator goes down, comes back, or does not begin, while somebody follows a run."""

    run: Path
    workspace: FlowerWorkspace
    say: Say
    _begin_by: float = field(default_factory=lambda: time.monotonic() + BEGIN_TIMEOUT)
    _next_look: float = 0.0
    _was_up: bool = True

    def look(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + UP_INTERVAL
        up = is_up(self.workspace)
        if up != self._was_up:
            self.say("the coordinator is up again" if up else f"{NOT_UP}: the run goes on when it is started again")
            self._was_up = up
        if up and now > self._begin_by and read_state(self.run) is None:
            self.say(f"the coordinator has not begun with the run: {self.workspace.folder / SUPERLINK_LOG} may say why")
            self._begin_by = math.inf


def stop_run(coordinator: Path, name: str, *, insecure: bool) -> Path:
    """End a run for good; what it has computed stays."""
    run = find_run(coordinator, name)
    status = run_status(run)
    if status in ENDED:
        raise ConfigError(f"{name} has ended already: it is {status}")
    rundir = RunDir(run)
    workspace = open_workspace(read_coordinator(coordinator))
    if (run / FLOWER_RUN_FILE).exists() and is_up(workspace):  # a coordinator that is down does not resume it
        workspace.run_flwr("stop", rundir.read(FLOWER_RUN_FILE)["run"], SUPERLINK_NAME)
    if rundir.described:
        rundir.mark("stopped")
    else:
        rundir.fail("stopped before its first round")
    return run


def find_run(coordinator: Path, name: str) -> Path:
    """The directory of a run of this coordinator."""
    runs = coordinator / "runs"
    if not (runs / name / TERMS).is_file():
        known = [run.name for run in federation_runs(coordinator)]
        raise ConfigError(f"there is no run {name!r} in {runs}", hint=nearest(name, known) if known else "")
    return runs / name


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
