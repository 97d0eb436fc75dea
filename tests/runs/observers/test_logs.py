"""TensorBoard and MLflow: what a run writes for them, also when it is interrupted, and that it changes no result."""

from __future__ import annotations

import importlib.util
import json
import socket

import pytest

from crossward.config.reading import config_from
from crossward.errors import ConfigError
from crossward.runs import lifecycle
from crossward.runs.observers import options


def scalars_of(folder):
    """Name -> [(step, value)] of a run's event files, as TensorBoard reads them."""
    module = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason='pip install "crossward[tensorboard]"'
    )
    log = module.EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    log.Reload()
    return {name: [(event.step, event.value) for event in log.Scalars(name)] for name in log.Tags()["scalars"]}


def mlflow_run(folder):
    """The client and the run in the database."""
    pytest.importorskip("mlflow", reason='pip install "crossward[mlflow]"')
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.absolute().parent / 'mlflow.db'}")
    return client, client.get_run(json.loads((folder / "mlflow.json").read_text())["run_id"])


@pytest.fixture
def no_network(monkeypatch):
    """A connection to anywhere fails the test."""

    def refuse(self, address):
        if self.family != socket.AF_UNIX:
            pytest.fail(f"connects to {address}")
        raise OSError

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example.org")


def test_tensorboard_shows_every_round(config, no_network, run_contents):
    pytest.importorskip("tensorboard", reason='pip install "crossward[tensorboard]"')
    result = lifecycle.run(config(observe={"tensorboard": True}))
    found = scalars_of(result.folder)
    expected = [(line["round"], line["metrics"]["test"]["global"]["f1"]) for line in result.rounds]
    assert found["test/global/f1"] == [(step, pytest.approx(value)) for step, value in expected]
    assert [step for step, _ in found["loss/sites/hospital-2"]] == [1, 2, 3]
    best = result.summary["best"]
    assert found["best/test/global/f1"][0][1] == pytest.approx(best["metrics"]["test"]["global"]["f1"])
    plain = lifecycle.run(config())
    assert run_contents(plain.folder) == run_contents(result.folder)  # it changes no result
    content = b"".join(file.read_bytes() for file in (result.folder / "tensorboard").iterdir())
    assert b"train.lr" in content
    assert str(result.folder.parent).encode() not in content


def test_a_resumed_run_continues_its_event_files(config, interrupted_run):
    pytest.importorskip("tensorboard", reason='pip install "crossward[tensorboard]"')
    folder = interrupted_run(config(observe={"tensorboard": True}), round=2)
    assert [step for step, _ in scalars_of(folder)["round/clients"]] == [1, 2]
    next((folder / "tensorboard").iterdir()).write_bytes(b"cut short")  # as a crash may leave it
    result = lifecycle.resume(folder)
    found = scalars_of(result.folder)
    assert [step for step, _ in found["round/clients"]] == [1, 2, 3]
    assert len(found["test/global/f1"]) == 3


def test_mlflow_keeps_every_round_and_goes_on_after_an_interruption(config, interrupted_run, no_network, capfd):
    pytest.importorskip("mlflow", reason='pip install "crossward[mlflow]"')
    from mlflow.entities import Metric

    folder = interrupted_run(config(observe={"mlflow": True}), round=2)
    client, run = mlflow_run(folder)
    assert run.info.status == "KILLED"
    result = lifecycle.resume(folder)
    client, run = mlflow_run(result.folder)
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "test/global/f1")
    expected = [(line["round"], line["metrics"]["test"]["global"]["f1"]) for line in result.rounds]
    assert [(metric.step, metric.value) for metric in history] == expected
    assert run.data.metrics["best/round"] == result.summary["best"]["round"]
    assert run.data.params["train.lr"] == "0.05"
    assert run.data.tags["method"] == "fedavg"
    assert not [value for value in run.data.params.values() if str(folder.parent) in value]
    # a round that was cut short is written again to the same rows
    line = result.rounds[1]
    again = [Metric(m.key, m.value, m.timestamp, m.step) for m in history if m.step == line["round"]]
    client.log_batch(run.info.run_id, metrics=again)
    assert len(client.get_metric_history(run.info.run_id, "test/global/f1")) == 3
    # a run begun without it takes up its earlier rounds, beside the first in the same database
    other = interrupted_run(config(), round=1)
    resumed = lifecycle.resume(other, ["observe.mlflow=true"])
    client, second = mlflow_run(resumed.folder)
    assert second.info.run_id != run.info.run_id
    assert second.info.experiment_id == run.info.experiment_id
    assert [m.step for m in client.get_metric_history(second.info.run_id, "loss/mean")] == [1, 2, 3]
    assert "INFO" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("missing", "observe", "hint"),
    [
        ("tensorboard", {"tensorboard": True}, 'pip install "crossward[tensorboard]"'),
        ("mlflow", {"mlflow": True}, 'pip install "crossward[mlflow]"'),
        ("alembic", {"mlflow": True, "tensorboard": False}, 'pip install "crossward[mlflow]"'),
    ],
)
def test_a_missing_package_is_named_before_training(config, monkeypatch, no_training, missing, observe, hint, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(options, "find_spec", lambda name: None if name == missing else found(name))
    with no_training(), pytest.raises(ConfigError, match="needs more packages") as error:
        lifecycle.run(config(observe=observe))
    assert hint in error.value.hint
    assert not (tmp_path / "runs").exists()


def test_an_unknown_log_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError) as error:
        config_from({"observe": {"tensorbord": True}})
    assert "tensorboard" in str(error.value)


def test_a_run_of_before_this_option_can_be_resumed(config, interrupted_run):
    folder = interrupted_run(config(), round=1)
    about = json.loads((folder / "run.json").read_text())
    del about["config"]["observe"]
    (folder / "run.json").write_text(json.dumps(about))
    assert lifecycle.resume(folder).about["status"] == "finished"
