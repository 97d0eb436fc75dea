"""The dashboard over a folder, in this process and over HTTP, and a drawn run that goes on when a test says so."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn
from drawn_runs import Drawn, draw_runs
from fastapi.testclient import TestClient

from crossward.hospitals.federation_state import Activity, FederationState, Phase, SiteState
from crossward.report.dashboard.access import Access
from crossward.report.dashboard.app import make_app
from crossward.report.dashboard.catalogue import Catalogue
from crossward.report.dashboard.watch import Watch
from crossward.runs.run_files import FEDERATION_STATE

HOST = "http://127.0.0.1"


@dataclass
class RunningRun:
    """A drawn run that goes on when a test says so."""

    folder: Path
    lines: list[str]
    done: int = 0

    def begin(self, rounds: int) -> None:
        (self.folder / "metrics.jsonl").write_text("".join(self.lines[:rounds]))
        self.done = rounds

    def go_on(self, rounds: int = 1) -> None:
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write("".join(self.lines[self.done : self.done + rounds]))
        self.done += rounds


def draw_running(
    folder: Path, *, rounds: int = 12, done: int = 3, sites: tuple[str, ...] = ("north", "south")
) -> RunningRun:
    [place] = draw_runs(folder, Drawn(methods=("fedavg",), seeds=(0,), rounds=rounds, sites=sites, status="running"))
    lines = []
    for line in map(json.loads, (place / "metrics.jsonl").read_text().splitlines()):
        line["loss"] = dict.fromkeys(sites, 1.0 / line["round"])
        if line["round"] == 2:
            line["failures"] = {sites[-1]: "timed out after 30 s"}
        lines.append(json.dumps(line) + "\n")
    running = RunningRun(place, lines)
    running.begin(done)
    return running


def write_state(folder: Path, lost: str = "south", **changes: object) -> None:
    """What a coordinator knows in round 6: north has done its part, the other is away."""
    now = time.time()
    north = SiteState(Activity.DONE, True, now, step="train", round=6, seconds=12.0, bytes=1_500_000)
    other = SiteState(
        Activity.LOST, False, now - 12, now + 18, step="train", round=6, why="not connected", left_out=2
    )  # fmt: skip
    sites = {"north": north, lost: other}
    state = FederationState("alps", Phase.ROUNDS, now - 20, round=6, rounds=20, written=now, sites=sites)
    (folder / FEDERATION_STATE).write_text(json.dumps(replace(state, **changes).document()))


@dataclass
class OpenDashboard:
    client: TestClient
    watch: Watch
    access: Access

    def id(self, name: str) -> str:
        runs = self.client.get("/api/runs").json()["runs"]
        return next(run["id"] for run in runs if run["name"] == name)


@contextmanager
def opened(root: Path) -> Iterator[OpenDashboard]:
    watch = Watch(Catalogue(root))
    access = Access(cookie="crossward-test")
    with TestClient(make_app(watch, access), base_url=HOST) as client:
        assert client.get("/", params={"token": access.token}).status_code == 200
        yield OpenDashboard(client, watch, access)


@contextmanager
def served(root: Path, port: int = 0) -> Iterator[str]:
    """The dashboard over HTTP, in a thread; gives the address with the token."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    port = listener.getsockname()[1]
    watch = Watch(Catalogue(root))
    access = Access(cookie=f"crossward-{port}")
    server = uvicorn.Server(
        uvicorn.Config(make_app(watch, access), log_level="error", timeout_graceful_shutdown=1, ws="none")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{port}/?token={access.token}"
    watch.stopping = True
    server.should_exit = True
    thread.join(20)
    listener.close()


@contextmanager
def visits(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """A function that opens the list of runs; what pages complained of and asked for is checked in the end."""
    opened: list[Any] = []
    complaints: list[str] = []
    requests: list[str] = []

    def go(*, width: int = 1200, scheme: str = "light", bypass: bool = False) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=bypass)
        view = context.new_page()
        opened.append(context)
        view.on("console", lambda message: complaints.append(message.text))
        view.on("pageerror", lambda error: complaints.append(str(error)))
        view.on("dialog", lambda dialog: complaints.append(dialog.message))
        view.on("request", lambda request: requests.append(request.url))
        view.goto(address)
        view.wait_for_selector("html[data-listed]")
        return view

    yield go
    for context in opened:
        context.close()
    assert complaints == []
    base = address.partition("?")[0]
    assert [url for url in requests if not url.startswith((base, "blob:", "data:"))] == []


def until(view: Any, condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for a condition; the page's policy forbids Playwright's own wait_for_function."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        view.wait_for_timeout(50)
