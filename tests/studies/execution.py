"""Jobs of a study that are run in this process, in any order, and stop at any moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crossward.studies.scheduler import Job, Listener
from crossward.studies.worker import perform


class RunHere:
    """Runs jobs one after the other; `order` arranges them, and after `stop_after` jobs in all comes Ctrl-C."""

    def __init__(self, order: Callable[[Sequence[Job]], Sequence[Job]] = list, stop_after: int | None = None) -> None:
        self.order, self.left = order, stop_after
        self.jobs: list[Job] = []

    def __call__(self, jobs: Sequence[Job], listener: Listener) -> None:
        for job in self.order(jobs):
            if self.left is not None:
                if not self.left:
                    raise KeyboardInterrupt
                self.left -= 1
            self.jobs.append(job)
            listener.on_start(job)
            event = perform(job.task, lambda event, job=job: listener.on_round(job, event))
            if event["event"] == "done":
                listener.on_done(job, event["seconds"], event["peak_bytes"])
            else:
                listener.on_failure(job, event["reason"])


class Notes(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.failures: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_failure(self, job: Job, reason: str) -> None:
        self.failures.append(reason)
