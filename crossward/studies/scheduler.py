"""The scheduler of a study: hands jobs to worker processes as cores and memory allow, and survives their deaths."""

from __future__ import annotations

import errno
import selectors
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from crossward.core import machine_memory
from crossward.errors import RunError, StorageError
from crossward.foreign import printable
from crossward.studies.worker_process import COMMAND, WorkerProcess

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # with which no other cell would fare better
DEATHS = 2  # of workers in one job, after which it has failed
FAILED_STARTS = 2  # workers that end before they are ready, after which none is started again
USUAL_PEAK = 1 << 30  # bytes that a cell is thought to need before one was measured
MARGIN = 1.1
TICK = 0.5  # seconds between two looks at the memory


@dataclass(frozen=True)
class Job:
    """One cell to run."""

    key: str
    label: str  # cells of the same label need about the same memory
    task: Mapping[str, Any]  # for worker.py
    after: str = ""  # the key of a job that must be done first


class Listener:
    """Is notified as a study proceeds. Exceptions end the study in order."""

    def on_start(self, job: Job) -> None: ...

    def on_round(self, job: Job, event: Mapping[str, Any]) -> None: ...

    def on_done(self, job: Job, seconds: float, peak_bytes: int) -> None: ...

    def on_failure(self, job: Job, reason: str) -> None: ...

    def on_note(self, text: str) -> None: ...

    def on_tick(self) -> None: ...


Execute = Callable[[Sequence[Job], Listener], None]  # runs jobs to their end and notifies the listener


@dataclass
class Scheduler:
    jobs: Sequence[Job]
    workers: int
    listener: Listener
    peaks: dict[str, int] = field(default_factory=dict)  # label -> bytes that its cells needed
    command: Sequence[str] = COMMAND
    spare: list[WorkerProcess] | None = None  # idle workers, which are used and given back; None: all are ended

    def __post_init__(self) -> None:
        self._waiting = list(self.jobs)
        self._unfinished = {job.key for job in self.jobs}
        self._failed: set[str] = set()
        self._pool: dict[WorkerProcess, Job | None] = {}
        self._deaths: dict[str, int] = {}
        self._failed_starts = 0
        self._selector = selectors.DefaultSelector()
        self._short_of_memory = False
        while self.spare:
            worker = self.spare.pop()
            self._pool[worker] = None
            self._selector.register(worker, selectors.EVENT_READ)

    def run(self) -> None:
        """Work through all jobs. Ctrl-C, and a disk that is full, stop the workers in order and are raised."""
        try:
            while self._unfinished:
                self._start_jobs()
                self._handle_events()
                self.listener.on_tick()
            if self.spare is not None:
                self.spare += self._pool
                self._pool = {}
        finally:
            self._stop_workers()

    def _start_jobs(self) -> None:
        for job in list(self._waiting):
            if job.after in self._failed:
                self._waiting.remove(job)
                self._fail(job, "the run that it is made of failed")
            elif job.after in self._unfinished:
                continue
            else:
                worker = self._worker_for(job)
                if worker is None:
                    return
                self._waiting.remove(job)
                self._pool[worker] = job
                worker.send(job.task)
                self.listener.on_start(job)

    def _worker_for(self, job: Job) -> WorkerProcess | None:
        """An idle worker, or a new one; None if all are busy or memory would run out."""
        idle = next((worker for worker, busy in self._pool.items() if busy is None), None)
        if idle is None and len(self._pool) >= self.workers:
            return None
        if not self._has_memory_for(job, idle):
            return None
        if idle is None:
            taken = {worker.number for worker in self._pool}
            number = next(number for number in range(self.workers) if number not in taken)
            idle = WorkerProcess(self.command, self.workers, number)
            self._pool[idle] = None
            self._selector.register(idle, selectors.EVENT_READ)
        return idle

    def _has_memory_for(self, job: Job, idle: WorkerProcess | None) -> bool:
        running = [(worker, busy) for worker, busy in self._pool.items() if busy is not None]
        available = machine_memory.available_bytes()
        if not running or available is None:
            return True
        reserved = sum(max(0, self._peak(busy) - machine_memory.process_bytes(worker.pid)) for worker, busy in running)
        needed = self._peak(job) - (machine_memory.process_bytes(idle.pid) if idle else 0)
        enough = available - reserved >= MARGIN * needed
        if not enough and not self._short_of_memory:
            self.listener.on_note(
                f"{len(running)} cell(s) at a time: another needs about {needed / 2**20:.0f} MiB of memory, "
                f"{max(0, available - reserved) / 2**20:.0f} MiB are left"
            )
        self._short_of_memory = not enough
        return enough

    def _peak(self, job: Job) -> int:
        return self.peaks.get(job.label) or max(self.peaks.values(), default=USUAL_PEAK)

    def _handle_events(self) -> None:
        for key, _ in self._selector.select(TICK):
            worker = key.fileobj
            assert isinstance(worker, WorkerProcess)
            for event in worker.events():
                self._handle(worker, event)

    def _handle(self, worker: WorkerProcess, event: Mapping[str, Any]) -> None:
        job = self._pool[worker]
        match event["event"]:
            case "ready":
                worker.ready = True
            case "dead":
                self._handle_death(worker, job, str(event["reason"]))
            case "round" if job:
                self.listener.on_round(job, event)
            case "done" if job:
                self._pool[worker] = None
                self._unfinished.discard(job.key)
                self.peaks[job.label] = max(self.peaks.get(job.label, 0), event["peak_bytes"])
                self._start_jobs()  # the worker need not wait for what is written now
                self.listener.on_done(job, event["seconds"], event["peak_bytes"])
            case "failed" if job:
                self._pool[worker] = None
                if event.get("errno") in DISK_ERRORS:
                    raise StorageError(
                        f"the study stops: {printable(event['reason'])}",
                        hint="Free some space; the same command goes on where the study stopped.",
                    )
                self._fail(job, str(event["reason"]))

    def _fail(self, job: Job, reason: str) -> None:
        self._unfinished.discard(job.key)
        self._failed.add(job.key)
        self.listener.on_failure(job, reason)

    def _handle_death(self, worker: WorkerProcess, job: Job | None, reason: str) -> None:
        """A worker has died. Its cell goes on in another one, unless it takes that one along as well."""
        self._selector.unregister(worker)
        del self._pool[worker]
        worker.end()
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS:
                raise RunError(f"no worker can be started: {reason}", hint="Try: python -m crossward.studies.worker")
        if job is None:
            return
        self._deaths[job.key] = self._deaths.get(job.key, 0) + 1
        if self._deaths[job.key] >= DEATHS:
            self._fail(job, reason)
        else:
            self.listener.on_note(f"{job.label}: {reason}; the cell goes on in another process")
            self._waiting.insert(0, job)

    def _stop_workers(self) -> None:
        end_workers(list(self._pool))
        self._selector.close()


def end_workers(workers: Sequence[WorkerProcess]) -> None:
    """Stop workers in order: a run loses the round that it is in and nothing else."""
    for worker in workers:
        worker.ask_to_stop()
    for worker in workers:
        worker.end()


@contextmanager
def on_this_machine(workers: int, peaks: dict[str, int]) -> Iterator[Execute]:
    """Runs jobs in worker processes, which outlive a call; `peaks` is what cells of each label need of memory."""
    spare: list[WorkerProcess] = []

    def execute(jobs: Sequence[Job], listener: Listener) -> None:
        Scheduler(jobs, workers, listener, peaks, spare=spare).run()

    try:
        yield execute
    finally:
        end_workers(spare)
