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
from typing import Any, NamedTuple

import torch

from crossward.core.cores import worker_environment
from crossward.core.engine import Job, Outcome, Payload, Sites
from crossward.core.store import TreeStore
from crossward.core.tree import Tree
from crossward.engines.parcel import Parcel, receive
from crossward.errors import from_words

SEND_BUFFER = 4 * 2**20  # bytes


class PackedPayload(NamedTuple):
    key: str
    parcel: Parcel


class WorkerReply(NamedTuple):
    """A worker's answer to a job: {"failure", "losses"} with two trees; or, without trees, {"crash": traceback}, or
    {"error"} if it is an error for people."""

    about: dict[str, Any]
    reply: Tree
    memory: Tree


class Worker:
    """A worker process as its parent sees it. It is started as a program of its own, so that a user's script needs no
    `if __name__ == "__main__"` and no state of this process leaks into it."""

    def __init__(self, number: int, workers: int) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):  # so that a whole answer fits, and its sender need not wait for the reader
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        own = {"OMP_NUM_THREADS": "1"} | worker_environment(workers, number)
        command = [sys.executable, "-m", "crossward.engines.pool_worker", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=os.environ | own)
        theirs.close()
        self.connection = Connection(ours.detach())
        self.number = number
        self.payload_key = ""  # of the payload it holds
        self.job: Job | None = None  # that it runs

    def open_sites(self, pickled_sites: bytes, threads: int) -> None:
        """Give it the sites of a federation. If it has died, reading the reply to its next job will raise."""
        self.payload_key = ""
        with suppress(OSError):
            self._send({"command": "open", "threads": threads, "path": sys.path})
            self.connection.send_bytes(pickled_sites)

    def start(self, job: Job, payload: PackedPayload, memory: Tree) -> None:
        """Hand it a job. If it has died, reading the reply will raise."""
        self.job = job
        with suppress(OSError), Parcel(memory) as packed_memory:
            if self.payload_key != payload.key:
                self._send({"command": "payload", "key": payload.key})
                payload.parcel.send(self.connection)
                self.payload_key = payload.key
            self._send({"command": "job", "key": payload.key, "job": asdict(job)})
            packed_memory.send(self.connection)

    def receive(self) -> WorkerReply:
        """The reply to its job; afterwards it is free."""
        about: dict[str, Any] = json.loads(self.connection.recv_bytes())
        if "crash" in about or "error" in about:
            reply = WorkerReply(about, {}, {})
        else:
            reply = WorkerReply(about, receive(self.connection), receive(self.connection))
        self.job = None
        return reply

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        self.connection.send_bytes(json.dumps(message).encode())


class WorkerPool:
    """Worker processes that engines may use one after another: starting one costs an import of torch."""

    def __init__(self, workers: int = 2) -> None:
        self.workers = [Worker(number, workers) for number in range(workers)]

    def replace(self, worker: Worker) -> Worker:
        worker.stop()
        self.workers[worker.number] = Worker(worker.number, len(self.workers))
        return self.workers[worker.number]

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


class PoolEngine:
    """Hands out jobs largest first. A worker that dies is replaced and its client tried once more."""

    def __init__(
        self,
        sites: Sites,
        *,
        workers: int = 2,
        threads: int = 1,
        memory: TreeStore | None = None,
        worker_pool: WorkerPool | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self.sites = sites
        self.threads = threads
        self.memory = TreeStore() if memory is None else memory
        self.worker_pool = worker_pool or WorkerPool(workers)
        self._owns_pool = worker_pool is None
        self._pickled_sites = pickle.dumps(sites)
        self._payloads = 0  # packed so far; their numbers are the keys by which a worker is sent each once
        for worker in list(self.worker_pool.workers):
            if worker.job is not None:  # an engine before this one stopped in the middle of a job
                worker = self.worker_pool.replace(worker)
            worker.open_sites(self._pickled_sites, threads)

    def perform(self, jobs: Sequence[Job], payload: Payload) -> Iterator[Outcome]:
        shared = self._packed({} if callable(payload) else payload)
        with shared.parcel:
            yield from self._perform(jobs, payload, shared)

    def _perform(self, jobs: Sequence[Job], payload: Payload, shared: PackedPayload) -> Iterator[Outcome]:
        waiting = deque(sorted(jobs, key=lambda job: -self.sites.work(job.site, job.step)))
        deaths: Counter[int] = Counter()

        def hand_out() -> None:
            free = [worker for worker in self.worker_pool.workers if worker.job is None]
            for worker in free[: len(waiting)]:
                job = waiting.popleft()
                down = self._packed(payload(job.site)) if callable(payload) else shared
                worker.start(job, down, self.memory.get(job.site, {}))
                if down is not shared:
                    down.parcel.close()

        while waiting or self._busy():
            hand_out()
            for worker in self._ready():
                job = worker.job
                assert job is not None
                try:
                    reply = worker.receive()
                except (EOFError, OSError):
                    self.worker_pool.replace(worker).open_sites(self._pickled_sites, self.threads)
                    deaths[job.site] += 1
                    if deaths[job.site] == 1:
                        waiting.appendleft(job)
                    else:
                        yield Outcome(job, failure="its worker process died twice")
                    continue
                hand_out()  # the worker goes on while its reply is looked at
                yield self._outcome(job, reply)

    def close(self) -> None:
        if self._owns_pool:
            self.worker_pool.stop()
        self.memory.close()

    def _busy(self) -> dict[Connection, Worker]:
        return {worker.connection: worker for worker in self.worker_pool.workers if worker.job is not None}

    def _ready(self) -> list[Worker]:
        busy = self._busy()
        return [busy[connection] for connection in wait(list(busy)) if isinstance(connection, Connection)]

    def _packed(self, payload: Tree) -> PackedPayload:
        self._payloads += 1
        return PackedPayload(str(self._payloads), Parcel(payload))

    def _outcome(self, job: Job, reply: WorkerReply) -> Outcome:
        about = reply.about
        if "error" in about:
            raise from_words(about["error"])
        if "crash" in about:
            raise RuntimeError(f"{self.sites.name(job.site)}, step {job.step!r}, failed in a worker:\n{about['crash']}")
        if job.keep and not about["failure"] and (reply.memory or job.site in self.memory):
            self.memory[job.site] = reply.memory
        return Outcome(job, reply.reply, about["failure"], tuple(about["losses"]))
