"""What a process does with memory that it has freed."""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys

import pytest
import torch

from crossward.engines.local import LocalEngine
from crossward.freed_memory import BUSY_LOOKS, INTERVAL, Rests
from crossward.runs.sites import RunSites

MEASURE = """
import json, resource, sys
from crossward.freed_memory import keep_freed_memory, return_freed_memory

def page_faults_of_payload():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [b"x" * 7_000_000 for _ in range(6)]
    whole = b"".join(pieces)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def mebibytes():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))

if sys.argv[1] == "keep":
    keep_freed_memory()
page_faults_of_payload()
again = page_faults_of_payload()
kept = mebibytes()
return_freed_memory()
print(json.dumps({"faults": again, "kept": kept, "returned": mebibytes()}))
"""


class Meter:
    """A clock, or what a process has taken of the processor."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def look(rests: Rests, clock: Meter, processor: Meter, taken: float) -> bool:
    clock.seconds += INTERVAL
    processor.seconds += taken
    return rests.may_return_memory()


def test_memory_is_returned_once_in_each_rest():
    clock, processor = Meter(), Meter()
    rests = Rests(clock, processor)
    looks = [look(rests, clock, processor, taken) for taken in (0.01, 2.0, 2.0, 0.01, 0.01, 1.0, 0.0)]
    assert looks == [False, False, False, True, False, False, True]


def test_a_process_that_never_rests_returns_memory_every_half_minute():
    clock, processor = Meter(), Meter()
    rests = Rests(clock, processor)
    looks = [look(rests, clock, processor, 2.5) for _ in range(2 * BUSY_LOOKS)]
    assert [number for number, due in enumerate(looks, 1) if due] == [BUSY_LOOKS, 2 * BUSY_LOOKS]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to do with freed memory")
def test_the_system_does_not_clear_the_pages_of_each_payload_anew():
    """84 MB are 20,000 pages. Kept, none of them is asked for a second time; returned, they are the system's again."""
    without, kept = (measure(what) for what in ("without", "keep"))
    assert without["faults"] > 10_000
    assert kept["faults"] < 200
    assert kept["kept"] - kept["returned"] > 70


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to do with freed memory")
def test_an_engine_keeps_the_memory_of_each_step_for_the_next():
    engine = LocalEngine(RunSites.__new__(RunSites))  # whoever its sites are
    try:
        for _ in range(4):  # until each has found its place in the heap
            activations()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        activations()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 6_000
    finally:
        engine.close()


def activations() -> None:
    """Allocates 96 MB, 24,000 pages, and frees them."""
    [torch.ones(4_000_000) for _ in range(6)]


def measure(what: str) -> dict[str, float]:
    output = subprocess.run([sys.executable, "-c", MEASURE, what], capture_output=True, text=True, check=True).stdout
    return dict(json.loads(output))
