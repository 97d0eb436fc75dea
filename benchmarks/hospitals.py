"""What a federation costs beyond its computation: a coordinator and sites as processes here, with TLS and keys.

    python benchmarks/hospitals.py [--sites 2] [--rounds 8] [--only cnn-1] [--idle 30] [--smoke]

Of the coordinator's SuperLink: the share of a core that a site takes while nothing happens; seconds of the processor
for a site and round; bytes to the sites, against the run's ledger; memory after each round. Of all processes, those of
the sites among them: seconds of the processor for a round, and the memory of a site while nothing happens. And the
seconds of a round by the clock, next to the same run in one process.

What 44 MB add is the difference between a tiny cnn and the same with 44 MB of weights behind it, less the difference
that these make to the training of one site in one process: `--only cnn-0 wide-0`.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from crossward.config.reading import config_from, to_toml
from crossward.hospitals.flower.federation_runs import RunOptions, follow_run, start_run
from crossward.hospitals.flower.local_federation import COORDINATOR, LocalFederation, descendants
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


NETS = {
    "cnn": {"name": "cnn"},
    "wide": {"name": "cnn", "projection": 119_750},  # 44.7 MB, and nearly all of the training is that of the tiny one
    "resnet18": {"name": "resnet18"},  # 44.7 MB
}
TITLES = {"cnn": "tiny cnn", "wide": "cnn of 44.7 MB", "resnet18": "ResNet-18"}
CASES = tuple(Case(title, net, evaluates) for net, title in TITLES.items() for evaluates in (False, True))


@dataclass(frozen=True)
class Rounds:
    """What a case took."""

    across: float  # seconds of a round across the sites, by the clock
    here: float  # of all sites in one process
    processors: float  # seconds of all processors for a round across the sites

    def added_to(self, tiny: Rounds) -> str:
        """What is more than in another case, without what training takes more at a site; all sites train at once."""
        training = (self.here - tiny.here) / len(SITES)
        return (
            f"{self.across - tiny.across - training:.2f} s a round by the clock, the {training:.2f} s left out that "
            f"training takes more at a site; {self.processors - tiny.processors:.2f} s of all processors, with training"
        )


def seconds_of_process(pid: int) -> float:
    """Of the processor, that a process has taken since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def proportional_megabytes(pids: Iterable[int]) -> float:
    """Main memory of processes; what several share counts in proportion."""
    kib = 0
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kib += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib * 1024 / 1e6


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
        return 0.0 if self.pid is None else seconds_of_process(self.pid)

    @property
    def mebibytes(self) -> float:
        """Main memory that it has now."""
        if self.pid is None:
            return 0.0
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))

    @contextmanager
    def observed(self, metrics: Path, everything: AllProcesses) -> Iterator[None]:
        """Take its figures, and those of all processes, whenever a round ends in the block."""
        over = threading.Event()
        self.after_rounds = []

        def look() -> None:
            while not over.wait(SAMPLE_INTERVAL):
                seconds = everything.look()
                new = (metrics.read_bytes().count(b"\n") if metrics.exists() else 0) - len(self.after_rounds)
                if new > 0:
                    self.after_rounds += [(self.seconds, self.mebibytes)] * new
                    everything.after_rounds += [seconds] * new

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


@dataclass
class AllProcesses:
    """Seconds of the processor of everything that a federation has started, also of what has ended meanwhile."""

    federation: LocalFederation
    after_rounds: list[float] = field(default_factory=list)
    _seconds: dict[int, float] = field(default_factory=dict)  # of each process

    def look(self) -> float:
        for pid in self.pids():
            with suppress(OSError):
                self._seconds[pid] = seconds_of_process(pid)
        return sum(self._seconds.values())

    def pids(self) -> list[int]:
        started = [process.pid for process in getattr(self.federation, "processes", {}).values()]
        found = list(started)
        for pid in started:
            with suppress(OSError):
                found += descendants(pid)
        return found

    def seconds_of_round(self) -> float:
        """The first round, in which everybody opens the run, is left out."""
        if len(self.after_rounds) < 2:
            return 0.0
        return (self.after_rounds[-1] - self.after_rounds[0]) / (len(self.after_rounds) - 1)


