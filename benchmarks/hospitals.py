"""What a federation costs beyond its computation: a coordinator and sites as processes here, with TLS and keys.

    python benchmarks/hospitals.py [--sites 2] [--rounds 8] [--only cnn-1] [--idle 30] [--smoke]

Of the coordinator's SuperLink: the share of a core that a site takes while nothing happens; seconds of the processor
for a site and round; bytes to the sites, against the run's ledger; memory after each round. And the seconds of a round
by the clock, next to the same run in one process.

`--smoke` measures one short run: it shows that the program runs, its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from crossward.config.reading import config_from, to_toml
from crossward.hospitals.flower.federation_runs import RunOptions, follow_run, start_run
from crossward.hospitals.flower.local_federation import COORDINATOR, LocalFederation
from crossward.runs.lifecycle import run as run_here
from crossward.testing.e2e import SITES, config, running_federation

TICKS = os.sysconf("SC_CLK_TCK")
SUPERLINK_MODULE = "crossward.hospitals.flower.superlink"
SAMPLE_INTERVAL = 0.1  # seconds between two looks at a run that goes on
ROUNDS_HERE = 4  # of the run in one process, which is there for its seconds
SETTLED = 8.0  # seconds after which processes that were started have nothing more to do


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


@dataclass
class Superlink:
    """The process of a coordinator's SuperLink, as the system sees it; where there is none, its figures are 0."""

    pid: int | None  # None: there is no such process
    after_rounds: list[tuple[float, float]] = field(default_factory=list)  # processor seconds, MiB

    @classmethod
    def of(cls, federation: LocalFederation) -> Superlink:
        return cls(federation.find_process(COORDINATOR, SUPERLINK_MODULE))

    @property
    def seconds(self) -> float:
        """Of the processor, that it has taken since its start."""
        if self.pid is None:
            return 0.0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def mebibytes(self) -> float:
        """Main memory that it has now."""
        if self.pid is None:
            return 0.0
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))

    @contextmanager
    def observed(self, metrics: Path) -> Iterator[None]:
        """Take its figures whenever a round ends in the block."""
        over = threading.Event()
        self.after_rounds = []

        def look() -> None:
            while not over.wait(SAMPLE_INTERVAL):
                done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
                if done > len(self.after_rounds):
                    self.after_rounds += [(self.seconds, self.mebibytes)] * (done - len(self.after_rounds))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def seconds_of_round(self) -> float:
        """Of the processor; the first round, in which everybody opens the run, is left out."""
        if len(self.after_rounds) < 2:
            return 0.0
        (first, _), (last, _) = self.after_rounds[0], self.after_rounds[-1]
        return (last - first) / (len(self.after_rounds) - 1)


def measure(federation: LocalFederation, superlink: Superlink, sites: int, case: Case, rounds: int) -> str:
    """Run a case across the sites, and with all in one process; lines with its figures."""
    kit = federation.kit
    settings = config("fedavg").canonical() | {"net": {"name": case.net}}
    settings["run"] |= {"rounds": rounds}
    settings["evaluate"] |= {"every": int(case.evaluates)}
    file = kit.folder / "case.toml"
    file.write_text(to_toml(settings))
    sent = bytes_sent(kit.coordinator)
    with superlink.observed(kit.coordinator / "runs" / case.name / "metrics.jsonl"):
        across = start_run(file, kit.coordinator, [], RunOptions(name=case.name, least=sites, wait=5.0))
        follow_run(across, lambda line: None)
    settings["run"] |= {"out": str(kit.folder / "here"), "name": case.name, "rounds": min(rounds, ROUNDS_HERE)}
    here = run_here(config_from(settings))
    what = "with evaluation" if case.evaluates else "training only"
    sent = bytes_sent(kit.coordinator) - sent
    ledger = bytes_in_ledger(across)
    memory = [round(mebibytes) for _, mebibytes in superlink.after_rounds]
    return (
        f"{case.title}, {what}: {seconds_of_round(across):.2f} s a round across {sites} sites, "
        f"{seconds_of_round(here.folder):.2f} s for {len(SITES)} in one process\n"
        f"  of the SuperLink's processor: {superlink.seconds_of_round() / sites:.2f} s a site and round\n"
        f"  to the sites: {sent / 1e6:.2f} MB, {sent / ledger:.2f} x the ledger\n"
        f"  the SuperLink's memory after each round: {' '.join(map(str, memory))} MiB"
    )


def bytes_sent(coordinator: Path) -> int:
    """Bytes that Flower has sent to sites, in all runs of a coordinator, as its database counts them."""
    database = coordinator / "superlink.db"
    if not database.exists():
        return 0
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        (count,) = connection.execute("SELECT COALESCE(SUM(bytes_sent), 0) FROM run").fetchone()
    return int(count)


def bytes_in_ledger(run: Path) -> int:
    """Bytes to the sites that a run's ledger has."""
    lines = [json.loads(line) for line in (run / "traffic.jsonl").read_text().splitlines()]
    return sum(line["bytes"] for line in lines if line["direction"] == "down")


def seconds_of_round(folder: Path) -> float:
    """The median of all rounds but the first, in which everybody opens the run."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return median(json.loads(line)["seconds"] for line in lines[1:])


def measure_idle(federation: LocalFederation, superlink: Superlink, sites: Sequence[str], seconds: float) -> str:
    """Start the sites; a line with what the SuperLink takes for each of them while nothing happens."""
    alone = idle_share(superlink, seconds)
    for site in sites:
        federation.start(site)
    share = (idle_share(superlink, seconds) - alone) / len(sites)
    return (
        f"while nothing happens, the SuperLink takes {share:.2%} of a core for a site, "
        f"and {alone:.2%} without any ({seconds:.0f} s each)"
    )


def idle_share(superlink: Superlink, seconds: float) -> float:
    time.sleep(min(SETTLED, seconds))
    before, began = superlink.seconds, time.monotonic()
    time.sleep(seconds)
    return (superlink.seconds - before) / (time.monotonic() - began)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, choices=(1, 2, 3), default=2, help="that are up")
    parser.add_argument("--rounds", type=int, default=8, help="of each run; the first is not counted")
    parser.add_argument("--only", choices=[case.name for case in CASES], help="a net; -1: with evaluation, -0: without")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds of nothing to measure")
    parser.add_argument("--smoke", action="store_true", help="one short run: does it run?")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if options.only in (None, case.name)]
    rounds, idle = options.rounds, options.idle
    if options.smoke:
        cases, rounds, idle = list(CASES[:1]), 2, 0.1
    sites = SITES[: options.sites]
    with (
        tempfile.TemporaryDirectory(prefix="crossward-") as folder,
        running_federation(Path(folder), (), members=sites) as federation,
    ):
        superlink = Superlink.of(federation)
        print(measure_idle(federation, superlink, sites, idle), flush=True)
        for case in cases:
            print(measure(federation, superlink, len(sites), case, rounds), flush=True)


if __name__ == "__main__":
    main()
