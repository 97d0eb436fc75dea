"""The whole of it on one machine: a coordinator and three hospitals, each a process of its own, with TLS and keys. Each
method runs across them and then in one process; the results must be equal to the bit.

    python -m crossward.testing.e2e [METHOD ...]

`secure:METHOD` sums its weights securely.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crossward.config.reading import config_from, to_toml
from crossward.config.schema import Config
from crossward.core.robust import Robust
from crossward.core.store import read_tree
from crossward.hospitals.flower.federation_runs import RunOptions, follow_run, start_run
from crossward.hospitals.flower.local_federation import COORDINATOR, LocalFederation, add_site_data
from crossward.hospitals.flower.processes import free_port
from crossward.hospitals.kit import FederationKit, create_federation
from crossward.runs.checkpoint_writer import CHECKPOINT
from crossward.runs.lifecycle import run as run_locally
from crossward.testing.short_runs import assert_same

METHODS = ("fedbm", "fedcd", "fednpr-per", "mh-pflgb")
SITES = ("hospital-1", "hospital-2", "hospital-3")  # as the phantom names them
Say = Callable[[str], None]
IMAGES_PER_SITE = {"train": 40, "val": 12, "test": 12, "global_test": 0}
PATIENCE = 600.0  # seconds for sites to join and to answer: these processes may share a machine with other work
MIXED_NETS: Mapping[str, Any] = {"name": ["cnn", "resnet8", "cnn"]}  # for MH-pFLGB, whose networks may differ


SECURE = "secure:"  # before the name of a method
SECURE_SETTINGS: Mapping[str, Any] = {  # no rule can look below masks, and the configuration must say so
    "privacy": {"secure_aggregation": True},
    "robust": {"rule": "none", "largest_share": 1.0},
}


def config(name: str, seed: int = 0) -> Config:
    """Two short rounds on the phantom hospitals."""
    method = name.removeprefix(SECURE)
    return config_from(
        {
            **(SECURE_SETTINGS if name.startswith(SECURE) else {}),
            "run": {"rounds": 2, "seed": seed},
            "data": {"source": "phantom", "size": 24, "sites": len(SITES), **IMAGES_PER_SITE},
            "net": MIXED_NETS if method.startswith("mh-pflgb") else {"name": "cnn"},
            "method": {"name": method},
            "train": {"batch_size": 16},
            "text": {"encoder": "random"},
            "engine": {"device": "cpu"},
        }
    )


@contextmanager
def running_federation(
    folder: Path, sites: Sequence[str] = SITES, members: Sequence[str] = SITES
) -> Iterator[LocalFederation]:
    """A federation of `members` whose coordinator is up, and these of its sites."""
    kit = create_federation(
        folder / "kit", name="rehearsal", sites=members, host="127.0.0.1", port=free_port(), encrypt_memory=True
    )
    settings = config("fedavg").canonical()
    for name in members:
        file = kit.site(name) / "site.toml"
        text = file.read_text().replace("min_class_count = 5", "min_class_count = 0")  # as in one process
        file.write_text(
            text.replace("update_noise = 2.0", "update_noise = 0.0").replace("min_images = 16", "min_images = 1")
        )
        add_site_data(file, settings["data"], settings["partition"] | {"seed": settings["run"]["seed"]}, name)
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
    plain_name = method.replace(":", "-")
    file = kit.folder / f"{plain_name}.toml"
    file.write_text(to_toml(config(method).canonical()))
    options = RunOptions(name=name or plain_name, wait=PATIENCE, deadline=PATIENCE)
    return start_run(file, kit.coordinator, [], options)


def assert_same_as_local(kit: FederationKit, folder: Path, method: str) -> float:
    """Check that the same run in one process ends with the same bits. Returns the seconds of a round in `folder`."""
    settings = config(method).canonical()
    settings["run"] |= {"name": folder.name, "out": str(kit.folder / "here")}
    if not method.startswith(SECURE):
        settings["robust"] = asdict(Robust().against_hostile_sites())  # which a run across hospitals has by itself
    local = run_locally(config_from(settings))
    assert_same(read_tree(folder / CHECKPOINT)["state"], read_tree(local.folder / CHECKPOINT)["state"], method)
    rounds = _read_rounds(folder)
    for local_round, other in zip(_read_rounds(local.folder), rounds, strict=True):
        assert local_round["loss"] == other["loss"], f"{method}: losses differ in round {local_round['round']}"
    return float(sum(line["seconds"] for line in rounds) / len(rounds))


def _read_rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def main(methods: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="crossward-e2e-") as folder, running_federation(Path(folder)) as federation:
        for method in methods:
            print(method)  # noqa: T201
            seconds = compare_with_local_run(federation.kit, method)
            print(f"  the same to the bit as in one process; {seconds:.1f} s a round")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:] or METHODS)
