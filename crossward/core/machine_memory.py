"""The memory of this machine: what there is, what is left, what processes take. Limits of containers and batch systems
(control groups, version 1 and 2) count. Where the system does not say, it is unknown."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
NO_LIMIT = 1 << 60  # bytes; version 1 writes a number close to 2**63 where there is no limit


@dataclass(frozen=True)
class GroupFiles:
    """How a version of control groups calls its files."""

    limit: str
    used: str
    reclaimable: str  # a line of memory.stat: of `used`, what the system gives back when somebody needs it


V1 = GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = GroupFiles("memory.max", "memory.current", "inactive_file")


def total_bytes() -> int | None:
    """The memory that this process and all others of its container may have together; None: it is not known."""
    amounts = [_meminfo("MemTotal"), *(limit for limit, _ in _limits())]
    return min((amount for amount in amounts if amount is not None), default=None)


def available_bytes() -> int | None:
    """Memory that new processes can take; None: it is not known."""
    amounts = [_meminfo("MemAvailable"), *(left for _, left in _limits())]
    return min((amount for amount in amounts if amount is not None), default=None)


def process_bytes(pid: int) -> int:
    """What a process takes now; 0 if it is gone or unknown."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def forget_peak() -> None:
    """Measure the peak of this process from now on, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most that this process has taken, since `forget_peak` where the system can tell."""
    for line in _lines(Path("/proc/self/status")):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _limits() -> Iterator[tuple[int, int]]:
    """The limit of each control group that this process is in, and what is left of it."""
    for folder, files in _groups():
        with suppress(OSError, ValueError):  # "max" where there is no limit
            limit = int((folder / files.limit).read_text())
            if limit < NO_LIMIT:
                used = int((folder / files.used).read_text())
                yield limit, max(0, limit - used + _reclaimable(folder, files))


def _groups() -> Iterator[tuple[Path, GroupFiles]]:
    """The control groups that bound this process, up to the outermost that can be seen: inside a container the path
    that the system names is often another's, and the container's own group is the root."""
    for line in _lines(OWN_CGROUPS):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, files = CGROUPS, V2
        elif "memory" in controllers.split(","):
            root, files = CGROUPS / "memory", V1
        else:
            continue
        inner = Path(path.lstrip("/"))
        for part in (inner, *inner.parents):
            yield root / part, files


def _reclaimable(folder: Path, files: GroupFiles) -> int:
    lines = _lines(folder / "memory.stat")
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{files.reclaimable} ")), 0)


def _meminfo(name: str) -> int | None:
    return next((int(line.split()[1]) * 1024 for line in _lines(MEMINFO) if line.startswith(f"{name}:")), None)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
