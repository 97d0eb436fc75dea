"""What the dashboard costs: the list of 1,000 runs, and following 20 that are running.

    python benchmarks/dashboard.py [--runs 1000] [--running 20] [--seconds 60] [--every 3] [--sites 12] [--classes 8]

It writes run directories into a temporary folder and starts `crossward dashboard` over it. A client reads the list's
stream and one run's, as two open pages do, while every running run ends a round every few seconds. `share` is the time
that the dashboard's processes spent on a processor, of the time that passed; other work on the machine does not disturb
it much. The bars are 1 s for the list and a share of 0.05.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from crossward.report.dashboard.catalogue import Catalogue

METRICS = ("accuracy", "f1", "balanced_accuracy", "precision", "auc", "ece", "nll")


def scores(classes: int) -> dict[str, Any]:
    """The metrics of one set, as long as those of a real run."""
    by_class = {name: [random.random() for _ in range(classes)] for name in ("recall", "f1_per_class", "support")}
    confusion = [[random.randrange(50) for _ in range(classes)] for _ in range(classes)]
    return {**{name: random.random() for name in METRICS}, **by_class, "confusion": confusion, "n": 500}


def metrics_line(round: int, sites: list[str], classes: int) -> str:
    each = {site: scores(classes) for site in sites}
    views = {"local": {"mean": scores(classes), "worst": scores(classes), "sites": each}, "global": scores(classes)}
    line = {"round": round, "clients": sites, "failures": {}, "loss": dict.fromkeys(sites, 1 / round)}
    line |= {
        "metrics": {"val": views, "test": views},
        "best": round == 1,
        "bytes": {"down": 1, "up": 1},
        "seconds": 3.0,
    }
    return json.dumps(line) + "\n"


def write_run(folder: Path, sites: list[str], classes: int, *, running: bool) -> None:
    folder.mkdir(parents=True)
    config = {"run": {"name": folder.name, "seed": 0, "rounds": 500}, "data": {"source": "drawn"}}
    config["evaluate"] = {"select": None, "view": "local"}
    about = {"format": 1, "status": "running" if running else "finished", "created": "2026-01-02T03:04:05Z"}
    about |= {"config": config, "method": {"name": "fedavg"}, "plugins": {}, "sites": sites}
    about |= {"task": {"name": "classification", "main": "f1", "classes": []}, "images": {"size": [28, 28]}}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "metrics.jsonl").write_text(metrics_line(1, sites, classes))
    if not running:
        best = {"round": 1, "metrics": json.loads(metrics_line(1, sites, classes))["metrics"]}
        (folder / "summary.json").write_text(json.dumps({"rounds": 1, "best": best, "last": best}))


def measure_list(root: Path) -> dict[str, float]:
    """Seconds of the first look at the folder, and of a second one."""
    catalogue = Catalogue(root)
    figures = {}
    for name in ("first", "again"):
        clock, processor = time.perf_counter(), time.process_time()
        catalogue.refresh()
        figures[name] = time.perf_counter() - clock
        figures[f"{name}_process"] = time.process_time() - processor
    return figures


@contextmanager
def dashboard(root: Path) -> Iterator[tuple[psutil.Process, str]]:
    """The command in a process of its own, and its address."""
    command = [sys.executable, "-m", "crossward", "dashboard", str(root), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield psutil.Process(process.pid), process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate()


def read_stream(address: str, cookies: httpx.Cookies, end: float, received: list[int]) -> None:
    with (
        httpx.Client(cookies=cookies, timeout=30) as client,
        client.stream("GET", address) as stream,
    ):
        for line in stream.iter_lines():
            received.append(len(line))
            if time.monotonic() > end:
                return


def processor_seconds(process: psutil.Process) -> float:
    everybody = [process, *process.children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in everybody)


def measure_following(root: Path, running: list[Path], options: argparse.Namespace) -> dict[str, float]:
    sites = [f"hospital-{number}" for number in range(1, options.sites + 1)]
    with dashboard(root) as (process, address):
        base = address.partition("?")[0]
        with httpx.Client(timeout=30) as client:
            client.get(address)
            first = client.get(f"{base}api/runs").json()["runs"]
            id = next(run["id"] for run in first if run["live"])
            cookies = client.cookies
        end = time.monotonic() + options.seconds
        received: list[int] = []
        streams = [f"{base}events/runs", f"{base}events/run/{id}"]
        threads = [threading.Thread(target=read_stream, args=(each, cookies, end, received)) for each in streams]
        for thread in threads:
            thread.start()
        time.sleep(min(3.0, options.seconds / 4))  # both pages are open
        before, clock = processor_seconds(process), time.monotonic()
        round = 1
        while time.monotonic() < end:
            round += 1
            for folder in running:
                with (folder / "metrics.jsonl").open("a") as file:
                    file.write(metrics_line(round, sites, options.classes))
            time.sleep(max(0.0, min(options.every, end - time.monotonic())))
        spent, passed = processor_seconds(process) - before, time.monotonic() - clock
    for thread in threads:
        thread.join(30)
    return {"share": spent / passed, "seconds": passed, "rounds": round - 1, "received_bytes": sum(received)}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("runs", 1000), ("running", 20), ("sites", 12), ("classes", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, seconds in (("seconds", 60.0), ("every", 3.0)):
        parser.add_argument(f"--{name}", type=float, default=seconds)
    options = parser.parse_args(arguments)
    sites = [f"hospital-{number}" for number in range(1, options.sites + 1)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(options.runs):
            write_run(root / "finished" / f"run-{number}", sites, options.classes, running=False)
        running = [root / "running" / f"run-{number}" for number in range(options.running)]
        for place in running:
            write_run(place, sites, options.classes, running=True)
        figures = {"runs": options.runs + options.running, "list": measure_list(root)}
        figures["following"] = measure_following(root, running, options)
    print(json.dumps(figures))
    return figures


if __name__ == "__main__":
    main()
