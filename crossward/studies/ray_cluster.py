"""Ray: the cells of a study as tasks of a Ray cluster, or of Ray on this machine if there is none."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossward.errors import ConfigError, RunError
from crossward.studies.cluster_scheduler import ClusterScheduler
from crossward.studies.cluster_settings import RaySettings, memory_bytes
from crossward.studies.cluster_task import perform_file
from crossward.studies.study_folder import CLUSTER

ADDRESS = "RAY_ADDRESS"
LOOK = 0.5  # seconds between two looks


@contextmanager
def ray_scheduler(folder: Path, settings: RaySettings) -> Iterator[ClusterScheduler]:
    """Runs jobs of the study in `folder` by Ray: on the cluster that RAY_ADDRESS names, else on this machine."""
    ray = _ray()
    address = os.environ.get(ADDRESS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about GPUs that a task without any may see in future
            ray.init(
                address=address,
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level="ERROR",
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RunError(
            f"cannot reach the Ray cluster at {address or 'this machine'}: {error}",
            hint=f"Look at {ADDRESS}, or unset it to run on this machine.",
        ) from error
    try:
        yield ClusterScheduler(RayQueue(ray, settings), folder / CLUSTER)
    finally:
        ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "--engine ray needs Ray, which is not installed", hint="pip install 'crossward[simulate]'"
        ) from None
    return ray


class RayQueue:
    """See cluster_scheduler.Queue."""

    interval = LOOK
    limit: int | None = None  # Ray starts as many as its nodes have room for
    stays = False  # tasks of Ray end with the process that started them

    def __init__(self, ray: Any, settings: RaySettings) -> None:
        self.ray = ray
        room = {"memory": memory_bytes(settings.memory)} if settings.memory else {}
        options = {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "max_retries": settings.retries, **room}
        self.perform = ray.remote(**options)(perform_file)
        self.tasks: dict[str, Any] = {}

    def submit(self, tasks: Sequence[Path]) -> list[str]:
        started = [self.perform.remote(str(task.absolute())) for task in tasks]
        names = [reference.hex() for reference in started]
        self.tasks |= dict(zip(names, started, strict=True))
        return names

    def ended(self, name: str) -> str | None:
        done, _ = self.ray.wait([self.tasks[name]], timeout=0)
        if not done:
            return None
        try:
            self.ray.get(done[0])
        except self.ray.exceptions.RayError as error:
            return str(error).strip().splitlines()[0]
        return "it says that it is done"

    def is_known(self, name: str) -> bool:
        return False

    def cancel(self, names: Sequence[str]) -> None:
        for name in names:
            self.ray.cancel(self.tasks[name])
        self.ray.wait([self.tasks[name] for name in names], num_returns=len(names), timeout=30)
