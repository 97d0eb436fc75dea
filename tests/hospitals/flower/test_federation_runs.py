"""Runs from the coordinator's folder: how they are named, what is refused before Flower starts them, and that following
one ends with it."""

from __future__ import annotations

import shutil

import pytest

from crossward.config.reading import read_config, to_toml
from crossward.errors import ConfigError, RunError, StorageError
from crossward.hospitals.flower import coordinator_up
from crossward.hospitals.flower import federation_runs as module
from crossward.hospitals.flower.coordinator import coordinate_run
from crossward.hospitals.flower.coordinator_up import resume_runs, unfinished_runs
from crossward.hospitals.flower.federation_runs import RunOptions, follow_run, start_run, stop_run
from crossward.hospitals.flower.node_registry import INSECURE_FILE
from crossward.hospitals.flower.processes import FlowerWorkspace
from crossward.hospitals.run_following import failure_reason
from crossward.runs import lifecycle as api
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import TERMS
from crossward.testing.loopback_federation import create_grid


@pytest.fixture
def start(kit_folder, tiny, tmp_path, monkeypatch):
    """start("fedavg") is the folder of a run that Flower was asked to start."""
    monkeypatch.setattr(module, "submit_run", lambda workspace, folder: None)
    monkeypatch.setattr(module, "is_up", lambda workspace: True)

    def start_method(method, **options):
        file = tmp_path / "run.toml"
        file.write_text(to_toml(tiny(method={"name": method}).canonical()))
        return start_run(file, kit_folder / "coordinator", [], RunOptions(**options))

    return start_method


def test_runs_without_a_name_are_numbered(start):
    assert [start("fedavg+npr").name for _ in range(2)] == ["fedavg-npr-s0-1", "fedavg-npr-s0-2"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"least": 3}, "--least 3: there are 2 sites"),
        ({"least": 0}, "--least 0: there are 2 sites"),
        ({"name": "../x"}, "../x"),
    ],
)
def test_options_that_are_refused(start, kit_folder, options, problem):
    with pytest.raises(ConfigError, match=problem.replace(".", r"\.")):
        start("fedavg", **options)
    assert not list((kit_folder / "coordinator" / "runs").glob("*"))


def test_a_run_that_is_refused_leaves_nothing_that_could_come_back(start, kit_folder, monkeypatch):
    monkeypatch.setattr(module, "is_up", lambda workspace: False)
    with pytest.raises(RunError, match="the coordinator is not up, and nothing was started"):
        start("fedavg")
    assert unfinished_runs(kit_folder / "coordinator") == []
    assert not list((kit_folder / "coordinator" / "runs").glob("*"))


@pytest.mark.parametrize("reason", [RunError("Flower did not start the run"), KeyboardInterrupt()])
def test_a_run_that_flower_does_not_take_has_ended(start, kit_folder, monkeypatch, reason):
    def refuse(workspace, folder):
        raise reason

    monkeypatch.setattr(module, "submit_run", refuse)
    with pytest.raises(type(reason)):
        start("fedavg", name="mine")
    assert unfinished_runs(kit_folder / "coordinator") == []
    assert failure_reason(kit_folder / "coordinator" / "runs" / "mine").startswith("it was not started")


def test_a_run_that_was_never_started_is_not_started_later(start, kit_folder, monkeypatch):
    run = start("fedavg")  # as if the process had been killed before Flower took it
    submitted, lines = [], []
    monkeypatch.setattr(coordinator_up, "submit_run", lambda workspace, run: submitted.append(run))
    coordinator = kit_folder / "coordinator"
    resume_runs(unfinished_runs(coordinator), FlowerWorkspace(coordinator), lines.append)
    assert submitted == []
    assert lines == [f"{run.name} was never started, and is not started now"]
    assert unfinished_runs(coordinator) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"net": {"name": "cnn"}},
        {"data": {"size": 28, "classes": ["a", "b"]}},
        {"data": {"source": "folder", "size": 28}},
        {"data": {"source": "npz"}},
        {"data": {"source": "hospitals", "channels": 1}},
    ],
)
def test_a_configuration_needs_no_path_of_images(start, settings, kit_folder, tmp_path):
    start("fedavg")  # prepares everything else
    file = tmp_path / "no-path.toml"
    file.write_text(to_toml(settings))
    run = start_run(file, kit_folder / "coordinator", [], RunOptions())
    assert read_config(run / "config.toml").data.source == "hospitals"


def test_a_source_that_has_its_images_keeps_its_name(start, kit_folder):
    assert read_config(start("fedavg") / "config.toml").data.source == "phantom"


def test_mistakes_in_data_are_found_as_ever(start, kit_folder, tmp_path):
    file = tmp_path / "wrong.toml"
    file.write_text('[data]\nsource = "folder"\nsise = 28\n')
    with pytest.raises(ConfigError, match="not valid") as error:
        start_run(file, kit_folder / "coordinator", [], RunOptions())
    assert "data.sise: no such key" in error.value.details[0]
    assert "'size'" in error.value.details[0]


