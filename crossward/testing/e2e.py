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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from crossward.core.store import read_tree
from crossward.deployment.kit import Kit, init
from crossward.deployment.processes import free_port
from crossward.deployment.runs import Asked, begin, follow
from crossward.errors import RunError
from crossward.experiment import toml
from crossward.experiment.api import run as run_here
from crossward.experiment.config import Config
from crossward.experiment.load import checked
from crossward.experiment.recorder import CHECKPOINT
from crossward.testing.rehearsal import assert_same

METHODS = ("fedbm", "fedcd", "fednpr-per", "mh-pflgb")
SITES = ("north", "south", "west")
STARTING = 180.0  # seconds for a process to say that it is up
NETS: Mapping[str, Any] = {"name": ["cnn", "resnet8", "cnn"]}  # of MH-pFLGB, whose networks may differ


def config(method: str, seed: int = 0) -> Config:
    """Two short rounds on the phantom hospitals."""
    return checked(
        {
            "run": {"rounds": 2, "seed": seed},
            "data": {"source": "phantom", "size": 24},
            "partition": {"kind": "dirichlet", "sites": len(SITES), "limit": 120},
            "net": NETS if method.startswith("mh-pflgb") else {"name": "cnn"},
            "method": {"name": method},
            "train": {"batch_size": 16},
            "text": {"encoder": "random"},
            "engine": {"device": "cpu"},
        }
    )


@contextmanager
def hospitals(folder: Path) -> Iterator[Kit]:
    """A federation whose coordinator and sites are up."""
    kit = init(folder / "kit", name="rehearsal", sites=SITES, host="127.0.0.1", port=free_port(), encrypt_memory=True)
    with ExitStack() as up:
        up.enter_context(_process(["coordinator", "up", str(kit.coordinator)], folder / "coordinator.txt"))
        for number, name in enumerate(SITES, 1):
            _give(kit.site(name) / "site.toml", config("fedavg"), f"site-{number}")
            up.enter_context(_process(["site", "up", str(kit.site(name))], folder / f"{name}.txt"))
        yield kit


def compared(kit: Kit, method: str, say: Any = print) -> float:
    """Run a method across the hospitals and here; the seconds of a round there. Differences raise."""
    asked = config(method)
    file = kit.folder / f"{method}.toml"
    file.write_text(toml.dumps(asked.canonical()))
    there = begin(file, kit.coordinator, [], Asked(name=method, wait=STARTING, deadline=STARTING))
    follow(there, lambda line: say(f"  {line}"))
    settings = asked.canonical()
    settings["run"] |= {"name": method, "out": str(kit.folder / "here")}
    here = run_here(checked(settings))
    assert_same(read_tree(there / CHECKPOINT)["state"], read_tree(here.folder / CHECKPOINT)["state"], method)
    theirs, ours = (_rounds(folder) for folder in (there, here.folder))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["loss"] == _renamed(other["loss"]), f"{method}: losses differ in round {mine['round']}"
    return float(sum(line["seconds"] for line in theirs) / len(theirs))


def _renamed(by_site: Mapping[str, float]) -> dict[str, float]:
    """The hospitals of the rehearsal have names; in one process sites have numbers."""
    return {f"site-{SITES.index(name) + 1}": value for name, value in by_site.items()}


def _rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _give(file: Path, asked: Config, take: str) -> None:
    """Where this hospital's images are: its part of a partition that all hospitals can make."""
    settings = asked.canonical()
    own = {"data": settings["data"], "partition": settings["partition"] | {"seed": asked.run.seed}}
    file.write_text(f"take = {json.dumps(take)}\n{file.read_text()}\n{toml.dumps(own)}")


@contextmanager
def _process(words: Sequence[str], log: Path) -> Iterator[None]:
    """A command of crossward's, once it says that it is up."""
    with log.open("wb") as out:
        command = [sys.executable, "-m", "crossward.experiment.cli", *words]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + STARTING
        while " is up" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise RunError(f"`crossward {' '.join(words)}` did not come up", details=log.read_text().splitlines())
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(60)


def main(methods: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="crossward-e2e-") as folder, hospitals(Path(folder)) as kit:
        for method in methods:
            print(method)  # noqa: T201
            seconds = compared(kit, method)
            print(f"  the same to the bit as in one process; {seconds:.1f} s a round")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:] or METHODS)
