"""Unix sockets that only this user can open, and Flower's servers on them."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossward.errors import ConfigError, StorageError
from crossward.hospitals.flower.connections import SOCKET_VARIABLE
from crossward.hospitals.messages import MAX_SOCKET_PATH

if TYPE_CHECKING:
    import uvicorn

BACKLOG = 128


def check_socket_path(path: Path) -> Path:
    """The path, if the system can have a socket there."""
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        raise ConfigError(
            f"the path {path} is too long for a socket ({length} bytes, {MAX_SOCKET_PATH} are allowed)",
            hint="Move the folder to a place with a shorter path.",
        )
    return path


def bind_private_socket(path: Path) -> socket.socket:
    """A socket that listens at `path`, in a folder that no other user can enter."""
    mode = path.parent.stat().st_mode & 0o777
    if mode & 0o077:
        raise StorageError(f"{path.parent} is open to other users (mode {mode:04o}): chmod 700 {path.parent}")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous_umask = os.umask(0o177)
    try:
        listener.bind(str(check_socket_path(path)))
    finally:
        os.umask(previous_umask)
    listener.listen(BACKLOG)
    return listener


def start_supernode_api(config: Any, state_factory: Any) -> tuple[uvicorn.Server, threading.Thread]:
    """Replaces the listener of a SuperNode on loopback, which every user of the machine could talk to."""
    import uvicorn
    from flwr.supernode.main import create_app

    listener = bind_private_socket(Path(os.environ[SOCKET_VARIABLE]))
    app = create_app(state_factory=state_factory, superexec_auth_secret=config.superexec_auth_secret)
    server = uvicorn.Server(uvicorn.Config(app, ws="none", access_log=False, log_level=logging.WARNING))
    thread = threading.Thread(target=server.run, args=([listener],), name="supernode-runtime-http-api")
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.02)
    if not server.started:
        raise RuntimeError("the SuperNode's server did not start")
    return server, thread
