"""Runs from the coordinator's folder: how they are called, what is refused before Flower hears of them, and that
whoever follows one is told of its end."""

from __future__ import annotations

import pytest

from crossward.config.reading import to_toml
from crossward.errors import ConfigError, RunError, StorageError
from crossward.hospitals.flower import federation_runs as runs
from crossward.hospitals.flower.coordinator import coordinate_run
from crossward.hospitals.flower.federation_runs import RunOptions, begin, follow, stop
from crossward.runs import lifecycle as api
from crossward.runs.run_directory import TERMS, RunDir
from crossward.testing.loopback_federation import grid


@pytest.fixture
def begun(made, tiny, tmp_path, monkeypatch):
    """begun("fedavg") is the folder of a run that Flower was told of."""
    monkeypatch.setattr(runs, "submit", lambda place, folder: None)

    def begin_(method, **asked):
        file = tmp_path / "run.toml"
        file.write_text(to_toml(tiny(method={"name": method}).canonical()))
        return begin(file, made / "coordinator", [], RunOptions(**asked))

    return begin_


def test_runs_without_a_name_are_numbered(begun):
    assert [begun("fedavg+npr").name for _ in range(2)] == ["fedavg-npr-s0-1", "fedavg-npr-s0-2"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"least": 3}, "--least 3: there are 2 sites"),
        ({"least": 0}, "--least 0: there are 2 sites"),
        ({"name": "../x"}, "../x"),
    ],
)
def test_what_cannot_be_is_refused(begun, made, asked, said):
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        begun("fedavg", **asked)
    assert not list((made / "coordinator" / "runs").glob("*"))


def test_a_name_that_is_taken(begun):
    begun("fedavg", name="mine")
    with pytest.raises(ConfigError, match="there is a run mine already"):
        begun("fedavg", name="mine")


def test_a_run_that_failed_before_its_first_round_ends_for_whoever_follows_it(begun):
    run = begun("fedavg", wait=0.0)
    with pytest.raises(RunError, match="0 of 2 sites take part"):
        coordinate_run(run, grid([]))
    heard = []
    with pytest.raises(RunError, match="failed") as error:
        follow(run, heard.append)
    assert "0 of 2 sites take part, 2 are needed" in error.value.details[0]
    assert heard[-1].startswith("failed: 0 of 2 sites")


def test_a_defect_ends_the_run_as_well(begun, monkeypatch):
    run = begun("fedavg")
    monkeypatch.setattr("crossward.hospitals.flower.coordinator._numbers", lambda config: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        coordinate_run(run, grid([]))
    with pytest.raises(RunError, match="failed") as error:
        follow(run, lambda line: None)
    assert error.value.details == ("a defect: ZeroDivisionError('division by zero')",)


def test_a_run_that_another_process_conducts_is_left_to_it(begun, monkeypatch):
    run = begun("fedavg")
    monkeypatch.setattr("crossward.hospitals.flower.coordinator.HANDOVER", 0.0)
    with RunDir(run).held(), pytest.raises(StorageError, match="another process"):
        coordinate_run(run, grid([]))
    assert not (run / "failed.json").exists()


def test_a_run_is_stopped_once(begun, made):
    run = begun("fedavg", name="mine")
    assert stop(made / "coordinator", "mine", insecure=False) == run
    with pytest.raises(ConfigError, match="mine has ended already"):
        stop(made / "coordinator", "mine", insecure=False)
    with pytest.raises(ConfigError, match="there is no run 'mien'"):
        stop(made / "coordinator", "mien", insecure=False)


def test_a_run_across_hospitals_is_not_resumed_here(finished_run):
    (finished_run / TERMS).write_text("{}")
    with pytest.raises(ConfigError, match="runs across hospitals"):
        api.resume(finished_run)


@pytest.fixture
def finished_run(tiny, tmp_path):
    return api.run(tiny(run={"rounds": 1, "out": str(tmp_path), "name": "done"})).folder


def test_only_runs_of_the_coordinator_are_conducted(begun, made, tmp_path, monkeypatch):
    from crossward.hospitals.flower.server_app import conduct_own

    monkeypatch.setenv("FLWR_HOME", str(made / "coordinator" / "flower"))
    with pytest.raises(ConfigError, match="is not a run of this coordinator"):
        conduct_own(tmp_path / "elsewhere", grid([]))
    with pytest.raises(RunError, match="0 of 2 sites take part"):
        conduct_own(begun("fedavg", wait=0.0), grid([]))
