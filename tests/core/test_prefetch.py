"""Items prepared ahead: by one thread, which leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from crossward.core import cores, prefetch
from crossward.core.prefetch import ahead, has_spare_core


def helpers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("crossward-prefetch")]


def test_the_next_item_is_prepared_while_this_one_is_used():
    ready = [threading.Event() for _ in range(3)]

    def items():
        for number, event in enumerate(ready):
            event.set()
            yield number

    used = []
    for number in ahead(items()):
        assert all(event.wait(10) for event in ready[: number + 2])
        used.append(number)
    assert used == [0, 1, 2]


def test_no_more_than_one_item_is_prepared_ahead():
    begun = []

    def items():
        for number in range(5):
            begun.append(number)
            yield number

    for number in ahead(items()):
        time.sleep(0.02)
        assert len(begun) <= number + 2


def test_what_preparing_an_item_raises_is_raised_in_its_turn():
    def items():
        yield 1
        yield 2
        raise KeyError("third")

    iteration = ahead(items())
    assert [next(iteration), next(iteration)] == [1, 2]
    with pytest.raises(KeyError, match="third"):
        next(iteration)


def test_abandoned_iterations_leave_one_idle_thread():
    for error in (KeyboardInterrupt, ValueError, None):
        iteration = ahead(iter(range(100)))
        try:
            next(iteration)
            if error:
                raise error
        except (KeyboardInterrupt, ValueError):
            pass
        del iteration
    assert len(helpers()) == 1
    assert list(ahead(iter(range(5)))) == [0, 1, 2, 3, 4]  # it serves whoever comes next


def test_two_iterations_at_a_time_do_not_disturb_each_other():
    pairs = zip(ahead(iter(range(50))), ahead(iter(range(50, 100))))
    assert [b - a for a, b in pairs] == [50] * 50


def test_torch_computes_with_one_thread_there_and_with_as_many_as_before_here():
    """In a process of its own: the helper of this one may have begun when torch had one thread."""
    program = """
import torch
from crossward.core.prefetch import ahead
torch.set_num_threads(3)
seen = list(ahead(torch.get_num_threads() for _ in range(3)))
print(seen, torch.get_num_threads())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[3, 1, 1] 3"


def test_a_process_ends_in_the_middle_of_an_iteration():
    program = """
import time
from crossward.core.prefetch import ahead
def items():
    while True:
        yield time.sleep(0.05)
iteration = ahead(items())
next(iteration)
next(iteration)
raise SystemExit(7)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_a_helper_of_its_own():
    iteration = ahead(iter(range(5)))
    next(iteration)
    child = os.fork()
    if child == 0:
        try:
            own = list(ahead(iter(range(5)))) == [0, 1, 2, 3, 4]
            try:
                next(iteration)
            except RuntimeError:
                os._exit(0 if own else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(iteration) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("usable", "threads", "workers", "spare"),
    [(2, 1, 1, True), (2, 2, 1, False), (2, 1, 2, False), (8, 2, 3, True)],
)
def test_a_core_is_spare_if_those_that_train_leave_one(monkeypatch, usable, threads, workers, spare):
    monkeypatch.setattr(prefetch, "usable_cores", lambda: usable)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for name, value in cores.worker_environment(workers, 0).items():
        monkeypatch.setenv(name, value)
    assert has_spare_core() is spare


def test_workers_of_workers_share_the_cores(monkeypatch):
    monkeypatch.delenv(cores.WORKERS, raising=False)
    assert cores.training_processes() == 1
    monkeypatch.setenv(cores.WORKERS, cores.worker_environment(3, 0)[cores.WORKERS])
    assert cores.training_processes() == 3
    assert cores.worker_environment(2, 1) == {cores.WORKERS: "6", cores.WORKER: "1"}
