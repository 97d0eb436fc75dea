"""The memory of the machine as its files say it, and the budgets that follow from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from crossward.core import machine_memory, memory_budgets
from crossward.core.cores import WORKERS
from crossward.core.memory_budgets import LEAST, budget, budgets
from crossward.core.store import TreeStore

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine({"meminfo": ..., "cgroups/memory.max": ...}) is a machine with these files and no others."""

    def describe(files: dict[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(machine_memory, "MEMINFO", tmp_path / "meminfo")
        monkeypatch.setattr(machine_memory, "OWN_CGROUPS", tmp_path / "own")
        monkeypatch.setattr(machine_memory, "CGROUPS", tmp_path / "cgroups")

    return describe


MEMINFO = f"MemTotal:  {64 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {40 * GIB // 1024} kB\n"


def test_this_machine():
    total = machine_memory.total_bytes()
    available = machine_memory.available_bytes()
    if Path("/proc/meminfo").exists():
        assert total is not None
        assert available is not None
        assert 1 << 20 < available <= total
    assert machine_memory.process_bytes(os.getpid()) > 1e6
    assert machine_memory.process_bytes(2**30) == 0
    assert machine_memory.peak_bytes() >= 1e6
    machine_memory.forget_peak()
    assert machine_memory.peak_bytes() >= 1e6


def test_a_machine_without_limits(machine):
    machine({"meminfo": MEMINFO, "own": "0::/\n", "cgroups/memory.max": "max\n"})
    assert machine_memory.total_bytes() == 64 * GIB
    assert machine_memory.available_bytes() == 40 * GIB


def test_a_container_has_what_its_group_and_the_groups_around_it_allow(machine):
    machine({
        "meminfo": MEMINFO,
        "own": "0::/job/step\n",
        "cgroups/job/memory.max": f"{16 * GIB}\n",
        "cgroups/job/memory.current": f"{15 * GIB}\n",
        "cgroups/job/memory.stat": f"anon 5\ninactive_file {2 * GIB}\n",
        "cgroups/job/step/memory.max": f"{32 * GIB}\n",
        "cgroups/job/step/memory.current": "0\n",
    })  # fmt: skip
    assert machine_memory.total_bytes() == 16 * GIB
    assert machine_memory.available_bytes() == 3 * GIB


def test_groups_of_the_first_version(machine):
    machine({
        "meminfo": MEMINFO,
        "own": "4:memory:/elsewhere\n1:cpu:/\n",
        "cgroups/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
        "cgroups/memory/memory.usage_in_bytes": f"{9 * GIB}\n",
    })  # fmt: skip
    assert machine_memory.total_bytes() == 8 * GIB
    assert machine_memory.available_bytes() == 0


def test_no_limit_in_the_first_version_is_a_large_number(machine):
    machine(
        {"meminfo": MEMINFO, "own": "4:memory:/\n", "cgroups/memory/memory.limit_in_bytes": "9223372036854771712\n"}
    )
    assert machine_memory.total_bytes() == 64 * GIB


def test_a_system_that_says_nothing(machine):
    machine({})
    assert machine_memory.total_bytes() is None
    assert machine_memory.available_bytes() is None
    assert budget("replies") == 256 << 20


def test_budgets_follow_the_machine(machine, monkeypatch):
    machine({"meminfo": MEMINFO})
    assert budgets() == {"client memory": 2 * GIB, "replies": 2 * GIB, "images": 4 * GIB}
    monkeypatch.setenv(WORKERS, "4")  # processes that train side by side share them
    assert budget("client memory") == GIB // 2
    monkeypatch.setenv(WORKERS, "1000")
    assert budget("client memory") == LEAST


def test_a_store_keeps_as_much_in_memory_as_the_machine_allows(tmp_path, monkeypatch):
    contents = []
    for machine_bytes in (64 * GIB, 1):
        monkeypatch.setattr(memory_budgets, "total_bytes", lambda machine_bytes=machine_bytes: machine_bytes)
        monkeypatch.setattr(memory_budgets, "LEAST", 100)
        store = TreeStore(tmp_path / str(machine_bytes))
        for key in range(4):
            store[key] = {"w": torch.full((25,), key / 3)}
        contents.append([tree["w"] for tree in store.values()])
    assert not (tmp_path / str(64 * GIB)).exists()
    assert len([*(tmp_path / "1").iterdir()]) == 4
    assert all(torch.equal(mine, other) for mine, other in zip(*contents, strict=True))
