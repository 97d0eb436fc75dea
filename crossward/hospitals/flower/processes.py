"""Flower's processes as Crossward starts them: their commands, their environment, and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crossward.errors import ConfigError, RunError
from crossward.hospitals.flower.app_commands import commands, end_with_parent

LINK = "crossward"  # the name of the coordinator in Flower's own configuration
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
}
LOOK = 0.5  # seconds
STOPPING = 10.0  # seconds for a process to end by itself


@dataclass(frozen=True)
class Place:
    """A folder that Flower's processes of one side live in."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "flower"

    def environment(self) -> dict[str, str]:
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = os.pathsep.join([str(commands(self.home / "bin")), str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, **QUIET, "FLWR_HOME": str(self.home), "PATH": path}

    def know(self, address: str, ca: Path | None) -> None:
        """Write down where the coordinator is, for `flwr` commands with this FLWR_HOME."""
        how = f"root-certificates = {json.dumps(str(ca.absolute()))}" if ca else "insecure = true"
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        told = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = {json.dumps(address)}\n{how}\n'
        (self.home / "config.toml").write_text(told)

    def start(self, command: Sequence[str], log: str, more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """A process of its own group, so that it ends with all that it started."""
        with (self.folder / log).open("ab") as out:
            environment = self.environment() | dict(more or {})
            return subprocess.Popen(
                command,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def flwr(self, *words: str) -> str:
        """What a `flwr` command prints; it failing is an error that tells all it said."""
        done = subprocess.run(
            [sys.executable, "-m", "flwr.cli.app", *words], env=self.environment(), capture_output=True, text=True
        )
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines()
            raise RunError(f"`flwr {' '.join(words)}` failed ({done.returncode})", details=said[-12:])
        return done.stdout


def look_after(look: Callable[[], None]) -> None:
    while True:
        look()
        time.sleep(LOOK)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOPPING)
            with suppress(ProcessLookupError):  # what it left behind
                os.killpg(process.pid, signal.SIGKILL)
            return


def check_free(host: str, port: int) -> None:
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def wait_for(address: str, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Until somebody listens there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RunError(f"it ended at once, with exit code {process.returncode}: its log says why")
        with suppress(OSError), socket.create_connection(split(address), 1.0):
            return
        time.sleep(0.1)
    raise RunError(f"nothing listens at {address} after {seconds:.0f} s")


def check_reachable(address: str, ca: Path | None) -> None:
    """Whether the coordinator is there and is who it says; a machine's wrong clock is told as such."""
    try:
        with socket.create_connection(split(address), 10.0) as plain:
            if ca is not None:
                with ssl.create_default_context(cafile=str(ca)).wrap_socket(plain, server_hostname=split(address)[0]):
                    pass
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
        raise ConfigError(
            f"the coordinator at {address} cannot be reached: {error}",
            hint="Is it up, and does a firewall let this machine through? `crossward coordinator up` starts it.",
        ) from None
