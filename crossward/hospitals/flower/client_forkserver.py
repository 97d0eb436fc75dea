"""The fork server of a site: a process that has imported Flower's client, and forks for each message.

Flower starts a new process for every message to a site, and imports take nearly all of that process's time. Here the
command that Flower starts imports almost nothing: it sends its arguments to this process, which forks.

    python -m crossward.hospitals.flower.client_forkserver SOCKET
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from crossward.hospitals.flower.app_processes import run_client_app
from crossward.hospitals.flower.monkeypatches import apply_patches, pull_waits
from crossward.hospitals.flower.task_tokens import TOKEN_OPTION, TOKEN_VARIABLE

FORKSERVER_VARIABLE = "CROSSWARD_FORKSERVER"  # environment variable by which the command finds the socket
MAX_ARGUMENT_BYTES = 65536  # of a command
CLIENT_COMMAND = f"""\
import json, os, socket, sys
try:
    link = socket.socket(socket.AF_UNIX)
    link.connect(os.environ["{FORKSERVER_VARIABLE}"])
except (KeyError, OSError):  # there is no fork server: import everything here
    start = "from crossward.hospitals.flower.app_processes import run_client_app; run_client_app()"
    os.execv(sys.executable, [sys.executable, "-c", start, *sys.argv[1:]])
token = os.environ.get("{TOKEN_VARIABLE}")
arguments = sys.argv + (["{TOKEN_OPTION}", token] if token else [])
link.sendall(json.dumps(arguments).encode() + b"\\n")
sys.exit(int(link.recv(16) or 1))
"""


def serve(socket_file: Path) -> None:
    """Fork for every connection, until the process is ended."""
    assert_in_force = apply_patches(pull_waits)
    from flwr.supernode.cli import flwr_clientapp  # noqa: F401  # forks need these imports, so they are made before

    import crossward.hospitals.flower.client_app  # noqa: F401

    assert_in_force()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that have ended leave no zombie behind
    socket_file.unlink(missing_ok=True)
    previous_umask = os.umask(0o177)  # no other user of this machine may connect
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(socket_file))
    os.umask(previous_umask)
    listener.listen()
    while True:
        link, _ = listener.accept()
        with link:
            if os.fork() == 0:
                listener.close()
                _run_in_fork(link, run_client_app)


def _run_in_fork(link: socket.socket, run_app: Callable[[], None]) -> None:
    """Run Flower's client in this process until it ends; its exit code goes back to the command that connected."""
    exit_code = 1
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        sys.argv = json.loads(_read_line(link))
        run_app()
        exit_code = 0
    except SystemExit as error:
        exit_code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    with suppress(OSError):
        link.sendall(str(exit_code).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code % 256)


def _read_line(link: socket.socket) -> bytes:
    """A line of at most MAX_ARGUMENT_BYTES; less if the connection ends before."""
    data = b""
    while not data.endswith(b"\n") and len(data) < MAX_ARGUMENT_BYTES:
        chunk = link.recv(4096)
        if not chunk:
            break
        data += chunk
    return data


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
