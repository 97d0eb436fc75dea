"""Where the processes of a folder listen, as the system itself says it: TCP ports and Unix sockets.

A process belongs to the folder of a coordinator or a site if its FLWR_HOME is within it, see `flower.processes`. Only
Linux says so, in /proc, and of processes of other users only to root.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
HOME_VARIABLE = b"FLWR_HOME="
HOME_FOLDER = "flower"
TCP_LISTENS = "0A"  # state of a TCP socket
UNIX_LISTENS = "00010000"  # flags of a Unix socket


@dataclass(frozen=True, order=True)
class Listener:
    """A place where a process accepts connections."""

    kind: str  # "tcp" or "unix"
    address: str  # host:port, or a path
    process: int

    @property
    def is_local(self) -> bool:
        """Whether nobody on another machine reaches it."""
        if self.kind == "unix":
            return True
        return ipaddress.ip_address(self.address.rpartition(":")[0].strip("[]")).is_loopback

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2]) if self.kind == "tcp" else 0


def can_look() -> bool:
    """Whether this system says where processes listen."""
    return (PROC / "self" / "net" / "tcp").exists()


def listeners(folder: Path) -> list[Listener]:
    """Every place where processes of the folder listen."""
    found: set[Listener] = set()
    for process in processes(folder):
        sockets = _sockets(process)
        found |= {Listener("tcp", address, process) for inode, address in _tcp(process) if inode in sockets}
        found |= {Listener("unix", path, process) for inode, path in _unix(process) if inode in sockets}
    return sorted(found)


def processes(folder: Path) -> list[int]:
    """The processes of the folder that are running."""
    wanted = HOME_VARIABLE + os.fsencode(folder.absolute() / HOME_FOLDER)
    found = []
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is somebody else's
            continue
        if wanted in variables:
            found.append(int(entry.name))
    return sorted(found)


def _sockets(process: int) -> set[str]:
    """The numbers of the sockets that a process has open."""
    numbers = set()
    try:
        descriptors = list((PROC / str(process) / "fd").iterdir())
    except OSError:
        return set()
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            numbers.add(target[len("socket:[") : -1])
    return numbers


def _rows(process: int, table: str) -> Iterator[list[str]]:
    try:
        lines = (PROC / str(process) / "net" / table).read_text(errors="replace").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        yield line.split(maxsplit=7 if table == "unix" else -1)


def _tcp(process: int) -> Iterator[tuple[str, str]]:
    for table in ("tcp", "tcp6"):
        for row in _rows(process, table):
            if row[3] == TCP_LISTENS:
                yield row[9], _address(row[1])


def _unix(process: int) -> Iterator[tuple[str, str]]:
    for row in _rows(process, "unix"):
        if len(row) == 8 and row[3] == UNIX_LISTENS:
            yield row[6], row[7]


def _address(text: str) -> str:
    """host:port of a row such as 0100007F:1F90; each group of four bytes is written backwards."""
    host, port = text.split(":")
    data = bytes.fromhex(host)
    ordered = b"".join(data[start : start + 4][::-1] for start in range(0, len(data), 4))
    address = ipaddress.ip_address(ordered)
    return f"[{address}]:{int(port, 16)}" if address.version == 6 else f"{address}:{int(port, 16)}"
