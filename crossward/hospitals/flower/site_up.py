"""`crossward site up`: a hospital's worker and SuperNode, supervised until they are stopped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from crossward.errors import RunError
from crossward.hospitals.certificates import expiry_warnings, write_tls_key
from crossward.hospitals.flower.app_processes import end_with_parent
from crossward.hospitals.flower.connections import CERTIFICATE_VARIABLE, KEY_VARIABLE, require_loopback
from crossward.hospitals.flower.processes import (
    FlowerWorkspace,
    Unreachable,
    check_reachable,
    split_address,
    stop_process,
    wait_for_coordinator,
)
from crossward.hospitals.kit import SiteKit, read_site
from crossward.hospitals.messages import socket_address
from crossward.hospitals.recoveries import NETWORK, SITE, SUPERNODE, WORKER, count_recovery
from crossward.hospitals.site_activity import ACTIVITY_FILE
from crossward.hospitals.site_worker import is_listening
from crossward.hospitals.text_tail import TextTail

TLS_KEY_FILE = "tls.key"  # the site's key as OpenSSL reads it, as long as the site is up
WORKER_START_TIMEOUT = 120.0  # seconds: a worker imports torch
REFUSED_EXIT = "Exit Code: 305"  # printed by a SuperNode whose key is unknown, or is that of one still connected
DISCONNECTED_LINE = "Connection attempt failed"  # in a SuperNode's log
CONNECTED_LINE = "Connection successful"
SUPERNODE_BANNER = "Starting Flower SuperNode"
SOCKETS_FILE = "sockets.txt"  # in FLWR_HOME: the folder of sockets of the last start
SOCKETS_PREFIX = "crossward-"
OWNER_FILE = "site"  # there: the folder of the site whose sockets these are
RESTART_DELAY = 3.0  # seconds
REFUSED_FOR = 300.0  # seconds after which a coordinator has surely noticed that a site, or its SuperNode, is gone
STEADY = 30.0  # seconds after which a SuperNode has started well
MAX_RESTARTS = 5  # of a SuperNode that does not get so far
LAST_LINES = 40  # of a log that show how a process ended
Say = Callable[[str], None]


def run_check(folder: Path, data: Path | None) -> int:
    """The exit code of `crossward site up FOLDER --check`, in a process of its own: it reads rules and images with
    torch, and the one that stays up does without, which saves a hundred megabytes."""
    command = [sys.executable, "-m", "crossward", "site", "up", str(folder), "--check"]
    if data is not None:
        command += ["--data", str(data)]
    return subprocess.run(command, preexec_fn=end_with_parent).returncode


@contextmanager
def running_site(
    folder: Path, settings: Mapping[str, Any], *, insecure: bool, say: Say
) -> Iterator[Callable[[], None]]:
    """Run the site for the duration of the block. Yields a check, which restarts processes that ended, and raises when
    the site cannot go on."""
    kit = read_site(folder, with_rules=False)  # `run_check` has looked into them, and the worker goes by them
    for warning in expiry_warnings(kit.certificate):
        say(warning)
    if insecure:
        require_loopback(split_address(kit.address)[0])
    workspace = FlowerWorkspace(kit.folder.absolute())
    with socket_folder(workspace) as sockets:
        tls_key = write_tls_key(kit.key, sockets / TLS_KEY_FILE)
        check = partial(check_reachable, kit.address, None if insecure else kit.ca, kit.certificate, tls_key)
        wait_for_coordinator(check, kit.address, say)
        count_recovery(workspace.folder, SITE)
        processes = SiteProcesses(kit, workspace, sockets, settings, insecure=insecure, say=say, check_known=check)
        try:
            processes.start()
            yield processes.check
        finally:
            processes.stop()


@contextmanager
def socket_folder(workspace: FlowerWorkspace) -> Iterator[Path]:
    """A folder for this site's sockets and its key, of mode 0700, as long as the block lasts. The path of a socket must
    be short, so that it is not in the site's own folder. One that a crash has left behind is deleted."""
    workspace.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = workspace.home / SOCKETS_FILE
    if note.exists():
        _delete_left_behind(Path(note.read_text()), workspace)
    with tempfile.TemporaryDirectory(prefix=SOCKETS_PREFIX) as folder:
        (Path(folder) / OWNER_FILE).write_text(str(workspace.folder))
        note.write_text(folder)
        yield Path(folder)
    note.unlink(missing_ok=True)


