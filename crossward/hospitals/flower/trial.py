"""`crossward federation try`: a federation of three phantom hospitals on this machine, with TLS and keys, and a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossward.config.reading import to_toml
from crossward.hospitals.flower.federation_runs import RunOptions, start_run
from crossward.hospitals.flower.local_federation import COORDINATOR, LocalFederation, add_site_data
from crossward.hospitals.flower.processes import free_port
from crossward.hospitals.kit import create_federation

SITES = {"north": "hospital-1", "south": "hospital-2", "west": "hospital-3"}  # name -> the phantom's name of it
RUN_NAME = "first-try"
PHANTOM: dict[str, Any] = {
    "source": "phantom",
    "size": 28,
    "sites": len(SITES),
    "train": 120,
    "val": 40,
    "test": 40,
    "global_test": 0,
}
PARTITION: dict[str, Any] = {"kind": "site", "seed": 0}
Say = Callable[[str], None]


def trial_settings(rounds: int) -> dict[str, Any]:
    """The configuration of the run, as a person would write it."""
    return {
        "data": {"size": PHANTOM["size"]},
        "net": {"name": "cnn"},
        "method": {"name": "fedavg"},
        "train": {"epochs": 4, "lr": 0.02, "momentum": 0.9, "batch_size": 16},
        "run": {"rounds": rounds},
    }


@contextmanager
def running_trial(folder: Path, rounds: int, say: Say) -> Iterator[tuple[LocalFederation, Path]]:
    """A federation in a folder that is new, and the directory of its run, which has begun to wait for its sites. The
    sites are being started. All of it ends with the block."""
    kit = create_federation(
        folder, name="trial", sites=list(SITES), host="127.0.0.1", port=free_port(), encrypt_memory=True
    )
    for name, take in SITES.items():
        add_site_data(kit.site(name) / "site.toml", PHANTOM, PARTITION, take)
    file = folder / "trial.toml"
    file.write_text(to_toml(trial_settings(rounds)))
    federation = LocalFederation(kit)
    try:
        say(f"starting the coordinator, with a key for each of {', '.join(SITES)}: crossward coordinator up …")
        federation.start(COORDINATOR)
        say("starting a run, which waits for its sites: crossward federation run trial.toml …")
        run = start_run(file, kit.coordinator, [], RunOptions(name=RUN_NAME))
        for name in SITES:
            say(f"starting {name}: crossward site up …")
            federation.spawn(name)
        yield federation, run
    finally:
        federation.stop()
