"""`crossward site up`: a hospital's worker and its SuperNode, looked after until they are stopped."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from crossward.errors import ConfigError, RunError
from crossward.hospitals.flower.client_forkserver import VARIABLE
from crossward.hospitals.flower.processes import Place, check_reachable, free_port, stop
from crossward.hospitals.kit import SiteKit, read_site
from crossward.hospitals.messages import address
from crossward.hospitals.site_worker import running

PYTHON = (sys.executable, "-m")
STARTING = 120.0  # seconds for a worker: it imports torch
REFUSED = "Exit Code: 305"  # what a SuperNode says whose key is not known, or is that of one still connected
STARTED = "Starting Flower SuperNode"
UP = "up"  # the fingerprint of this site's key, from its start to its orderly end
AGAIN = 3.0  # seconds
GIVEN_UP = 300.0  # seconds after which a coordinator has surely given up a site that crashed
LAST = 40  # lines of a log that tell how a process ended
Say = Callable[[str], None]


@dataclass(frozen=True)
class Checked:
    """What a site finds in its own images."""

    classes: tuple[str, ...]
    counts: tuple[int, ...]  # training and held-out images of each class; pixels of masks
    images: int
    left_out: tuple[str, ...]  # files that cannot be read


def own_settings(kit: SiteKit, data: Path | None) -> dict[str, Any]:
    """What the site says for itself; a path that was given goes before [data]."""
    own = dict(kit.own)
    if data is not None:
        if not data.exists():
            raise ConfigError(f"--data {data}: there is no such file or folder")
        source = {".csv": "table", ".npz": "npz"}.get(data.suffix, "folder")
        own["data"] = {"source": source, "path": str(data.absolute())}
    if not own.get("data"):
        raise ConfigError(
            f"{kit.folder / 'site.toml'} has no [data], and --data is not given: where are the images?",
            hint="Give a folder of class-name/image files, a .csv table, or an .npz file by --data.",
        )
    return own


def checked_data(own: Mapping[str, Any]) -> Checked:
    """Read the images once, here, before any coordinator asks for them."""
    import torch

    from crossward.config.reading import checked
    from crossward.data.sources.collect import collect

    config = checked({"data": {"bad_files": "quarantine", **own["data"]} if _may_quarantine(own) else own["data"]})
    collection, left_out = collect(config)
    targets = collection.targets.flatten().long()
    counts = torch.bincount(targets, minlength=len(collection.classes)).tolist()
    return Checked(collection.classes, tuple(counts), len(collection), tuple(left_out))


def _may_quarantine(own: Mapping[str, Any]) -> bool:
    from crossward.data.sources.settings import SOURCES, Images

    return "bad_files" in SOURCES.get(str(own["data"].get("source", "phantom")), Images).model_fields


@contextmanager
def site_up(folder: Path, own: Mapping[str, Any], *, insecure: bool, say: Say) -> Iterator[Callable[[], None]]:
    """The site is up in this block; what is yielded looks after it, and raises when it cannot go on."""
    kit = read_site(folder)
    check_reachable(kit.address, None if insecure else kit.ca)
    place = Place(kit.folder.absolute())
    place.know(kit.address, None if insecure else kit.ca)
    with tempfile.TemporaryDirectory(prefix="crossward-") as short:  # the path of a socket may have 107 letters
        socket = Path(address(str(Path(short) / "worker")))
        fork = Path(short) / "forks"
        commands = {
            "worker": [*PYTHON, "crossward.hospitals.site_worker", str(place.folder), str(socket), json.dumps(own)],
            "forks": [*PYTHON, "crossward.hospitals.flower.client_forkserver", str(fork)],
            "supernode": [*PYTHON, "crossward.hospitals.flower.supernode", *_options(kit, socket, insecure)],
        }
        more = {VARIABLE: str(fork), "OMP_NUM_THREADS": "1"}

        def started(name: str) -> subprocess.Popen[bytes]:
            return place.start(commands[name], f"{name}.log", more)

        processes: dict[str, subprocess.Popen[bytes]] = {}
        crashed, since, refusals = _crashed(place, kit), time.monotonic(), count()
        try:
            processes |= {name: started(name) for name in ("worker", "forks")}
            _wait(processes["worker"], socket, place)
            processes["supernode"] = started("supernode")

            def look() -> None:
                if (code := processes["supernode"].poll()) is not None:
                    if not (crashed and _refused(place) and time.monotonic() < since + GIVEN_UP):
                        raise RunError(_ended(code, kit, place))
                    if next(refusals) == 0:
                        say("refused: the coordinator may not have noticed that this site crashed; trying again")
                    time.sleep(AGAIN)
                    processes["supernode"] = started("supernode")
                for name in ("worker", "forks"):
                    if (code := processes[name].poll()) is not None:
                        say(f"its process {name} ended ({code}) and is started again: {name}.log may say why")
                        processes[name] = started(name)

            yield look
        finally:
            for process in reversed(processes.values()):
                stop(process)
            (place.folder / UP).unlink(missing_ok=True)


def _options(kit: SiteKit, socket: Path, insecure: bool) -> list[str]:
    safe = ["--root-certificates", str(kit.ca.absolute()), "--auth-supernode-private-key", str(kit.key.absolute())]
    return [
        *("--superlink", kit.address, *(["--insecure"] if insecure else safe)),
        *("--host", "127.0.0.1", "--port", str(free_port()), "--node-config", f"socket={json.dumps(str(socket))}"),
    ]


def _wait(worker: subprocess.Popen[bytes], socket: Path, place: Place) -> None:
    end = time.monotonic() + STARTING
    while not running(socket):
        if worker.poll() is not None or time.monotonic() > end:
            said = (place.folder / "worker.log").read_text(errors="replace").strip().splitlines()
            raise RunError("the site's worker did not start", details=said[-6:], hint="worker.log has the whole of it.")
        time.sleep(0.1)


def _crashed(place: Place, kit: SiteKit) -> bool:
    """Whether this site, with this key, was up and did not end in order. The coordinator takes a minute or two to give
    up a site that crashed, and refuses it until then just as one whose key it does not know."""
    mark, now = place.folder / UP, hashlib.sha256(_public(kit).read_bytes()).hexdigest()
    before = mark.read_text() if mark.exists() else ""
    mark.write_text(now)
    return before == now


def _public(kit: SiteKit) -> Path:
    return kit.key.with_name(f"{kit.key.name}.pub")


def _last(place: Place) -> list[str]:
    """How the log of the SuperNode's last start ends."""
    said = (place.folder / "supernode.log").read_text(errors="replace").strip()
    return said[max(said.rfind(STARTED), 0) :].splitlines()[-LAST:]


def _refused(place: Place) -> bool:
    return any(REFUSED in line for line in _last(place))


def _ended(code: int, kit: SiteKit, place: Place) -> str:
    if _refused(place):
        return (
            f"the coordinator at {kit.address} does not know this site's key, or {kit.name} is connected from "
            f"elsewhere, or the two clocks differ: is {kit.name}.pub in its folder sites, and was it started since?"
        )
    return "\n".join(
        [f"the SuperNode ended ({code}); supernode.log says:", *(f"  {line}" for line in _last(place)[-6:])]
    )
