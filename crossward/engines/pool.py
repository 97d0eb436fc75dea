"""The pool engine: worker processes of a few threads each, one client at a time in each."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from crossward.core.engine import Job, Outcome, Payload, Sites
from crossward.core.store import TreeStore
from crossward.core.tree import Tree, decode, encode

BUFFER = 4 * 2**20


class Worker:
    """A worker process as its parent sees it. Started as a program of its own, so that a user's script needs no
    `if __name__ == "__main__"` and no state of this process leaks into it."""

    def __init__(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):  # so that a whole answer fits, and its sender need not wait for the reader's turn
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CROSSWARD_WORKER": str(number)}
        command = [sys.executable, "-m", "crossward.engines.pool_worker", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        self.connection = Connection(ours.detach())
        self.number = number
        self.payload = ""  # the key of the payload it holds
        self.job: Job | None = None

    def send(self, message: dict[str, Any], *blobs: bytes) -> None:
        self.connection.send_bytes(json.dumps(message).encode())
        for blob in blobs:
            self.connection.send_bytes(blob)

    def take(self, job: Job, payload: tuple[str, bytes], memory: bytes) -> None:
        """Hand out a job. A worker that has died takes it in silence: collecting the outcome will tell."""
        self.job = job
        key, down = payload
        with suppress(OSError):
            if self.payload != key:
                self.send({"do": "payload", "key": key}, down)
                self.payload = key
            self.send({"do": "job", "key": key, "job": asdict(job)}, memory)

    def answer(self) -> tuple[dict[str, Any], bytes, bytes]:
        """What it says of its job, with the reply and the memory to keep; it is free then."""
        told: dict[str, Any] = json.loads(self.connection.recv_bytes())
        reply, memory = (b"", b"") if "crash" in told else (self.connection.recv_bytes(), self.connection.recv_bytes())
        self.job = None
        return told, reply, memory

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


class WorkerPool:
    """Worker processes that engines may use one after another: starting one costs an import of torch."""

    def __init__(self, workers: int = 2) -> None:
        self.workers = [Worker(number) for number in range(workers)]

    def replace(self, worker: Worker) -> Worker:
        worker.stop()
        self.workers[worker.number] = Worker(worker.number)
        return self.workers[worker.number]

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


class PoolEngine:
    """Work is handed out largest first. A worker that dies is replaced and its client tried once more."""

    def __init__(
        self,
        sites: Sites,
        *,
        workers: int = 2,
        threads: int = 1,
        memory: TreeStore | None = None,
        crew: WorkerPool | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self.sites, self.threads = sites, threads
        self.memory = TreeStore() if memory is None else memory
        self.crew, self._lent = crew or WorkerPool(workers), crew is not None
        self._opening = pickle.dumps(sites)
        self._sent = 0  # payloads, numbered so that a worker is sent each once
        for worker in list(self.crew.workers):  # one that an engine before us left in the middle of a job starts anew
            self._open_sites(worker if worker.job is None else self.crew.replace(worker))

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        waiting = deque(sorted(jobs, key=lambda job: -self.sites.work(job.site, job.step)))
        shared = self._encoded({} if callable(payload) else payload)
        deaths: Counter[int] = Counter()

        def hand_out() -> None:
            for worker in [w for w in self.crew.workers if w.job is None][: len(waiting)]:
                job = waiting.popleft()
                down = self._encoded(payload(job.site)) if callable(payload) else shared
                worker.take(job, down, encode(self.memory.get(job.site, {})))

        while waiting or self._busy():
            hand_out()
            for worker in self._ready():
                job = worker.job
                assert job is not None
                try:
                    answer = worker.answer()
                except (EOFError, OSError):
                    self._open_sites(self.crew.replace(worker))
                    deaths[job.site] += 1
                    if deaths[job.site] == 1:
                        waiting.appendleft(job)
                    else:
                        yield Outcome(job, failure="its worker process died twice")
                    continue
                hand_out()  # the worker goes on while its answer is read
                yield self._outcome(job, *answer)

    def close(self) -> None:
        if not self._lent:
            self.crew.stop()
        self.memory.close()

    def _busy(self) -> dict[Connection, Worker]:
        return {worker.connection: worker for worker in self.crew.workers if worker.job is not None}

    def _ready(self) -> list[Worker]:
        busy = self._busy()
        return [busy[c] for c in wait(list(busy)) if isinstance(c, Connection)]

    def _encoded(self, payload: Tree) -> tuple[str, bytes]:
        self._sent += 1
        return str(self._sent), encode(payload)

    def _outcome(self, job: Job, told: dict[str, Any], reply: bytes, memory: bytes) -> Outcome:
        if "crash" in told:
            raise RuntimeError(f"{self.sites.name(job.site)}, step {job.step!r}, failed in a worker:\n{told['crash']}")
        kept = decode(memory)
        if job.keep and not told["failure"] and (kept or job.site in self.memory):
            self.memory[job.site] = kept
        return Outcome(job, decode(reply), told["failure"], tuple(told["losses"]))

    def _open_sites(self, worker: Worker) -> None:
        worker.payload = ""
        with suppress(OSError):
            worker.send({"do": "open", "threads": self.threads, "path": sys.path}, self._opening)
