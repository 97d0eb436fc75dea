"""What a round across hospitals costs beyond its computation: a coordinator and two sites as processes on this machine,
with TLS and keys.

    python benchmarks/hospitals.py [--rounds 8] [--smoke]

`--smoke` measures one short run: it shows that the program runs, its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from crossward.config.reading import config_from, to_toml
from crossward.hospitals.flower.federation_runs import RunOptions, follow_run, start_run
from crossward.hospitals.kit import FederationKit
from crossward.runs.lifecycle import run as run_here
from crossward.testing.e2e import SITES, config, running_federation


@dataclass(frozen=True)
class Case:
    title: str
    net: str
    evaluates: bool

    @property
    def name(self) -> str:
        """What its run is called."""
        return f"{self.net}-{int(self.evaluates)}"


CASES = tuple(
    Case(title, net, evaluates)
    for title, net in (("tiny cnn", "cnn"), ("ResNet-18", "resnet18"))  # the second is 44 MB
    for evaluates in (False, True)
)


def measure(kit: FederationKit, case: Case, rounds: int) -> str:
    """Run a case across the two sites, and with all three sites in one process; a line with the time of a round."""
    settings = config("fedavg").canonical() | {"net": {"name": case.net}}
    settings["run"] |= {"rounds": rounds}
    settings["evaluate"] |= {"every": int(case.evaluates)}
    file = kit.folder / "case.toml"
    file.write_text(to_toml(settings))
    across = start_run(file, kit.coordinator, [], RunOptions(name=case.name, least=2, wait=5.0))
    follow_run(across, lambda line: None)
    settings["run"] |= {"out": str(kit.folder / "here"), "name": case.name}
    here = run_here(config_from(settings))
    what = "with evaluation" if case.evaluates else "training only"
    return (
        f"{case.title}, {what}: {seconds_of_round(across):.2f} s a round across two sites, "
        f"{seconds_of_round(here.folder):.2f} s for three in one process"
    )


def seconds_of_round(folder: Path) -> float:
    """The median of all rounds but the first, in which everybody opens the run."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return median(json.loads(line)["seconds"] for line in lines[1:])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="of each run; the first is not counted")
    parser.add_argument("--smoke", action="store_true", help="one short run: does it run?")
    options = parser.parse_args(arguments)
    cases, rounds = (CASES[:1], 2) if options.smoke else (CASES, options.rounds)
    with (
        tempfile.TemporaryDirectory(prefix="crossward-") as folder,
        running_federation(Path(folder), SITES[:2]) as federation,
    ):
        for case in cases:
            print(measure(federation.kit, case, rounds), flush=True)


if __name__ == "__main__":
    main()
