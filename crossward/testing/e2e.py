"""The whole of it on one machine: a coordinator and three hospitals, each a process of its own, with TLS and keys. Each
method runs across them and then in one process; the results must be equal to the bit.

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from crossward.config.reading import config_from, to_toml
from crossward.config.schema import Config
from crossward.core.robust import Robust
from crossward.core.store import read_tree
from crossward.errors import RunError
from crossward.hospitals.flower.federation_runs import RunOptions, follow_run, start_run
from crossward.hospitals.flower.processes import free_port
from crossward.hospitals.kit import FederationKit, create_federation
from crossward.runs.lifecycle import run as run_locally
from crossward.runs.recorder import CHECKPOINT
from crossward.testing.short_runs import assert_same

METHODS = ("fedbm", "fedcd", "fednpr-per", "mh-pflgb")
COORDINATOR = "coordinator"
SITES = ("hospital-1", "hospital-2", "hospital-3")  # as the phantom names them
START_TIMEOUT = 180.0  # seconds for a process to print that it is up
STOP_TIMEOUT = 60.0  # seconds
Say = Callable[[str], None]
IMAGES_PER_SITE = {"train": 40, "val": 12, "test": 12, "global_test": 0}
MIXED_NETS: Mapping[str, Any] = {"name": ["cnn", "resnet8", "cnn"]}  # for MH-pFLGB, whose networks may differ


def config(method: str, seed: int = 0) -> Config:
    """Two short rounds on the phantom hospitals."""
    return config_from(
        {
            "run": {"rounds": 2, "seed": seed},
            "data": {"source": "phantom", "size": 24, "sites": len(SITES), **IMAGES_PER_SITE},
            "net": MIXED_NETS if method.startswith("mh-pflgb") else {"name": "cnn"},
            "method": {"name": method},
            "train": {"batch_size": 16},
            "text": {"encoder": "random"},
            "engine": {"device": "cpu"},
        }
    )


@dataclass
class LocalFederation:
    """A coordinator and its sites on this machine, each a process that can be killed and started again."""

    kit: FederationKit
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, who: str) -> None:
        """Start the coordinator, or a site by its name; returns when it is up."""
        if who == COORDINATOR:
            arguments = ["coordinator", "up", str(self.kit.coordinator)]
        else:
            arguments = ["site", "up", str(self.kit.site(who))]
        log = self.kit.folder / f"{who}.txt"
        with log.open("wb") as out:
            command = [sys.executable, "-m", "crossward.cli.main", *arguments]
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        self.processes[who] = process
        end = time.monotonic() + START_TIMEOUT
        while " is up" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                lines = log.read_text().splitlines()
                raise RunError(f"`crossward {' '.join(arguments)}` did not come up", details=lines)
            time.sleep(0.2)

    def kill(self, who: str) -> None:
        """As `kill -9` does."""
        self.processes[who].kill()
        self.processes[who].wait()

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(STOP_TIMEOUT)


@contextmanager
def running_federation(folder: Path, sites: Sequence[str] = SITES) -> Iterator[LocalFederation]:
    """A federation whose coordinator and sites are up."""
    kit = create_federation(
        folder / "kit", name="rehearsal", sites=SITES, host="127.0.0.1", port=free_port(), encrypt_memory=True
    )
    for name in SITES:
        _add_site_data(kit.site(name) / "site.toml", config("fedavg"), name)
    federation = LocalFederation(kit)
    try:
        for who in (COORDINATOR, *sites):
            federation.start(who)
        yield federation
    finally:
        federation.stop()


def compare_with_local_run(kit: FederationKit, method: str, say: Say = print, name: str | None = None) -> float:
    """Run a method across the hospitals and in one process; raises if the results differ. Returns the seconds of a
    round across the hospitals."""
    folder = start_method(kit, method, name)
    follow_run(folder, lambda line: say(f"  {line}"))
    return assert_same_as_local(kit, folder, method)


def start_method(kit: FederationKit, method: str, name: str | None = None) -> Path:
    """Start a run of a method across the hospitals; its directory."""
    file = kit.folder / f"{method}.toml"
    file.write_text(to_toml(config(method).canonical()))
    options = RunOptions(name=name or method, wait=START_TIMEOUT, deadline=START_TIMEOUT)
    return start_run(file, kit.coordinator, [], options)


def assert_same_as_local(kit: FederationKit, folder: Path, method: str) -> float:
    """Check that the same run in one process ends with the same bits. Returns the seconds of a round in `folder`."""
    settings = config(method).canonical()
    settings["run"] |= {"name": folder.name, "out": str(kit.folder / "here")}
    settings["robust"] = asdict(Robust().against_hostile_sites())  # which a run across hospitals has by itself
    local = run_locally(config_from(settings))
    assert_same(read_tree(folder / CHECKPOINT)["state"], read_tree(local.folder / CHECKPOINT)["state"], method)
    rounds = _read_rounds(folder)
    for local_round, other in zip(_read_rounds(local.folder), rounds, strict=True):
        assert local_round["loss"] == other["loss"], f"{method}: losses differ in round {local_round['round']}"
    return float(sum(line["seconds"] for line in rounds) / len(rounds))


def _read_rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _add_site_data(file: Path, run_config: Config, take: str) -> None:
    """Add to site.toml where this hospital's images are: its part of a partition that every hospital can compute."""
    settings = run_config.canonical()
    tables = {"data": settings["data"], "partition": settings["partition"] | {"seed": run_config.run.seed}}
    text = file.read_text().replace("min_class_count = 5", "min_class_count = 0")  # one process suppresses no class
    file.write_text(f"take = {json.dumps(take)}\n{text}\n{to_toml(tables)}")


def main(methods: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="crossward-e2e-") as folder, running_federation(Path(folder)) as federation:
        for method in methods:
            print(method)  # noqa: T201
            seconds = compare_with_local_run(federation.kit, method)
            print(f"  the same to the bit as in one process; {seconds:.1f} s a round")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:] or METHODS)
