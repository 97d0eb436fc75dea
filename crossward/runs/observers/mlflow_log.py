"""MLflow: the metrics of all runs of a folder in one database, mlflow.db beside the run directories.

`mlflow ui --backend-store-uri sqlite:///runs/mlflow.db` shows it. Nothing goes over the network: MLFLOW_TRACKING_URI is
ignored, and MLflow's telemetry is off.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from crossward.errors import StorageError
from crossward.runs.observers.round_log import RoundLog
from crossward.runs.observers.scalars import Scalars, hyperparameters, safe_names

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DATABASE = "mlflow.db"
NOTE = "mlflow.json"  # in the run directory: the number of the run in the database
EXPERIMENT = "crossward"
MARK = "round/seconds"  # is in every round
MOST_AT_ONCE = 100  # parameters that MLflow takes in one request; of metrics it takes more


class MlflowLog(RoundLog):
    _client: MlflowClient | None = None
    _run = ""
    _finished = False

    @property
    def database(self) -> Path:
        return self.rundir.folder.absolute().parent / DATABASE

    def open(self) -> int:
        with self._words_for_errors():
            self._client = _client_of(self.database)
            self._run = self._known_run() or self._new_run()
            self._client.update_run(self._run, status="RUNNING")
            history = self._client.get_metric_history(self._run, MARK)
        return max((metric.step for metric in history), default=0)

    def write(self, round: int, when: float, scalars: Scalars) -> None:
        """The mark comes last: a round that a crash cut short is written again, to the same rows."""
        values = {name: value for name, value in scalars.items() if name != MARK} | {MARK: scalars[MARK]}
        self._log_metrics(values, round, when)

    def finish(self, summary: Scalars) -> None:
        self._log_metrics(summary, 0, self._started + self._seconds)
        assert self._client is not None
        with self._words_for_errors():
            self._client.set_terminated(self._run, "FINISHED")
        self._finished = True

    def close(self) -> None:
        """A run that did not finish is not left as one that runs."""
        if self._client is not None and not self._finished:
            with self._words_for_errors():
                self._client.set_terminated(self._run, "KILLED")

    def _known_run(self) -> str:
        """The run that this directory began before it was interrupted, unless the database is another one now."""
        from mlflow.exceptions import MlflowException

        if not (self.rundir.folder / NOTE).exists():
            return ""
        number = str(self.rundir.read(NOTE)["run_id"])
        assert self._client is not None
        try:
            self._client.get_run(number)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return ""
        return number

    def _new_run(self) -> str:
        from mlflow.entities import Param

        assert self._client is not None
        folder = self.rundir.folder.absolute()
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        place = (folder.parent / "mlflow-artifacts").as_uri()
        number = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT, place)
        name = safe_names([folder.name])[folder.name]
        about = self.rundir.about
        tags = {"crossward": about["crossward"], "method": about["method"]["name"], "task": about["task"]["name"]}
        run = str(self._client.create_run(number, int(self._started * 1000), tags, name).info.run_id)
        values = hyperparameters(self.config).items()
        for some in _parts([Param(safe_names([key])[key], str(value)) for key, value in values]):
            self._client.log_batch(run, params=some)
        self.rundir.write(NOTE, {"run_id": run})
        return run

    def _log_metrics(self, scalars: Scalars, step: int, when: float) -> None:
        from mlflow.entities import Metric

        assert self._client is not None
        moment = round(when * 1000)
        with self._words_for_errors():
            for some in _parts([Metric(name, value, moment, step) for name, value in scalars.items()]):
                self._client.log_batch(self._run, metrics=some)

    @contextmanager
    def _words_for_errors(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            raise StorageError(
                f"MLflow cannot write {self.database}: {error}",
                hint=f"Go on without it by: crossward resume {self.rundir.folder} --set observe.mlflow=false",
            ) from None


def _client_of(database: Path) -> MlflowClient:
    """The client of a database on this machine, which is made if it is not there; one process makes it at a time."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when mlflow is imported
    os.environ["DO_NOT_TRACK"] = "true"
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow.tracking import MlflowClient

    with FileLock(database.with_name(f".{database.name}.lock")):
        return MlflowClient(f"sqlite:///{database}")


def _parts(values: Sequence[Any]) -> Iterator[list[Any]]:
    for at in range(0, len(values), MOST_AT_ONCE):
        yield list(values[at : at + MOST_AT_ONCE])
