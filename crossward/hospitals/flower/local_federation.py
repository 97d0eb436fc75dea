"""A coordinator and its sites on this machine, each a process of its own, with TLS and keys: to try, and to test."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossward.config.reading import to_toml
from crossward.errors import RunError
from crossward.hospitals.flower.app_processes import end_with_parent
from crossward.hospitals.kit import FederationKit

COORDINATOR = "coordinator"
START_TIMEOUT = 180.0  # seconds for a process to print that it is up
STOP_TIMEOUT = 60.0  # seconds
UP_WORDS = " is up"  # printed by `coordinator up` and `site up`


@dataclass
class LocalFederation:
    """A coordinator and its sites on this machine, each a process that can be killed and started again. What each
    prints is in a text file of its name."""

    kit: FederationKit
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, who: str) -> None:
        """Start the coordinator, or a site by its name; returns when it is up."""
        self.spawn(who)
        self.wait_until_up(who)

    def spawn(self, who: str) -> None:
        """Start a process, and do not wait for it."""
        with self.console(who).open("wb") as out:
            self.processes[who] = subprocess.Popen(
                [sys.executable, "-m", "crossward", *self._arguments(who)],
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )

    def wait_until_up(self, who: str) -> None:
        end = time.monotonic() + START_TIMEOUT
        while UP_WORDS not in self.console(who).read_text():
            if self.processes[who].poll() is not None or time.monotonic() > end:
                lines = self.console(who).read_text().splitlines()
                raise RunError(f"`crossward {' '.join(self._arguments(who))}` did not come up", details=lines)
            time.sleep(0.2)

    def console(self, who: str) -> Path:
        return self.kit.folder / f"{who}.txt"

    def kill(self, who: str) -> None:
        """As `kill -9` does."""
        self.processes[who].kill()
        self.processes[who].wait()

    def find_process(self, who: str, module: str) -> int:
        """The process that the coordinator, or a site, has started for a module (on Linux)."""
        pids = descendants(self.processes[who].pid)
        return next(pid for pid in pids if module in Path(f"/proc/{pid}/cmdline").read_text())

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(STOP_TIMEOUT)

    def _arguments(self, who: str) -> list[str]:
        if who == COORDINATOR:
            return ["coordinator", "up", str(self.kit.coordinator)]
        return ["site", "up", str(self.kit.site(who))]


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    lists = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    children = [int(child) for each in lists for child in each]
    return [*children, *(each for child in children for each in descendants(child))]


def add_site_data(file: Path, data: dict[str, Any], partition: dict[str, Any], take: str) -> None:
    """Add to a site.toml where the site's images are: its part of a partition that every site can compute."""
    tables = to_toml({"data": data, "partition": partition})
    file.write_text(f"take = {json.dumps(take)}\n{file.read_text()}\n{tables}")