def test_a_federations_configuration_is_not_run_here():
    with pytest.raises(ConfigError, match="are at the hospitals, not here") as error:
        api.run({"data": {"source": "hospitals"}})
    assert "crossward federation run" in error.value.hint


def test_a_name_that_is_taken(start):
    start("fedavg", name="mine")
    with pytest.raises(ConfigError, match="there is a run mine already"):
        start("fedavg", name="mine")


def test_following_a_run_that_failed_before_its_first_round(start):
    run = start("fedavg", wait=0.0)
    with pytest.raises(RunError, match="0 of 2 sites take part"):
        coordinate_run(run, create_grid([]))
    lines = []
    with pytest.raises(RunError, match="failed") as error:
        follow_run(run, lines.append)
    assert "0 of 2 sites take part, 2 are needed" in error.value.details[0]
    assert "south: it has not come" in " ".join(error.value.details)
    assert lines[-1].startswith("failed: 0 of 2 sites")


def test_a_defect_ends_the_run_as_well(start, monkeypatch):
    run = start("fedavg")
    monkeypatch.setattr("crossward.hospitals.flower.coordinator._text_size", lambda config: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        coordinate_run(run, create_grid([]))
    with pytest.raises(RunError, match="failed") as error:
        follow_run(run, lambda line: None)
    assert error.value.details == ("a defect: ZeroDivisionError('division by zero')",)


def test_a_run_that_another_process_runs_is_left_to_it(start, monkeypatch):
    run = start("fedavg")
    monkeypatch.setattr("crossward.hospitals.flower.coordinator.HANDOVER", 0.0)
    with RunDir(run).locked(), pytest.raises(StorageError, match="another process"):
        coordinate_run(run, create_grid([]))
    assert not (run / "failed.json").exists()


def test_a_run_is_stopped_once(start, kit_folder):
    run = start("fedavg", name="mine")
    assert stop_run(kit_folder / "coordinator", "mine", insecure=False) == run
    with pytest.raises(ConfigError, match="mine has ended already"):
        stop_run(kit_folder / "coordinator", "mine", insecure=False)
    with pytest.raises(ConfigError, match="there is no run 'mien'"):
        stop_run(kit_folder / "coordinator", "mien", insecure=False)


def test_a_run_can_be_stopped_while_the_coordinator_is_down(start, kit_folder, monkeypatch):
    run = start("fedavg", name="mine")
    (run / coordinator_up.FLOWER_RUN_FILE).write_text('{"run": "1"}')
    monkeypatch.setattr(module, "is_up", lambda workspace: False)
    stop_run(kit_folder / "coordinator", "mine", insecure=False)
    assert unfinished_runs(kit_folder / "coordinator") == []


def test_a_follower_hears_of_a_coordinator_that_goes_down_or_does_not_begin(start, monkeypatch):
    run = start("fedavg")
    lines, ups = [], iter([True, False, True, True])
    monkeypatch.setattr(module, "is_up", lambda workspace: next(ups))
    monkeypatch.setattr(module, "UP_INTERVAL", 0.0)
    monkeypatch.setattr(module, "BEGIN_TIMEOUT", -1.0)
    looks = []

    def sleep(seconds):
        looks.append(1)
        if len(looks) == 4:
            RunDir(run).fail("enough")

    monkeypatch.setattr(module.time, "sleep", sleep)
    with pytest.raises(RunError, match="failed"):
        follow_run(run, lines.append)
    assert lines == [
        f"the coordinator has not begun with the run: {run.parents[1] / 'superlink.log'} may say why",
        "the coordinator is not up: the run goes on when it is started again",
        "the coordinator is up again",
    ]


def test_a_run_across_hospitals_is_not_resumed_here(finished_run):
    (finished_run / TERMS).write_text("{}")
    with pytest.raises(ConfigError, match="runs across hospitals"):
        api.resume(finished_run)


@pytest.fixture
def finished_run(tiny, tmp_path):
    return api.run(tiny(run={"rounds": 1, "out": str(tmp_path), "name": "done"})).folder


def test_only_runs_of_the_coordinator_itself_are_run(start, kit_folder, tmp_path, monkeypatch):
    from crossward.hospitals.flower.server_app import coordinate_own_run

    monkeypatch.setenv("FLWR_HOME", str(kit_folder / "coordinator" / "flower"))
    with pytest.raises(ConfigError, match="is not a run of this coordinator"):
        coordinate_own_run(tmp_path / "elsewhere", create_grid([]))
    planted = shutil.copytree(start("fedavg", name="ours"), kit_folder / "coordinator" / "runs" / "planted")
    with pytest.raises(ConfigError, match="is not a run of this coordinator"):
        coordinate_own_run(planted, create_grid([]))
    with pytest.raises(ConfigError, match="no site has a registered key"):
        coordinate_own_run(start("fedavg", name="early"), create_grid([]))
    (kit_folder / "coordinator" / "flower" / INSECURE_FILE).touch()
    with pytest.raises(RunError, match="0 of 2 sites take part"):
        coordinate_own_run(start("fedavg", wait=0.0), create_grid([]))
