"""What a node of a cluster does for a study: one task from a file, its progress and its outcome into files beside it.

All files are on a disk that the nodes share. Nothing but the path of the task travels to a node, and nothing comes back
by pickle: the study reads the outcome as JSON, and the run from its run directory. A task that is started again goes
on where its run directory stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossward.disk import write_atomically

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

TASK = ".task.json"
PROGRESS = ".progress.json"
OUTCOME = ".outcome.json"


def beside(task: Path, kind: str) -> Path:
    """The file of another kind of the same task."""
    return task.with_name(task.name.removesuffix(TASK) + kind)


def perform_file(file: str) -> None:
    """Carry out the task in a file."""
    import torch

    from crossward.studies.worker import perform

    torch.set_num_threads(1)  # as in the workers of one machine, so that results are the same
    task = Path(file)

    def send(event: Mapping[str, Any]) -> None:
        _write(beside(task, PROGRESS), event)

    _write(beside(task, OUTCOME), perform(json.loads(task.read_bytes()), send))


def _write(file: Path, event: Mapping[str, Any]) -> None:
    write_atomically(file, json.dumps(event).encode())


class ClusterTask:
    """A task as submitit starts it. `checkpoint` has a job that is pre-empted or out of time queued again."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __call__(self) -> None:
        perform_file(self.file)

    def checkpoint(self) -> DelayedSubmission:
        """What is to be done when the job starts again: the same, which goes on with the run."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
