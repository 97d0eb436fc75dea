"""SLURM through submitit: the cells of a study as an array of jobs, queued again when they are pre-empted."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossward.errors import ConfigError, RunError
from crossward.studies.cluster_scheduler import ClusterScheduler
from crossward.studies.cluster_settings import SlurmSettings
from crossward.studies.cluster_task import ClusterTask
from crossward.studies.study_folder import CLUSTER

if TYPE_CHECKING:
    from submitit import Job

LOGS = "logs"  # of the jobs, as submitit names them
LOOK = {"slurm": 10.0, "local": 0.5, "debug": 0.0}  # seconds between two looks at the files
SQUEUE = ("squeue", "--noheader", "--array", "--me", "--format=%i")
LISTED_FOR = 5.0  # seconds that a list of squeue is good for
PATIENCE = 60.0  # seconds for squeue to answer


def slurm_scheduler(folder: Path, settings: SlurmSettings) -> ClusterScheduler:
    """Runs jobs of the study in `folder` by SLURM; what is missing is found now."""
    return ClusterScheduler(SlurmQueue(folder / CLUSTER, settings), folder / CLUSTER)


class SlurmQueue:
    """See cluster_scheduler.Queue. submitit's own results are never read: they are pickles."""

    def __init__(self, folder: Path, settings: SlurmSettings) -> None:
        try:
            import submitit
        except ImportError:
            raise ConfigError(
                "--engine slurm needs submitit, which is not installed", hint="pip install 'crossward[cluster]'"
            ) from None
        if settings.cluster == "slurm" and shutil.which("sbatch") is None:
            raise ConfigError(
                "there is no sbatch here, so that nothing can be handed to SLURM",
                hint="Call it on a login node of the cluster. `--slurm cluster=local` tries it on this machine.",
            )
        self.settings, self.logs = settings, folder / LOGS
        self.interval = LOOK[settings.cluster]
        self.limit = None if settings.cluster == "slurm" else settings.array_parallelism
        self.stays = settings.cluster == "slurm"
        self.jobs: dict[str, Job[None]] = {}
        self._list: set[str] | None = None
        self._listed_at = 0.0
        options: dict[str, Any] = {
            "slurm_max_num_timeout": settings.requeues,
            "local_max_num_timeout": settings.requeues,
        }
        self.executor = submitit.AutoExecutor(self.logs, cluster=settings.cluster, **options)
        self.executor.update_parameters(**_parameters(settings))

    def submit(self, tasks: Sequence[Path]) -> list[str]:
        import submitit

        try:
            with self.executor.batch():
                jobs = [self.executor.submit(ClusterTask(str(task.absolute()))) for task in tasks]
        except submitit.core.utils.FailedJobError as error:
            raise RunError(f"SLURM refused the jobs: {str(error).strip()}", hint="Look at [study.slurm].") from error
        self._listed_at = 0.0  # the new jobs are not on the last list
        self.jobs |= {job.job_id: job for job in jobs}
        return [job.job_id for job in jobs]

    def ended(self, name: str) -> str | None:
        job = self.jobs[name]
        logs = f"see {job.paths.stderr}"
        if self.settings.cluster != "slurm":
            return f"{job.state.lower()}, {logs}" if job.done() else None
        queued = self._queued()
        return None if queued is None or name in queued else f"it is no longer in the queue, {logs}"

    def is_known(self, name: str) -> bool:
        if self.settings.cluster != "slurm":
            return False  # such jobs end with the process that started them
        queued = self._queued()
        if queued is not None and name not in queued:
            return False
        from submitit import SlurmJob

        self.jobs[name] = SlurmJob(self.logs, name)
        return True

    def _queued(self) -> set[str] | None:
        """Our jobs that wait or run; None if SLURM does not answer now. squeue knows them on every cluster, sacct only
        where accounting is on."""
        if time.monotonic() - self._listed_at > LISTED_FOR:
            try:
                listed = subprocess.run(SQUEUE, capture_output=True, text=True, timeout=PATIENCE, check=True)
                self._list = set(listed.stdout.split())
            except (OSError, subprocess.SubprocessError):
                self._list = None
            self._listed_at = time.monotonic()
        return self._list

    def cancel(self, names: Sequence[str]) -> None:
        for name in names:
            self.jobs[name].cancel()


def _parameters(settings: SlurmSettings) -> dict[str, Any]:
    """The settings as submitit calls them; its executors ignore those of the others."""
    slurm = {
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": settings.constraint,
        "mem": settings.memory,
        "array_parallelism": settings.array_parallelism,
        "signal_delay_s": settings.warn_seconds,
        "setup": list(settings.setup) or None,
        "additional_parameters": settings.extra or None,
    }
    given = {f"slurm_{name}": value for name, value in slurm.items() if value is not None}
    gpus = {"gpus_per_node": settings.gpus} if settings.gpus else {}
    return {"name": "crossward", "timeout_min": settings.time, "cpus_per_task": settings.cpus, **gpus, **given}
