"""SLURM through submitit: the cells of a study as an array of jobs, queued again when they are pre-empted."""

from __future__ import annotations

import shutil
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
ACCOUNTING = 60  # seconds between two calls of sacct


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
        for job in jobs:
            job.watcher._delay_s = ACCOUNTING
        self.jobs |= {job.job_id: job for job in jobs}
        return [job.job_id for job in jobs]

    def ended(self, name: str) -> str | None:
        job = self.jobs[name]
        if not job.done():
            return None
        return f"{job.state.lower()}, see {job.paths.stderr}"

    def is_known(self, name: str) -> bool:
        if self.settings.cluster != "slurm":
            return False  # such jobs end with the process that started them
        from submitit import SlurmJob

        job: Job[None] = SlurmJob(self.logs, name)
        if job.watcher.is_done(name, mode="force"):
            return False
        self.jobs[name] = job
        return True

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