def measure(federation: LocalFederation, superlink: Superlink, sites: int, case: Case, rounds: int) -> Rounds:
    """Run a case across the sites, and with all in one process; prints lines with its figures."""
    kit = federation.kit
    everything = AllProcesses(federation)
    settings = config("fedavg").canonical() | {"net": NETS[case.net]}
    settings["run"] |= {"rounds": rounds}
    settings["evaluate"] |= {"every": int(case.evaluates)}
    file = kit.folder / "case.toml"
    file.write_text(to_toml(settings))
    sent = bytes_sent(kit.coordinator)
    with superlink.observed(kit.coordinator / "runs" / case.name / "metrics.jsonl", everything):
        across = start_run(file, kit.coordinator, [], RunOptions(name=case.name, least=sites, wait=5.0))
        follow_run(across, lambda line: None)
    settings["run"] |= {"out": str(kit.folder / "here"), "name": case.name, "rounds": min(rounds, ROUNDS_HERE)}
    here = run_here(config_from(settings))
    what = "with evaluation" if case.evaluates else "training only"
    sent = bytes_sent(kit.coordinator) - sent
    ledger = bytes_in_ledger(across)
    memory = [round(mebibytes) for _, mebibytes in superlink.after_rounds]
    took = Rounds(seconds_of_round(across), seconds_of_round(here.folder), everything.seconds_of_round())
    print(
        f"{case.title}, {what}: {took.across:.2f} s a round across {sites} sites, "
        f"{took.here:.2f} s for {len(SITES)} in one process\n"
        f"  of the SuperLink's processor: {superlink.seconds_of_round() / sites:.2f} s a site and round; "
        f"of all processes: {took.processors:.2f} s a round\n"
        f"  to the sites: {sent / 1e6:.2f} MB, {sent / ledger:.2f} x the ledger\n"
        f"  the SuperLink's memory after each round: {' '.join(map(str, memory))} MiB",
        flush=True,
    )
    return took


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
    started = getattr(federation, "processes", {})
    pids = [[started[site].pid, *descendants(started[site].pid)] for site in sites if site in started]
    memory = " ".join(f"{proportional_megabytes(each):.0f} MB in {len(each)} processes" for each in pids[:1])
    return (
        f"while nothing happens, the SuperLink takes {share:.2%} of a core for a site, "
        f"and {alone:.2%} without any ({seconds:.0f} s each); a site takes {memory or 'nothing'}"
    )


def print_added(took: Mapping[Case, Rounds]) -> None:
    """Print what networks of 44.7 MB add to a round of the tiny one, where both were measured."""
    tiny = {case.evaluates: rounds for case, rounds in took.items() if case.net == "cnn"}
    for case, rounds in took.items():
        if case.net != "cnn" and case.evaluates in tiny:
            what = "with evaluation" if case.evaluates else "training only"
            print(f"{case.title}, {what}, adds {rounds.added_to(tiny[case.evaluates])}", flush=True)


def idle_share(superlink: Superlink, seconds: float) -> float:
    time.sleep(min(SETTLED, seconds))
    before, began = superlink.seconds, time.monotonic()
    time.sleep(seconds)
    return (superlink.seconds - before) / (time.monotonic() - began)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, choices=(1, 2, 3), default=2, help="that are up")
    parser.add_argument("--rounds", type=int, default=8, help="of each run; the first is not counted")
    names = [case.name for case in CASES]
    parser.add_argument(
        "--only", choices=names, nargs="+", default=names, help="nets; -1: with evaluation, -0: without"
    )
    parser.add_argument("--idle", type=float, default=30.0, help="seconds of nothing to measure")
    parser.add_argument("--smoke", action="store_true", help="one short run: does it run?")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if case.name in options.only]
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
        took = {case: measure(federation, superlink, len(sites), case, rounds) for case in cases}
        print_added(took)


if __name__ == "__main__":
    main()
