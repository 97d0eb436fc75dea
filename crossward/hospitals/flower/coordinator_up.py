"""`crossward coordinator up`: the SuperLink of a federation, with its sites' keys, looked after until it is stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossward.disk import write_atomically
from crossward.errors import RunError
from crossward.hospitals.certificates import expiring
from crossward.hospitals.flower.app_bundle import bundled
from crossward.hospitals.flower.processes import LINK, Place, check_free, stop, wait_for
from crossward.hospitals.kit import CoordinatorKit, read_coordinator
from crossward.runs.run_directory import TERMS, RunDir

ENDED = ("finished", "failed", "stopped")
FLOWER = "flower.json"  # beside a run: by which number Flower knows it
REGISTERED = "registered.json"  # site -> its key, and the node that has it
SECURE = "secure"  # is there while nodes are known by their keys
NEW_RUN = "0.5"  # seconds between two looks for a run to start
Say = Callable[[str], None]


@contextmanager
def coordinator_up(folder: Path, *, insecure: bool, say: Say) -> Iterator[Callable[[], None]]:
    """The coordinator is up in this block; what is yielded looks after it, and raises when it cannot go on."""
    kit = read_coordinator(folder)
    for warning in expiring(kit.certificate):
        say(warning)
    check_free("0.0.0.0", kit.port)
    place = at(kit, insecure=insecure)
    (place.home / SECURE).unlink(missing_ok=True)
    if not _database(kit).exists():  # a SuperLink that begins anew knows nobody
        (place.home / REGISTERED).unlink(missing_ok=True)
    link = place.start(_superlink(kit, insecure), "superlink.log", {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": NEW_RUN})
    try:
        wait_for(f"127.0.0.1:{kit.port}", link)
        if not insecure:
            _register(kit, place, say)
            (place.home / SECURE).touch()
        for run in unfinished(folder):
            say(f"going on with {run.name}")
            submit(place, run)

        def look() -> None:
            if (code := link.poll()) is not None:
                said = (place.folder / "superlink.log").read_text(errors="replace").strip().splitlines()
                raise RunError(f"the SuperLink ended ({code})", details=said[-6:], hint="superlink.log has it all.")

        yield look
    finally:
        stop(link)


def at(kit: CoordinatorKit, *, insecure: bool) -> Place:
    """The coordinator's folder, from which Flower's commands reach it."""
    place = Place(kit.folder.absolute())
    place.know(f"127.0.0.1:{kit.port}", None if insecure else kit.ca)
    return place


def submit(place: Place, run: Path) -> None:
    """Have Flower start the coordinator's half of a run, or go on with it."""
    app = bundled(place.home / "app")
    options = f"folder={json.dumps(str(run.absolute()))}"
    told = json.loads(place.flwr("run", str(app), LINK, "--run-config", options, "--format", "json"))
    if not told.get("success", True) or "run-id" not in told:
        raise RunError("Flower did not start the run", details=[json.dumps(told)])
    RunDir(run).write(FLOWER, {"run": str(told["run-id"])})


def unfinished(folder: Path) -> list[Path]:
    """Runs that were cut off."""
    found = sorted((folder / "runs").glob(f"*/{TERMS}"))
    return [file.parent for file in found if status(file.parent) not in ENDED]


def status(run: Path) -> str:
    if (run / "run.json").exists():
        return str(RunDir(run).about["status"])
    return "failed" if (run / "failed.json").exists() else "waiting"


def nodes(place: Place) -> list[dict[str, Any]]:
    """The SuperNodes that Flower knows."""
    told = json.loads(place.flwr("supernode", "list", LINK, "--format", "json"))
    return list(told.get("nodes", []))


def _register(kit: CoordinatorKit, place: Place, say: Say) -> None:
    """Every site's key, once: the SuperLink remembers them. A key that was replaced, or whose site has left, is
    forgotten there."""
    done = place.home / REGISTERED
    known: dict[str, dict[str, str]] = json.loads(done.read_text()) if done.exists() else {}
    keys = {site: file.read_text() for site, file in kit.public_keys.items()}
    for site in [site for site, at in known.items() if keys.get(site) != at["key"]]:
        place.flwr("supernode", "unregister", known.pop(site)["node"], LINK)
        write_atomically(done, json.dumps(known).encode())
        say(f"the former key of {site} is no longer accepted")
    for site in [site for site in keys if site not in known]:
        told = place.flwr("supernode", "register", str(kit.public_keys[site].absolute()), LINK, "--format", "json")
        known[site] = {"key": keys[site], "node": str(json.loads(told)["node-id"])}
        write_atomically(done, json.dumps(known).encode())
        say(f"registered {site}")


def bound(home: Path) -> dict[str, int]:
    """By which of Flower's nodes each site speaks, where the SuperLink knows them by their keys."""
    if not (home / SECURE).exists():
        return {}
    return {site: int(at["node"]) for site, at in json.loads((home / REGISTERED).read_text()).items()}


def _database(kit: CoordinatorKit) -> Path:
    return kit.folder.absolute() / "superlink.db"


def _superlink(kit: CoordinatorKit, insecure: bool) -> list[str]:
    files = {"ca-certfile": kit.ca, "certfile": kit.certificate, "keyfile": kit.key}
    safe = [word for name, file in files.items() for word in (f"--ssl-{name}", str(file.absolute()))]
    return [
        *(sys.executable, "-m", "crossward.hospitals.flower.superlink", "--host", "0.0.0.0", "--port", str(kit.port)),
        *("--database", str(_database(kit))),
        *(["--insecure"] if insecure else [*safe, "--enable-supernode-auth"]),
    ]
