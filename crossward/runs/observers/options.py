"""Which logs [observe] asks for, and whether the packages that they need are here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from crossward.config.schema import Config
from crossward.errors import ConfigError
from crossward.runs.observers.round_log import RoundLog
from crossward.runs.run_directory import RunDir

PACKAGES = {  # option, which is also the extra -> the modules that it imports
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
}


def check_packages(config: Config) -> None:
    """Refuse a log whose packages are missing, before anything is trained."""
    missing = [name for name in _asked(config) if any(find_spec(module) is None for module in PACKAGES[name])]
    if missing:
        options = " and ".join(f"observe.{name} = true" for name in missing)
        raise ConfigError(f"{options} needs more packages", hint=f'Run: pip install "crossward[{",".join(missing)}]"')


@contextmanager
def run_logs(config: Config, rundir: RunDir) -> Iterator[list[RoundLog]]:
    """The logs that [observe] asks for; they are closed when the block ends."""
    logs = [_log(name, config, rundir) for name in _asked(config)]
    try:
        yield logs
    finally:
        for log in logs:
            log.close()


def _asked(config: Config) -> list[str]:
    return [name for name in PACKAGES if getattr(config.observe, name)]


def _log(name: str, config: Config, rundir: RunDir) -> RoundLog:
    if name == "tensorboard":
        from crossward.runs.observers.tensorboard_log import TensorBoardLog

        return TensorBoardLog(rundir, config)
    from crossward.runs.observers.mlflow_log import MlflowLog

    return MlflowLog(rundir, config)
