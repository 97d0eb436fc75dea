"""The whole of it on one machine: a coordinator and three hospitals as processes of their own, with TLS and keys, run a
method each after the other; what they end with is compared, to the bit, with the same run in one process.

    python -m crossward.testing.e2e [METHOD ...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossward.config import toml
from crossward.config.reading import checked
from crossward.config.schema import Config
from crossward.core.store import read_tree
from crossward.errors import RunError
from crossward.hospitals.flower.federation_runs import Asked, begin, follow
from crossward.hospitals.flower.processes import free_port
from crossward.hospitals.kit import Kit, init
from crossward.runs.lifecycle import run as run_here
from crossward.runs.recorder import CHECKPOINT
from crossward.testing.short_runs import assert_same

METHODS = ("fedbm", "fedcd", "fednpr-per", "mh-pflgb")
COORDINATOR = "coordinator"
SITES = ("hospital-1", "hospital-2", "hospital-3")  # as the phantom calls them
STARTING = 180.0  # seconds for a process to say that it is up
Say = Callable[[str], None]
FEW = {"train": 40, "val": 12, "test": 12, "global_test": 0}  # images of a hospital
NETS: Mapping[str, Any] = {"name": ["cnn", "resnet8", "cnn"]}  # of MH-pFLGB, whose networks may differ


def config(method: str, seed: int = 0) -> Config:
    """Two short rounds on the phantom hospitals."""
    return checked(
        {
            "run": {"rounds": 2, "seed": seed},
            "data": {"source": "phantom", "size": 24, "sites": len(SITES), **FEW},
            "net": NETS if method.startswith("mh-pflgb") else {"name": "cnn"},
            "method": {"name": method},
            "train": {"batch_size": 16},
            "text": {"encoder": "random"},
            "engine": {"device": "cpu"},
        }
    )


@dataclass
class Federation:
    """A coordinator and its sites, each a process that can be killed and started again."""

    kit: Kit
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, who: str) -> None:
        """The coordinator, or a site; returns when it is up."""
        folder = self.kit.coordinator if who == COORDINATOR else self.kit.site(who)
        words = ["coordinator" if who == COORDINATOR else "site", "up", str(folder)]
        log = self.kit.folder / f"{who}.txt"
        with log.open("wb") as out:
            command = [sys.executable, "-m", "crossward.cli.main", *words]
            process = self.processes[who] = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        end = time.monotonic() + STARTING
        while " is up" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise RunError(f"`crossward {' '.join(words)}` did not come up", details=log.read_text().splitlines())
            time.sleep(0.2)

    def kill(self, who: str) -> None:
        """As `kill -9` does."""
        self.processes[who].kill()
        self.processes[who].wait()

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(60)


@contextmanager
def run_sites(folder: Path, sites: Sequence[str] = SITES) -> Iterator[Federation]:
    """A federation whose coordinator and sites are up."""
    kit = init(folder / "kit", name="rehearsal", sites=SITES, host="127.0.0.1", port=free_port(), encrypt_memory=True)
    for name in SITES:
        _give(kit.site(name) / "site.toml", config("fedavg"), name)
    federation = Federation(kit)
    try:
        for who in (COORDINATOR, *sites):
            federation.start(who)
        yield federation
    finally:
        federation.stop()


def compared(kit: Kit, method: str, say: Say = print, name: str | None = None) -> float:
    """Run a method across the hospitals and here; the seconds of a round there. Differences raise."""
    there = begun(kit, method, name)
    follow(there, lambda line: say(f"  {line}"))
    return same_as_here(kit, there, method)


def begun(kit: Kit, method: str, name: str | None = None) -> Path:
    file = kit.folder / f"{method}.toml"
    file.write_text(toml.dumps(config(method).canonical()))
    return begin(file, kit.coordinator, [], Asked(name=name or method, wait=STARTING, deadline=STARTING))


def same_as_here(kit: Kit, there: Path, method: str) -> float:
    """The run in one process ends with the same bits; the seconds of a round there."""
    settings = config(method).canonical()
    settings["run"] |= {"name": there.name, "out": str(kit.folder / "here")}
    here = run_here(checked(settings))
    assert_same(read_tree(there / CHECKPOINT)["state"], read_tree(here.folder / CHECKPOINT)["state"], method)
    theirs, ours = (_rounds(folder) for folder in (there, here.folder))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["loss"] == other["loss"], f"{method}: losses differ in round {mine['round']}"
    return float(sum(line["seconds"] for line in theirs) / len(theirs))


def _rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _give(file: Path, asked: Config, take: str) -> None:
    """Where this hospital's images are: its part of a partition that all hospitals can make."""
    settings = asked.canonical()
    own = {"data": settings["data"], "partition": settings["partition"] | {"seed": asked.run.seed}}
    file.write_text(f"take = {json.dumps(take)}\n{file.read_text()}\n{toml.dumps(own)}")


def main(methods: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="crossward-e2e-") as folder, run_sites(Path(folder)) as federation:
        for method in methods:
            print(method)  # noqa: T201
            seconds = compared(federation.kit, method)
            print(f"  the same to the bit as in one process; {seconds:.1f} s a round")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:] or METHODS)
