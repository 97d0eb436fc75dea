"""`crossward coordinator up`: the SuperLink of a federation, with its sites' keys, supervised until it is stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossward.errors import RunError
from crossward.hospitals.certificates import expiry_warnings
from crossward.hospitals.flower.app_bundle import write_bundle
from crossward.hospitals.flower.fleet_guard import MEGABYTE
from crossward.hospitals.flower.node_registry import (
    INSECURE_FILE,
    REGISTRY_FILE,
    RegisteredNode,
    read_registry,
    write_registry,
)
from crossward.hospitals.flower.processes import (
    SUPERLINK_NAME,
    FlowerWorkspace,
    RunFlwr,
    accepts_connections,
    check_port_free,
    stop_process,
    wait_until,
)
from crossward.hospitals.flower.run_register import is_registered
from crossward.hospitals.kit import CoordinatorKit, read_coordinator
from crossward.hospitals.run_following import ENDED, RunsFollower, federation_runs, run_status
from crossward.hospitals.site_worker import is_listening
from crossward.runs.run_directory import RunDir

NOT_UP = "the coordinator is not up"
FLOWER_RUN_FILE = "flower.json"  # in a run directory: the number that Flower gave the run
SUPERLINK_LOG = "superlink.log"
DOOR_FILE = "open"  # in FLWR_HOME, while the coordinator lets its sites in
LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"  # where the public door is: here without TLS and keys, else everywhere
NEW_RUN_INTERVAL = "0.5"  # seconds between two looks for a run to start
FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}  # for all threads: what one frees, another may use
Say = Callable[[str], None]


@contextmanager
def running_coordinator(folder: Path, *, insecure: bool, say: Say) -> Iterator[Callable[[], None]]:
    """Run the coordinator for the duration of the block. Yields a check, which raises when the SuperLink has ended."""
    kit = read_coordinator(folder)
    for warning in expiry_warnings(kit.certificate):
        say(warning)
    host = LOOPBACK if insecure else EVERYWHERE
    check_port_free(host, kit.port)
    workspace = open_workspace(kit)
    door = workspace.home / DOOR_FILE
    door.unlink(missing_ok=True)
    interrupted = unfinished_runs(folder)  # before anybody can start another
    if insecure:
        (workspace.home / INSECURE_FILE).touch()
    else:
        (workspace.home / INSECURE_FILE).unlink(missing_ok=True)
    if not _database(kit).exists():  # a new SuperLink knows no keys
        (workspace.home / REGISTRY_FILE).unlink(missing_ok=True)
    variables = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": NEW_RUN_INTERVAL, **FEW_ARENAS}
    superlink = workspace.start_process(_superlink_command(kit, workspace, host), SUPERLINK_LOG, variables)
    try:
        if not insecure:
            wait_until(lambda: is_listening(workspace.socket), superlink)
            with workspace.flwr_commands() as flwr:
                register_keys(kit, workspace, flwr, say)
                remove_unknown_nodes(workspace, flwr, say)
        door.touch()
        wait_until(lambda: accepts_connections(f"127.0.0.1:{kit.port}"), superlink)
        follower = RunsFollower(folder)
        resume_runs(interrupted, workspace, say)

        def check() -> None:
            workspace.bound_logs([SUPERLINK_LOG])
            for line in follower.news():
                say(line)
            exit_code = superlink.poll()
            if exit_code is not None:
                lines = workspace.log_lines(SUPERLINK_LOG)
                raise RunError(
                    f"the SuperLink ended ({exit_code})", details=lines[-6:], hint=f"{SUPERLINK_LOG} has it all."
                )

        yield check
    finally:
        stop_process(superlink)
        door.unlink(missing_ok=True)


def open_workspace(kit: CoordinatorKit) -> FlowerWorkspace:
    """The workspace of the coordinator, from which Flower's commands reach its SuperLink."""
    workspace = FlowerWorkspace(kit.folder.absolute())
    workspace.write_connection()
    return workspace


