"""Forks: a process that has imported Flower's client, and becomes a copy of itself for each message.

Flower starts a new process for every message to a site, and nearly all of that process's time is imports. Here the
command that Flower starts is a few lines that need no imports: they hand their arguments to this process, which forks.

    python -m crossward.hospitals.flower.client_forkserver SOCKET
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from crossward.hospitals.flower.monkeypatches import hasten

VARIABLE = "CROSSWARD_FORKS"  # names the socket to the command
LARGEST = 65536  # bytes of a command's arguments
COMMAND = f"""\
import json, os, socket, sys
try:
    link = socket.socket(socket.AF_UNIX)
    link.connect(os.environ["{VARIABLE}"])
except (KeyError, OSError):  # nobody to ask: start the long way
    start = "from crossward.hospitals.flower.app_commands import client; client()"
    os.execv(sys.executable, [sys.executable, "-c", start, *sys.argv[1:]])
link.sendall(json.dumps(sys.argv).encode() + b"\\n")
sys.exit(int(link.recv(16) or 1))
"""


def serve(at: Path) -> None:
    """Fork for every connection, until the process is ended."""
    hasten()
    from flwr.supernode.cli import flwr_clientapp  # noqa: F401  # what a copy needs is in memory before it is made

    import crossward.hospitals.flower.client_app  # noqa: F401
    from crossward.hospitals.flower import app_commands as installed

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies that have ended leave nothing behind
    at.unlink(missing_ok=True)
    before = os.umask(0o177)  # nobody else on this machine may talk to it
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(at))
    os.umask(before)
    listener.listen()
    while True:
        link, _ = listener.accept()
        with link:
            if os.fork() == 0:
                listener.close()
                _become(link, installed.client)


def _become(link: socket.socket, client: object) -> None:
    """The rest of this process is Flower's client; its exit code goes to the command that was started."""
    code = 1
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        sys.argv = json.loads(_line(link))
        assert callable(client)
        client()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    with suppress(OSError):
        link.sendall(str(code).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code % 256)


def _line(link: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < LARGEST and (more := link.recv(4096)):
        data += more
    return data


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
