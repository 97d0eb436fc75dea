"""What a round across hospitals costs beyond its computation: a coordinator and two sites as processes on this machine,
with TLS and keys. Nothing here is a test.

    python benchmarks/hospitals.py [--rounds 8]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from crossward.config import toml
from crossward.config.reading import checked
from crossward.hospitals.flower.federation_runs import Asked, begin, follow
from crossward.runs.lifecycle import run as run_here
from crossward.testing.e2e import SITES, config, run_sites

CASES: dict[str, dict[str, Any]] = {  # the second is 44 MB
    "tiny cnn": {"net": {"name": "cnn"}},
    "ResNet-18": {"net": {"name": "resnet18"}},
}


def seconds(folder: Path) -> list[float]:
    """Of each round but the first, in which everybody opens the run."""
    return [json.loads(line)["seconds"] for line in (folder / "metrics.jsonl").read_text().splitlines()][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="crossward-") as folder, run_sites(Path(folder), SITES[:2]) as federation:
        kit = federation.kit
        for name, case in CASES.items():
            for every in (0, 1):
                settings = config("fedavg").canonical() | case
                settings["run"] |= {"rounds": rounds}
                settings["evaluate"] |= {"every": every}
                file = kit.folder / "case.toml"
                file.write_text(toml.dumps(settings))
                label = f"{name.split()[0]}-{every}".lower()
                there = begin(file, kit.coordinator, [], Asked(name=label, least=2, wait=5.0))
                follow(there, lambda line: None)
                settings["run"] |= {"out": str(kit.folder / "here"), "name": label}
                here = run_here(checked(settings))
                far, near = median(seconds(there)), median(seconds(here.folder))
                how = "with evaluation" if every else "training only"
                print(f"{name}, {how}: {far:.2f} s a round across two sites, {near:.2f} s for three in one process")


if __name__ == "__main__":
    main()