def resume_runs(runs: Sequence[Path], workspace: FlowerWorkspace, say: Say) -> None:
    """Go on with the runs that were interrupted, if the operator of this coordinator started them. One that Flower
    never accepted has ended: the person who asked for it saw an error."""
    for run in runs:
        if not is_registered(workspace.home, run):
            say(
                f"{run.name} was not started by this coordinator, or its terms or settings were changed: "
                "it is left alone"
            )
        elif not (run / FLOWER_RUN_FILE).exists():
            RunDir(run).fail("it was not started: the coordinator was not up, or went down at that moment")
            say(f"{run.name} was never started, and is not started now")
        else:
            say(f"going on with {run.name}")
            submit_run(workspace, run)


def submit_run(workspace: FlowerWorkspace, run: Path) -> None:
    """Have Flower start, or resume, the coordinator's part of a run."""
    bundle = write_bundle(workspace.home / "app")
    run_config = f"folder={json.dumps(str(run.absolute()))}"
    output = workspace.run_flwr("run", str(bundle), SUPERLINK_NAME, "--run-config", run_config, "--format", "json")
    answer = json.loads(output)
    if not answer.get("success", True) or "run-id" not in answer:
        raise RunError("Flower did not start the run", details=[json.dumps(answer)])
    RunDir(run).write(FLOWER_RUN_FILE, {"run": str(answer["run-id"])})


def unfinished_runs(folder: Path) -> list[Path]:
    """The runs of a coordinator that have not ended."""
    return [run for run in federation_runs(folder) if run_status(run) not in ENDED]


def is_up(workspace: FlowerWorkspace) -> bool:
    """Whether the coordinator of this folder is up, and has registered its sites' keys."""
    return (workspace.home / DOOR_FILE).exists() and is_listening(workspace.socket)


def list_supernodes(flwr: RunFlwr) -> list[dict[str, Any]]:
    """The SuperNodes that Flower knows."""
    answer = json.loads(flwr("supernode", "list", SUPERLINK_NAME, "--format", "json"))
    return list(answer.get("nodes", []))


def register_keys(kit: CoordinatorKit, workspace: FlowerWorkspace, flwr: RunFlwr, say: Say) -> None:
    """Register every site's key at the SuperLink, which remembers it. A key that was replaced, or whose site has left,
    is unregistered."""
    registry = read_registry(workspace.home)
    keys = {site: file.read_text() for site, file in kit.public_keys.items()}
    for site in [site for site, entry in registry.items() if keys.get(site) != entry.key]:
        flwr("supernode", "unregister", registry.pop(site).node, SUPERLINK_NAME)
        write_registry(workspace.home, registry)
        say(f"the former key of {site} is no longer accepted")
    for site in [site for site in keys if site not in registry]:
        key_file = str(kit.public_keys[site].absolute())
        output = flwr("supernode", "register", key_file, SUPERLINK_NAME, "--format", "json")
        registry[site] = RegisteredNode(keys[site], str(json.loads(output)["node-id"]))
        write_registry(workspace.home, registry)
        say(f"registered {site}")


def remove_unknown_nodes(workspace: FlowerWorkspace, flwr: RunFlwr, say: Say) -> None:
    """Unregister the nodes that the SuperLink knows and the coordinator did not register."""
    known = {entry.node for entry in read_registry(workspace.home).values()}
    for node in list_supernodes(flwr):
        number = str(node.get("node-id", ""))
        if number and number not in known:
            flwr("supernode", "unregister", number, SUPERLINK_NAME)
            say(f"removed the node {number}, which is of no site of this federation")


def _database(kit: CoordinatorKit) -> Path:
    return kit.folder.absolute() / "superlink.db"


def _superlink_command(kit: CoordinatorKit, workspace: FlowerWorkspace, host: str) -> list[str]:
    keys = {site: str(file.absolute()) for site, file in kit.public_keys.items()}
    command = [sys.executable, "-m", "crossward.hospitals.flower.superlink"]
    command += [str(workspace.socket), str(workspace.home / DOOR_FILE), json.dumps(keys)]
    command += [host, str(kit.port), str(kit.reply_megabytes * MEGABYTE)]
    command += ["--database", str(_database(kit))]
    if host == LOOPBACK:
        return [*command, "--insecure"]
    command += ["--ssl-ca-certfile", str(kit.ca.absolute())]
    command += ["--ssl-certfile", str(kit.certificate.absolute())]
    command += ["--ssl-keyfile", str(kit.key.absolute())]
    return [*command, "--enable-supernode-auth"]
