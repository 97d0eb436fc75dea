"""Memory: what the machine has left, and what processes take. Read from /proc; where there is none, it is unknown."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Memory that new processes can take, within the limit of a container if there is one; None: it is not known."""
    lines = _lines(Path("/proc/meminfo"))
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    with suppress(OSError, ValueError):
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        reclaimable = next(
            (int(line.split()[1]) for line in _lines(CGROUP / "memory.stat") if line.startswith("inactive_file ")), 0
        )
        left = max(0, limit - used + reclaimable)
        return left if free is None else min(left, free)
    return free


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


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