def _delete_left_behind(folder: Path, workspace: FlowerWorkspace) -> None:
    """Delete a folder of sockets, if it is one, is this user's and this site's, and no worker listens there."""
    if folder.parent != Path(tempfile.gettempdir()) or not folder.name.startswith(SOCKETS_PREFIX):
        return
    if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
        return
    owner = folder / OWNER_FILE
    is_own = owner.is_file() and owner.read_text() == str(workspace.folder)  # and not that of which it is a copy
    if is_own and not is_listening(folder / WORKER):
        shutil.rmtree(folder, ignore_errors=True)


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
        check_known: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_known` raises if the coordinator does not know this site's key, or cannot be reached."""
        self.check_known = check_known
        self.kit = kit
        self.workspace = workspace
        self.say = say
        self.worker_socket = Path(socket_address(sockets / WORKER))
        modules = {
            WORKER: [
                "crossward.hospitals.site_worker",
                str(workspace.folder),
                str(self.worker_socket),
                json.dumps(settings),
            ],
            SUPERNODE: [
                "crossward.hospitals.flower.supernode",
                *_supernode_options(kit, self.worker_socket, insecure),
            ],
        }
        self._commands = {name: [sys.executable, "-m", *words] for name, words in modules.items()}
        self._variables = {
            CERTIFICATE_VARIABLE: str(kit.certificate.absolute()),
            KEY_VARIABLE: str(sockets / TLS_KEY_FILE),
            "OMP_NUM_THREADS": "1",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._supernode_start = 0.0
        self._refused_since: float | None = None
        self._restarts = 0  # of a SuperNode that did not start well
        self._activity = TextTail(workspace.folder / ACTIVITY_FILE)
        self._supernode_log = TextTail(workspace.folder / f"{SUPERNODE}.log")
        for tail in (self._activity, self._supernode_log):
            tail.skip()
        self._is_connected = True

    def start(self) -> None:
        self._start(WORKER)
        self._wait_for_worker()
        self._start(SUPERNODE)

    def check(self) -> None:
        """Restart processes that have ended; raises if the SuperNode cannot go on."""
        self.workspace.bound_logs([*(f"{name}.log" for name in self._processes), ACTIVITY_FILE])
        for line in self._activity.new_lines():
            self.say(line)
        self._say_connection()
        exit_code = self._processes[SUPERNODE].poll()
        if exit_code is not None:
            self._restart_supernode(exit_code)
        elif self._refused_since is not None and self._has_started_well():
            self._refused_since = None
        exit_code = self._processes[WORKER].poll()
        if exit_code is not None:
            self._say_restart(WORKER, exit_code)
            self._start(WORKER)

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            stop_process(process)

    def _say_connection(self) -> None:
        """Say when the coordinator stops answering, and when it answers again."""
        for line in self._supernode_log.new_lines():
            is_lost = DISCONNECTED_LINE in line
            if is_lost == self._is_connected and (is_lost or CONNECTED_LINE in line):
                self._is_connected = not is_lost
                stamp = time.strftime("%H:%M:%S")
                words = "does not answer: this site tries again" if is_lost else "answers again"
                if not is_lost:
                    count_recovery(self.workspace.folder, NETWORK)
                self.say(f"{stamp} the coordinator at {self.kit.address} {words}")

    def _start(self, name: str) -> None:
        if name == SUPERNODE:
            self._supernode_start = time.monotonic()
        self._processes[name] = self.workspace.start_process(self._commands[name], f"{name}.log", self._variables)

    def _say_restart(self, name: str, exit_code: int) -> None:
        count_recovery(self.workspace.folder, name)
        self.say(f"its process {name} ended ({exit_code}) and is started again: {name}.log may say why")

    def _has_started_well(self) -> bool:
        return time.monotonic() > self._supernode_start + STEADY

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
        """Start the SuperNode again after it was killed, or crashed. The coordinator takes a minute to notice that, and
        until then refuses it as one that is connected already. One that does not start at all is not started for
        ever."""
        if supernode_was_refused(self.workspace):
            self._check_refusal(exit_code)
        else:
            self._restarts = 0 if self._has_started_well() else self._restarts + 1
            is_hopeless = exit_code > 0 and self._restarts > 0  # it ended by itself, soon after its start
            if is_hopeless or self._restarts > MAX_RESTARTS:
                raise RunError(supernode_end_message(exit_code, self.kit, self.workspace))
            self._say_restart(SUPERNODE, exit_code)
        stop_process(self._processes[SUPERNODE])  # what it has left behind
        time.sleep(RESTART_DELAY)
        self._start(SUPERNODE)

    def _check_refusal(self, exit_code: int) -> None:
        """Raise if the coordinator does not know this site's key, or refuses it for longer than it takes to notice that
        a site is gone: then this site is connected from elsewhere."""
        now = time.monotonic()
        with suppress(Unreachable):
            self.check_known()
        if self._refused_since is None:
            self._refused_since = now
            self.say("refused: the coordinator may not have noticed that this site was away; trying again")
        elif now > self._refused_since + REFUSED_FOR:
            raise RunError(supernode_end_message(exit_code, self.kit, self.workspace))


def _supernode_options(kit: SiteKit, worker_socket: Path, insecure: bool) -> list[str]:
    options = ["--superlink", kit.address, "--isolation", "process"]  # it starts no executor, see site_answers.py
    if insecure:
        options += ["--insecure"]
    else:
        options += ["--root-certificates", str(kit.ca.absolute())]
        options += ["--auth-supernode-private-key", str(kit.key.absolute())]
    options += ["--node-config", f"socket={json.dumps(str(worker_socket))}"]
    return options


def supernode_was_refused(workspace: FlowerWorkspace) -> bool:
    """Whether the SuperNode ended because the coordinator refused it."""
    return any(REFUSED_EXIT in line for line in _last_supernode_lines(workspace))


def supernode_end_message(exit_code: int, kit: SiteKit, workspace: FlowerWorkspace) -> str:
    """Why the SuperNode ended, for people."""
    if supernode_was_refused(workspace):
        return (
            f"the coordinator at {kit.address} refuses this site: {kit.name} is connected from elsewhere, or the two "
            f"clocks differ, or it does not know this site's key"
        )
    lines = [f"  {line}" for line in _last_supernode_lines(workspace)[-6:]]
    return "\n".join([f"the SuperNode ended ({exit_code}); supernode.log says:", *lines])


def _last_supernode_lines(workspace: FlowerWorkspace) -> list[str]:
    """The last lines of supernode.log, of the SuperNode's last start only."""
    lines = workspace.log_lines("supernode.log")
    starts = [number for number, line in enumerate(lines) if SUPERNODE_BANNER in line]
    return lines[starts[-1] if starts else 0 :][-LAST_LINES:]
