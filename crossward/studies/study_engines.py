"""Where the cells of a study run: on this machine, by SLURM, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from crossward.errors import ConfigError
from crossward.names import nearest
from crossward.studies.cluster_settings import with_options
from crossward.studies.scheduler import Execute
from crossward.studies.study_file import StudySettings

LOCAL = "local"
ENGINES: Mapping[str, str] = MappingProxyType(
    {
        LOCAL: "worker processes of this machine",
        "slurm": "jobs of a SLURM cluster, through submitit",
        "ray": "tasks of the Ray cluster that RAY_ADDRESS names, else of Ray on this machine",
    }
)


@contextmanager
def study_engine(
    name: str, settings: StudySettings, folder: Path, slurm: Sequence[str] = (), ray: Sequence[str] = ()
) -> Iterator[Execute | None]:
    """What `Study.run` and `Study.race` take as `execute`; None: this machine. `folder` is that of the study, `slurm`
    and `ray` are "key=value" options that stand before those of the file."""
    if name not in ENGINES:
        raise ConfigError(f"there is no engine {name!r} for a study", hint=nearest(name, ENGINES))
    for flag, options in (("slurm", slurm), ("ray", ray)):
        if options and name != flag:
            raise ConfigError(f"--{flag} is for --engine {flag}, and the engine is {name}")
    if name == "slurm":
        from crossward.studies.slurm import slurm_scheduler

        yield slurm_scheduler(folder, with_options(settings.slurm, "--slurm", slurm))
    elif name == "ray":
        from crossward.studies.ray_cluster import ray_scheduler

        with ray_scheduler(folder, with_options(settings.ray, "--ray", ray)) as scheduler:
            yield scheduler
    else:
        yield None
