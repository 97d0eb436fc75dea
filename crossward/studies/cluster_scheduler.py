"""The scheduler of a study on a cluster: hands tasks to a queue, watches their files, and notifies the listener.

The queue is SLURM or Ray (slurm.py, ray_cluster.py). Tasks, progress and outcomes are files in cluster/ of the study.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from crossward.disk import cannot_write, write_atomically
from crossward.errors import StorageError
from crossward.foreign import printable
from crossward.studies.cluster_task import OUTCOME, PROGRESS, TASK, beside
from crossward.studies.scheduler import DISK_ERRORS, Job, Listener

JOBS = "jobs.json"  # task -> the queue's name of its job, so that a study that is started again finds its jobs
LAG = 5.0  # seconds that a file may need to be seen on a shared disk after its job has ended


class Queue(Protocol):
    """Where jobs are run."""

    interval: float  # seconds between two looks
    limit: int | None  # jobs that are handed over at a time; None: the queue itself limits
    stays: bool  # whether jobs go on when the study stops watching

    def submit(self, tasks: Sequence[Path]) -> list[str]:
        """Start tasks; a name for each job."""

    def ended(self, name: str) -> str | None:
        """None while the job waits or runs; else how it ended, in words."""

    def is_known(self, name: str) -> bool:
        """Whether a job of an earlier call waits or runs."""

    def cancel(self, names: Sequence[str]) -> None:
        """End jobs; their runs keep their last checkpoint."""


class ClusterScheduler:
    def __init__(self, queue: Queue, folder: Path) -> None:
        """`folder` is cluster/ of the study."""
        self.queue, self.folder = queue, folder

    def __call__(self, jobs: Sequence[Job], listener: Listener) -> None:
        """Run jobs to their end."""
        _Watch(self.queue, self.folder, jobs, listener).run()


class _Watch:
    """One call of the scheduler."""

    def __init__(self, queue: Queue, folder: Path, jobs: Sequence[Job], listener: Listener) -> None:
        self.queue, self.folder, self.listener = queue, folder, listener
        self.waiting = list(jobs)
        self.unfinished = {job.key for job in jobs}
        self.failed: set[str] = set()
        self.running: dict[str, Job] = {}  # name in the queue -> job
        self.seen: dict[str, int] = {}  # name in the queue -> the last round that was reported
        self.ended_at: dict[str, float] = {}
        self.known: dict[str, str] = self._read_jobs()  # file name of a task -> name in the queue

    def run(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        self._adopt()
        try:
            while self.unfinished:
                self._submit()
                self._look()
                self.listener.on_tick()
                if self.running:
                    time.sleep(self.queue.interval)
        except BaseException:
            self._leave()
            raise

    # handing over ----------------------------------------------------------------------------------------------------
    def _adopt(self) -> None:
        """Jobs that an earlier call handed over are watched again, not started twice."""
        for job in list(self.waiting):
            name = self.known.get(self._task(job).name)
            if name is None:
                continue
            if self._read(beside(self._task(job), OUTCOME)) is not None or self.queue.is_known(name):
                self.waiting.remove(job)
                self._watch(name, job)
        if self.running:
            self.listener.on_note(f"{len(self.running)} job(s) of an earlier call are watched again")

    def _submit(self) -> None:
        ready = []
        for job in list(self.waiting):
            if job.after in self.failed:
                self.waiting.remove(job)
                self._fail(job, "the run that it is made of failed")
            elif job.after not in self.unfinished:
                ready.append(job)
        if self.queue.limit is not None:
            ready = ready[: max(0, self.queue.limit - len(self.running))]
        if not ready:
            return
        for job in ready:
            for kind in (PROGRESS, OUTCOME):
                beside(self._task(job), kind).unlink(missing_ok=True)
            write_atomically(self._task(job), json.dumps(job.task).encode())
        names = self.queue.submit([self._task(job) for job in ready])
        for name, job in zip(names, ready, strict=True):
            self.waiting.remove(job)
            self.known[self._task(job).name] = name
            self._watch(name, job)
        self._keep_jobs()

    def _watch(self, name: str, job: Job) -> None:
        self.running[name] = job
        self.listener.on_start(job)

    def _task(self, job: Job) -> Path:
        digest = blake2b(f"{job.key} {job.task['folder']}".encode(), digest_size=4).hexdigest()
        return self.folder / f"{Path(job.task['folder']).name}-{digest}{TASK}"

    # watching --------------------------------------------------------------------------------------------------------
    def _look(self) -> None:
        for name, job in list(self.running.items()):
            self._report_round(name, job)
            outcome = self._read(beside(self._task(job), OUTCOME))
            if outcome is not None:
                self._finish(name, job, outcome)
                continue
            ended = self.queue.ended(name)
            if ended is None:
                self.ended_at.pop(name, None)
                continue
            if name not in self.ended_at:  # the outcome may have come since it was read: look once more at least
                self.ended_at[name] = time.monotonic()
            elif time.monotonic() - self.ended_at[name] >= min(LAG, 10 * self.queue.interval):
                self._forget(name, job)
                self._fail(job, f"its job {name} ended without a result: {ended}")

    def _report_round(self, name: str, job: Job) -> None:
        event = self._read(beside(self._task(job), PROGRESS))
        if event is not None and event.get("round", -1) > self.seen.get(name, -1):
            self.seen[name] = event["round"]
            self.listener.on_round(job, event)

    def _finish(self, name: str, job: Job, outcome: Mapping[str, Any]) -> None:
        self._forget(name, job)
        match outcome.get("event"):
            case "done":
                self.unfinished.discard(job.key)
                self.listener.on_done(job, float(outcome["seconds"]), int(outcome["peak_bytes"]))
            case "interrupted":
                self.unfinished.discard(job.key)
                self.failed.add(job.key)
                self.listener.on_note(f"{job.label}: its job {name} was cancelled; the next call goes on with the run")
            case _ if outcome.get("errno") in DISK_ERRORS:
                raise StorageError(
                    f"the study stops: {printable(str(outcome.get('reason')))}",
                    hint="Free some space; the same command goes on where the study stopped.",
                )
            case _:
                self._fail(job, str(outcome.get("reason")))

    def _fail(self, job: Job, reason: str) -> None:
        self.unfinished.discard(job.key)
        self.failed.add(job.key)
        self.listener.on_failure(job, printable(reason, 2000))

    def _forget(self, name: str, job: Job) -> None:
        del self.running[name]
        self.known.pop(self._task(job).name, None)
        self._keep_jobs()
        for kind in (TASK, PROGRESS, OUTCOME):
            with suppress(OSError):
                beside(self._task(job), kind).unlink(missing_ok=True)

    def _leave(self) -> None:
        """The study stops watching."""
        if not self.running:
            return
        if self.queue.stays:
            names = ", ".join(sorted({name.split("_")[0] for name in self.running}))
            self.listener.on_note(
                f"{len(self.running)} job(s) go on in the queue ({names}); the same command watches them again"
            )
        else:
            self.queue.cancel(list(self.running))

    # files -----------------------------------------------------------------------------------------------------------
    def _read(self, file: Path) -> dict[str, Any] | None:
        """An event that a node has written; None if there is none yet."""
        try:
            event = json.loads(file.read_bytes())
        except (OSError, ValueError):
            return None
        return event if isinstance(event, dict) else None

    def _read_jobs(self) -> dict[str, str]:
        stored = self._read(self.folder / JOBS) or {}
        return {task: name for task, name in stored.items() if isinstance(name, str)}

    def _keep_jobs(self) -> None:
        write_atomically(self.folder / JOBS, json.dumps(self.known, indent=1).encode())
