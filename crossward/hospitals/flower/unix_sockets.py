"""Unix sockets that only this user can open."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from crossward.errors import ConfigError, StorageError
from crossward.hospitals.messages import MAX_SOCKET_PATH

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
