"""`crossward site up`: a hospital's worker, fork server and SuperNode, supervised until they are stopped."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from crossward.errors import RunError
from crossward.hospitals.certificates import expiry_warnings, write_tls_key
from crossward.hospitals.flower.client_forkserver import FORKSERVER_VARIABLE
from crossward.hospitals.flower.connections import (
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    SOCKET_VARIABLE,
    require_loopback,
)
from crossward.hospitals.flower.processes import (
    FlowerWorkspace,
    check_reachable,
    split_address,
    stop_process,
    wait_for_coordinator,
)
from crossward.hospitals.kit import SiteKit, read_site
from crossward.hospitals.messages import socket_address
from crossward.hospitals.site_activity import ACTIVITY_FILE
from crossward.hospitals.site_worker import is_listening
from crossward.hospitals.text_tail import TextTail

TLS_KEY_FILE = "tls.key"  # the site's key as OpenSSL reads it, as long as the site is up
WORKER = "worker"
FORKSERVER = "forks"
SUPERNODE = "supernode"
WORKER_START_TIMEOUT = 120.0  # seconds: a worker imports torch
REFUSED_EXIT = "Exit Code: 305"  # printed by a SuperNode whose key is unknown, or is that of one still connected
DISCONNECTED_LINE = "Connection attempt failed"  # in a SuperNode's log
CONNECTED_LINE = "Connection successful"
SUPERNODE_BANNER = "Starting Flower SuperNode"
UP_FILE = "up"  # holds the fingerprint of this site's key, from its start to its orderly end
RESTART_DELAY = 3.0  # seconds
REFUSED_AFTER_CRASH = 300.0  # seconds after which a coordinator has surely noticed that a site crashed
LAST_LINES = 40  # of a log that show how a process ended
Say = Callable[[str], None]


@contextmanager
def running_site(
    folder: Path, settings: Mapping[str, Any], *, insecure: bool, say: Say
) -> Iterator[Callable[[], None]]:
    """Run the site for the duration of the block. Yields a check, which restarts processes that ended, and raises when
    the site cannot go on."""
    kit = read_site(folder)
    for warning in expiry_warnings(kit.certificate):
        say(warning)
    if insecure:
        require_loopback(split_address(kit.address)[0])
    workspace = FlowerWorkspace(kit.folder.absolute())
    with tempfile.TemporaryDirectory(prefix="crossward-") as sockets:  # mode 0700; the path of a socket must be short
        tls_key = write_tls_key(kit.key, Path(sockets) / TLS_KEY_FILE)
        check = partial(check_reachable, kit.address, None if insecure else kit.ca, kit.certificate, tls_key)
        wait_for_coordinator(check, kit.address, say)
        processes = SiteProcesses(kit, workspace, Path(sockets), settings, insecure=insecure, say=say)
        try:
            processes.start()
            yield processes.check
        finally:
            processes.stop()


class SiteProcesses:
    """The processes of a site. Each writes its log, such as worker.log, into the site's folder."""

    def __init__(
        self,
        kit: SiteKit,
        workspace: FlowerWorkspace,
        sockets: Path,
        settings: Mapping[str, Any],
        *,
        insecure: bool,
        say: Say,
    ) -> None:
        self.kit = kit
        self.workspace = workspace
        self.say = say
        self.worker_socket = Path(socket_address(sockets / "worker"))
        forkserver_socket = sockets / "forks"
        modules = {
            WORKER: [
                "crossward.hospitals.site_worker",
                str(workspace.folder),
                str(self.worker_socket),
                json.dumps(settings),
            ],
            FORKSERVER: ["crossward.hospitals.flower.client_forkserver", str(forkserver_socket)],
            SUPERNODE: [
                "crossward.hospitals.flower.supernode",
                *_supernode_options(kit, self.worker_socket, insecure),
            ],
        }
        self._commands = {name: [sys.executable, "-m", *words] for name, words in modules.items()}
        self._variables = {
            FORKSERVER_VARIABLE: str(forkserver_socket),
            SOCKET_VARIABLE: socket_address(sockets / "runtime"),
            CERTIFICATE_VARIABLE: str(kit.certificate.absolute()),
            KEY_VARIABLE: str(sockets / TLS_KEY_FILE),
            "OMP_NUM_THREADS": "1",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._crashed = mark_up(workspace, kit)
        self._start_time = time.monotonic()
        self._was_refused = False
        self._activity = TextTail(workspace.folder / ACTIVITY_FILE)
        self._supernode_log = TextTail(workspace.folder / f"{SUPERNODE}.log")
        for tail in (self._activity, self._supernode_log):
            tail.skip()
        self._is_connected = True

    def start(self) -> None:
        self._start(WORKER)
        self._start(FORKSERVER)
        self._wait_for_worker()
        self._start(SUPERNODE)

    def check(self) -> None:
        """Restart processes that have ended; raises if the SuperNode ended for good."""
        self.workspace.bound_logs([*(f"{name}.log" for name in self._processes), ACTIVITY_FILE])
        for line in self._activity.new_lines():
            self.say(line)
        self._say_connection()
        exit_code = self._processes[SUPERNODE].poll()
        if exit_code is not None:
            self._restart_supernode(exit_code)
        for name in (WORKER, FORKSERVER):
            exit_code = self._processes[name].poll()
            if exit_code is not None:
                self.say(f"its process {name} ended ({exit_code}) and is started again: {name}.log may say why")
                self._start(name)

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            stop_process(process)
        (self.workspace.folder / UP_FILE).unlink(missing_ok=True)

    def _say_connection(self) -> None:
        """Say when the coordinator stops answering, and when it answers again."""
        for line in self._supernode_log.new_lines():
            is_lost = DISCONNECTED_LINE in line
            if is_lost == self._is_connected and (is_lost or CONNECTED_LINE in line):
                self._is_connected = not is_lost
                stamp = time.strftime("%H:%M:%S")
                words = "does not answer: this site tries again" if is_lost else "answers again"
                self.say(f"{stamp} the coordinator at {self.kit.address} {words}")

    def _start(self, name: str) -> None:
        self._processes[name] = self.workspace.start_process(self._commands[name], f"{name}.log", self._variables)

    def _wait_for_worker(self) -> None:
        end = time.monotonic() + WORKER_START_TIMEOUT
        while not is_listening(self.worker_socket):
            if self._processes[WORKER].poll() is not None or time.monotonic() > end:
                lines = self.workspace.log_lines("worker.log")
                raise RunError(
                    "the site's worker did not start", details=lines[-6:], hint="worker.log has the whole of it."
                )
            time.sleep(0.1)

    def _restart_supernode(self, exit_code: int) -> None:
        """Restart the SuperNode if the coordinator refused it and may not have noticed yet that this site crashed."""
        is_early = time.monotonic() < self._start_time + REFUSED_AFTER_CRASH
        if not (self._crashed and is_early and supernode_was_refused(self.workspace)):
            raise RunError(supernode_end_message(exit_code, self.kit, self.workspace))
        if not self._was_refused:
            self.say("refused: the coordinator may not have noticed that this site crashed; trying again")
            self._was_refused = True
        time.sleep(RESTART_DELAY)
        self._start(SUPERNODE)


def _supernode_options(kit: SiteKit, worker_socket: Path, insecure: bool) -> list[str]:
    options = ["--superlink", kit.address]
    if insecure:
        options += ["--insecure"]
    else:
        options += ["--root-certificates", str(kit.ca.absolute())]
        options += ["--auth-supernode-private-key", str(kit.key.absolute())]
    options += ["--node-config", f"socket={json.dumps(str(worker_socket))}"]
    return options


def mark_up(workspace: FlowerWorkspace, kit: SiteKit) -> bool:
    """Mark the site as up; whether it was marked already, with the same key: then it crashed before.

    The coordinator takes a minute or two to notice that a site crashed, and until then refuses it just as one whose key
    it does not know.
    """
    mark = workspace.folder / UP_FILE
    fingerprint = hashlib.sha256(kit.public_key.read_bytes()).hexdigest()
    previous = mark.read_text() if mark.exists() else ""
    mark.write_text(fingerprint)
    return previous == fingerprint


def supernode_was_refused(workspace: FlowerWorkspace) -> bool:
    """Whether the SuperNode ended because the coordinator refused it."""
    return any(REFUSED_EXIT in line for line in _last_supernode_lines(workspace))


def supernode_end_message(exit_code: int, kit: SiteKit, workspace: FlowerWorkspace) -> str:
    """Why the SuperNode ended, for people."""
    if supernode_was_refused(workspace):
        return (
            f"the coordinator at {kit.address} does not know this site's key, or {kit.name} is connected from "
            f"elsewhere, or the two clocks differ: is {kit.name}.pub in its folder sites, and was it started since?"
        )
    lines = [f"  {line}" for line in _last_supernode_lines(workspace)[-6:]]
    return "\n".join([f"the SuperNode ended ({exit_code}); supernode.log says:", *lines])


def _last_supernode_lines(workspace: FlowerWorkspace) -> list[str]:
    """The last lines of supernode.log, of the SuperNode's last start only."""
    lines = workspace.log_lines("supernode.log")
    starts = [number for number, line in enumerate(lines) if SUPERNODE_BANNER in line]
    return lines[starts[-1] if starts else 0 :][-LAST_LINES:]
