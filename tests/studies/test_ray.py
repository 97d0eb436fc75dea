"""Studies by Ray, on this machine."""

from __future__ import annotations

import sys

import pytest

from crossward.errors import ConfigError, RunError
from crossward.studies.cluster_settings import RaySettings
from crossward.studies.ray_cluster import ray_scheduler
from tests.studies.execution import Notes, RunHere


@pytest.mark.e2e
def test_cells_are_tasks_of_ray_and_the_same_runs(make_study, run_contents, monkeypatch):
    pytest.importorskip("ray", reason="pip install 'crossward[simulate]'")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    section = 'seeds = [0]\nmethod = ["fedavg", "fedmd"]'
    here = make_study('seeds = [0]\nmethod = ["fedavg"]', name="here")
    here.run(execute=RunHere())
    study = make_study(section)
    view = Notes()
    with ray_scheduler(study.folder, RaySettings()) as execute:
        outcome = study.run(execute=execute, view=view)
    assert [each.state for each in outcome.cells] == ["finished", "failed"]
    assert "needs a public set" in view.failures[0]
    assert run_contents(study.cells[0].folder) == run_contents(here.cells[0].folder)


def test_without_ray_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError) as error, ray_scheduler(tmp_path, RaySettings()):
        pass
    assert "crossward[simulate]" in error.value.hint


def test_a_cluster_that_cannot_be_reached_is_reported(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="pip install 'crossward[simulate]'")

    def refuse(**_):
        raise ConnectionError("no answer")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    said = pytest.raises(RunError, match=r"cannot reach the Ray cluster at 10\.0\.0\.1:6379: no answer")
    with said, ray_scheduler(tmp_path, RaySettings()):
        pass
