"""Parcels: trees between two processes, the same to the bit, and nothing left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from crossward.core.engine import Job
from crossward.core.tree import Tree, encode
from crossward.core.weights import Weights
from crossward.engines import parcel
from crossward.engines.parcel import Parcel, receive
from crossward.engines.pool import PoolEngine
from crossward.methods.fedavg import FedAvg
from crossward.testing.faulty_methods import Faulty
from crossward.testing.short_runs import assert_same, run_to_end, shared_pool
from crossward.testing.toy import Toy

SHARED_MEMORY = Path("/dev/shm")
MANY = 200_000  # numbers that pass by memory


def some_tree(floats: int) -> Tree:
    """Every kind of value, with so many numbers in its weights."""
    shared = torch.arange(floats, dtype=torch.float32) / 7
    return {
        "model": Weights({"body.weight": shared.view(-1, 2), "body.bias": torch.tensor(0.1)}),
        "same": shared,  # the same memory again
        "turned": torch.rand(3, 5, generator=torch.Generator().manual_seed(0)).t(),
        "none": torch.empty(0, 4),
        "odd": torch.tensor([True, False, True]),
        "counts": torch.tensor([2**40, -1]),
        "half": torch.tensor([0.1, float("inf"), float("nan")], dtype=torch.bfloat16),
        "double": torch.tensor(1 / 3, dtype=torch.float64),
        "inner": {"n": 3, "share": 0.1, "name": "ä", "flag": True, "deeper": {}},
    }


def passed(tree: Tree) -> Tree:
    ours, theirs = Pipe()
    with ours, theirs, Parcel(tree) as packed:
        sender = threading.Thread(target=packed.send, args=(ours,))  # what is large waits for its reader
        sender.start()
        received = receive(theirs)
        sender.join()
    return received


def open_handles() -> int:
    """Of parcels, in this process."""
    count = 0
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one by which the folder is read is closed by now
            count += "crossward-parcel" in str(handle.readlink())
    return count


def no_memory(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("floats", [2, MANY], ids=["by the socket", "by memory"])
def test_a_tree_arrives_to_the_bit(floats):
    tree = some_tree(floats)
    received = passed(tree)
    assert encode(received) == encode(tree)
    assert list(received) == list(tree)
    assert all(received[name].is_contiguous() for name in ("same", "turned", "none"))


def test_an_empty_tree_arrives():
    assert passed({}) == {}


@pytest.mark.parametrize("missing", ["memfd_create", "ftruncate", "pwrite"])
def test_without_shared_memory_it_passes_the_socket(missing, monkeypatch):
    tree = some_tree(MANY)
    monkeypatch.setattr(os, missing, no_memory)
    monkeypatch.setattr(parcel, "_mapped", lambda *_: pytest.fail("it was mapped"))
    assert encode(passed(tree)) == encode(tree)
    assert open_handles() == 0


def test_a_system_without_such_memory(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    tree = some_tree(MANY)
    assert encode(passed(tree)) == encode(tree)


def test_what_one_receiver_writes_no_other_sees():
    tree = {"w": torch.zeros(MANY)}
    ours, theirs = Pipe()
    with ours, theirs, Parcel(tree) as packed:
        packed.send(ours)
        packed.send(ours)
        first, second = receive(theirs), receive(theirs)
    first["w"].add_(1)
    assert float(first["w"].min()) == 1
    assert float(second["w"].abs().max()) == 0
    assert float(tree["w"].abs().max()) == 0


def test_a_tree_outlives_its_parcel_and_leaves_no_handle_open():
    received = passed({"w": torch.ones(MANY)})
    assert open_handles() == 0
    assert float(received["w"].sum()) == MANY
    dropped = Parcel({"w": torch.ones(MANY)})  # never sent
    assert open_handles() == 1
    del dropped
    assert open_handles() == 0


def test_what_cannot_travel_is_refused_before_anything_is_sent():
    with pytest.raises(TypeError, match="a: a list cannot travel in a tree"):
        Parcel({"a": [1]})


def test_a_sender_that_ends_in_the_middle_is_an_end():
    ours, theirs = Pipe()
    with Parcel({"w": torch.ones(MANY)}) as packed:
        ours.send_bytes(packed._label)
    ours.close()
    with theirs, pytest.raises(EOFError):
        receive(theirs)


# in the pool ----------------------------------------------------------------------------------------------------------


def names_in_shared_memory() -> set[str]:
    """Of ours: other programs come and go."""
    return {file.name for file in SHARED_MEMORY.glob("*crossward*")}


def test_workers_that_are_killed_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(parcel, "SMALL", 0)  # everything that this process sends goes by memory
    sites = Toy().run_sites(Faulty(fault="exit", site="site-2"))
    sites.share_images()
    engine = PoolEngine(sites, worker_pool=shared_pool(2))
    down = {"model": Weights.of(sites.server(0).new_net())}
    outcomes = [*engine.perform([Job(i, "train", 0, 7, True) for i in sites.ids], down)]
    assert [outcome.failure for outcome in outcomes if outcome.failure] == ["its worker process died twice"]
    assert names_in_shared_memory() == set()
    assert open_handles() == 0


LEADER = """
import sys, torch
from crossward.engines.parcel import Parcel
from crossward.engines.pool import WorkerPool

(worker,) = WorkerPool(1).workers
parcel = Parcel({"w": torch.ones(1_000_000)})
worker._send({"command": "payload", "key": "1"})
parcel.send(worker.connection)  # it is on its way, or has arrived, when we die
print(worker.process.pid, flush=True)
sys.stdin.read()
"""


def test_a_leader_that_is_killed_leaves_neither_worker_nor_memory():
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert leader.stdin is not None
    assert leader.stdout is not None
    worker = int(leader.stdout.readline())
    os.kill(leader.pid, signal.SIGKILL)
    leader.wait()
    leader.stdout.close()
    leader.stdin.close()
    waiting = threading.Event()
    for _ in range(600):
        if _is_alive(worker):
            waiting.wait(0.1)
    assert not _is_alive(worker)
    assert names_in_shared_memory() == set()


def _is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits to be noticed does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_run_by_memory_ends_as_one_by_the_socket(monkeypatch):
    ends = []
    for small in (0, 1 << 40):
        monkeypatch.setattr(parcel, "SMALL", small)
        sites = Toy().run_sites(FedAvg())
        sites.share_images()
        ends.append(run_to_end(sites, PoolEngine(sites, worker_pool=shared_pool(2))))
    assert_same(*ends)
