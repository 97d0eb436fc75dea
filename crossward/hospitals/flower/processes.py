"""Flower's processes as Crossward starts them: their commands, their environment, and how they end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from crossward.errors import ConfigError, RunError
from crossward.hospitals.flower.app_commands import write_commands
from crossward.hospitals.flower.app_processes import MANY_COMMANDS, end_with_parent
from crossward.hospitals.flower.connections import SOCKET_VARIABLE
from crossward.hospitals.flower.unix_sockets import check_socket_path

RunFlwr = Callable[..., str]  # the arguments of a `flwr` command -> what it prints
FLWR = (sys.executable, "-m", "crossward.hospitals.flower.app_processes")
SUPERLINK_NAME = "crossward"  # of the coordinator in Flower's own configuration
PIECE_BYTES = 15 * 2**19  # of contents that are sent; Flower: 10 * 2**19. The public door takes requests of 16 * 2**19
FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": str(PIECE_BYTES),
    "FLWR_INTERNAL_GRPC_CONTROL_API": "0",  # no listeners besides ours, whatever this process's environment says
    "FLWR_INTERNAL_GRPC_FLEET_API": "0",
}
SOCKET_FILE = "superlink.sock"  # in a coordinator's FLWR_HOME
CHECK_INTERVAL = 0.5  # seconds between two checks of running processes
MAX_LOG_BYTES = 32 * 2**20  # of the log of a process; as much again is kept of what was before
REACH_INTERVAL = 3.0  # seconds between two attempts to reach a coordinator that is not up yet
STOP_TIMEOUT = 10.0  # seconds for a process to end by itself


@dataclass(frozen=True)
class FlowerWorkspace:
    """The folder of a coordinator or a site, in which Flower's processes run."""

    folder: Path

    @property
    def home(self) -> Path:
        """FLWR_HOME."""
        return self.folder / "flower"

    @property
    def socket(self) -> Path:
        """At which Flower's processes meet the coordinator's SuperLink."""
        return check_socket_path(self.home / SOCKET_FILE)

    def environment(self) -> dict[str, str]:
        """The environment of Flower's processes; Crossward's replacements of its commands come first in PATH."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        commands = write_commands(self.home / "bin")
        path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {"FLWR_HOME": str(self.home), "PATH": path, SOCKET_VARIABLE: str(self.home / SOCKET_FILE)}
        return {**os.environ, **FLOWER_ENVIRONMENT, **own}

    def write_connection(self) -> None:
        """Write a connection into Flower's configuration, for `flwr` commands with this FLWR_HOME. Its address is there
        because Flower requires one: the commands reach the SuperLink by its socket."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = [
            "[superlink]",
            f'default = "{SUPERLINK_NAME}"',
            "",
            f"[superlink.{SUPERLINK_NAME}]",
            'address = "127.0.0.1:9"',
            "insecure = true",
        ]
        (self.home / "config.toml").write_text("\n".join(lines) + "\n")

    def start_process(
        self, command: Sequence[str], log: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own, so that it can be ended together with all that it started."""
        with (self.folder / log).open("ab") as out:
            return subprocess.Popen(
                command,
                env=self.environment() | dict(variables or {}),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def log_lines(self, log: str) -> list[str]:
        """The lines of a process's log."""
        return (self.folder / log).read_text(errors="replace").strip().splitlines()

    def bound_logs(self, logs: Sequence[str]) -> None:
        """Keep the logs of running processes from filling the disk: what the other side sends makes them write. A log
        that is too long becomes LOG.1, in the place of an older one."""
        for log in logs:
            file = self.folder / log
            if file.exists() and file.stat().st_size > MAX_LOG_BYTES:
                shutil.copyfile(file, file.with_name(f"{log}.1"))
                os.truncate(file, 0)  # its process appends, and goes on at the beginning

    def run_flwr(self, *arguments: str) -> str:
        """What a `flwr` command prints; if it fails, the error shows its output."""
        result = subprocess.run(
            [*FLWR, *arguments],
            env=self.environment() | {SOCKET_VARIABLE: str(self.socket)},
            capture_output=True,
            text=True,
        )
        return _require_success(arguments, result.returncode, result.stdout, result.stderr)

    def _start_flwr_commands(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*FLWR, MANY_COMMANDS],
            env=self.environment() | {SOCKET_VARIABLE: str(self.socket)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @contextmanager
    def flwr_commands(self) -> Iterator[RunFlwr]:
        """A `run_flwr` for many commands, which all run in one process: to start one takes a second and more."""
        process: list[subprocess.Popen[str]] = []  # started with the first command

        def run(*arguments: str) -> str:
            if not process:
                process.append(self._start_flwr_commands())
            stdin, stdout = process[0].stdin, process[0].stdout
            assert stdin is not None
            assert stdout is not None
            with suppress(BrokenPipeError):
                stdin.write(json.dumps(arguments) + "\n")
                stdin.flush()
            answer = json.loads(stdout.readline() or '{"code": 1, "output": "", "errors": "its process ended"}')
            return _require_success(arguments, answer["code"], answer["output"], answer["errors"])

        try:
            yield run
        finally:
            for each in process:
                with suppress(BrokenPipeError):
                    each.communicate()


def _require_success(arguments: Sequence[str], code: int, output: str, errors: str) -> str:
    """What a `flwr` command printed, if it succeeded."""
    if code:
        lines = (output + errors).strip().splitlines()
        raise RunError(f"`flwr {' '.join(arguments)}` failed ({code})", details=lines[-12:])
    return output


def supervise(check: Callable[[], None]) -> None:
    """Call `check` again and again, until it raises."""
    while True:
        check()
        time.sleep(CHECK_INTERVAL)


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT)
            with suppress(ProcessLookupError):  # processes that it left behind
                os.killpg(process.pid, signal.SIGKILL)
            return


def check_port_free(host: str, port: int) -> None:
    """Refuse a port that another process uses."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be used here: {error.strerror}",
                hint="Stop what uses it (ss -ltnp shows what), or set another port in federation.toml and, at every "
                "site, in site.toml.",
            ) from None


def free_port() -> int:
    """A port of this machine that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def split_address(address: str) -> tuple[str, int]:
    """Host and port of host:port, or of [host]:port of an IPv6 address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def wait_until(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Wait until a process that was just started is ready."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RunError(f"it ended at once, with exit code {process.returncode}: its log says why")
        if is_ready():
            return
        time.sleep(0.1)
    raise RunError(f"it is not ready after {seconds:.0f} s: its log may say why")


def accepts_connections(address: str) -> bool:
    """Whether something listens at an address of this machine."""
    with suppress(OSError), socket.create_connection(split_address(address), 1.0):
        return True
    return False


class Unreachable(ConfigError):
    """Nothing answers at the coordinator's address; it may not be up yet."""


def wait_for_coordinator(check: Callable[[], None], address: str, say: Callable[[str], None]) -> None:
    """Call `check` until the coordinator can be reached: a site may be started first. Other mistakes raise at once."""
    told = ""
    while True:
        try:
            check()
        except Unreachable as error:
            if error.what != told:
                say(f"{error.what}. Waiting for it; Ctrl-C ends this. {error.hint}")
                told = error.what
            time.sleep(REACH_INTERVAL)
        else:
            if told:
                say(f"the coordinator at {address} can be reached now")
            return


def check_reachable(address: str, ca: Path | None, certificate: Path, key: Path) -> None:
    """Refuse a coordinator that does not answer or, with `ca`, does not prove who it is, or does not let this site in.
    If its certificate seems invalid, the error shows this machine's clock, which may be the reason."""
    try:
        with socket.create_connection(split_address(address), 10.0) as plain:
            if ca is not None:
                context = ssl.create_default_context(cafile=str(ca))
                context.load_cert_chain(certificate, key)
                with context.wrap_socket(plain, server_hostname=split_address(address)[0]) as link:
                    _check_accepted(link, address)
    except ssl.SSLCertVerificationError as error:
        now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        raise ConfigError(
            f"the coordinator at {address} does not show a certificate that holds: {error.verify_message}",
            details=[f"this machine's clock says {now}; a certificate seems expired, or not yet valid, to a wrong one"],
            hint="Set the clock, or have the coordinator renew its certificate; or this folder's ca.crt is another "
            "federation's.",
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(f"{address} does not speak TLS: {error.reason}") from None
    except OSError as error:
        raise Unreachable(
            f"the coordinator at {address} cannot be reached: {error.strerror or error}",
            hint="Is it up, and does a firewall let this machine through?",
        ) from None


def _check_accepted(link: ssl.SSLSocket, address: str) -> None:
    """Ask for nothing in particular: a coordinator that knows this site answers, whatever it answers."""
    answer = b""
    with suppress(OSError):  # an alert of TLS among them
        link.sendall(b"POST / HTTP/1.1\r\nHost: coordinator\r\nContent-Length: 0\r\n\r\n")
        answer = link.recv(16)
    if not answer:
        raise RunError(
            f"the coordinator at {address} does not know this site's key, or does not accept its certificate",
            hint="Is the public key in its folder sites, and was it started since? Is the certificate of the same "
            "federation, and are both clocks right?",
        )
