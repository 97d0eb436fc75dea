"""Studies by SLURM: submitit's debug and local executors for real, and a SLURM of four small scripts."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from crossward.errors import ConfigError, StorageError
from crossward.runs.run_directory import RunDir
from crossward.studies.cluster_scheduler import JOBS, ClusterScheduler
from crossward.studies.cluster_settings import RaySettings, SlurmSettings, memory_bytes, with_options
from crossward.studies.cluster_task import OUTCOME, beside
from crossward.studies.scheduler import Job
from crossward.studies.slurm import SlurmQueue, slurm_scheduler
from crossward.studies.states import FINISHED
from crossward.studies.study_engines import study_engine
from tests.studies.execution import Notes, RunHere

submitit = pytest.importorskip("submitit", reason="pip install 'crossward[cluster]'")

SECTION = 'seeds = [0]\nmethod = ["fedavg", "local"]\nbaselines = ["ensemble"]'


class Watch(Notes):
    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self.rounds: list[int] = []

    def on_done(self, job, seconds, peak_bytes) -> None:
        self.done.append(job.key)

    def on_round(self, job, event) -> None:
        self.rounds.append(event["round"])


# submitit's own executors ---------------------------------------------------------------------------------------------


def test_cells_by_the_debug_executor_are_the_same_runs(make_study, run_contents):
    here = make_study(SECTION, name="here")
    here.run(execute=RunHere())
    study = make_study(SECTION)
    view = Watch()
    outcome = study.run(execute=slurm_scheduler(study.folder, SlurmSettings(cluster="debug")), view=view)
    assert outcome.complete
    assert view.rounds[-1] == 2
    for cell, other in zip(study.cells, here.cells, strict=True):
        assert run_contents(cell.folder) == run_contents(other.folder)
    assert sorted(file.name for file in (study.folder / "cluster").iterdir()) == [JOBS, "logs"]


def test_a_cell_that_fails_on_a_node_is_reported_with_its_reason(make_study):
    study = make_study('seeds = [0]\nmethod = ["fedavg", "fedmd"]')
    outcome = study.run(execute=slurm_scheduler(study.folder, SlurmSettings(cluster="debug")))
    assert [each.state for each in outcome.cells] == [FINISHED, "failed"]
    assert "needs a public set" in outcome.cells[1].reason


def test_the_local_executor_starts_no_more_than_asked_and_goes_on_after_pre_emption(make_study, run_contents):
    """The job is sent the signal of a pre-emption once it has a checkpoint; submitit starts it again."""
    rounds = "[data]\nsites = 2\ntrain = 16\nval = 4\ntest = 4\nglobal_test = 8\n[run]\nrounds = 120\n"
    study = make_study('seeds = [0]\nmethod = ["fedavg"]', rounds)
    queue = SlurmQueue(study.folder / "cluster", SlurmSettings(cluster="local", array_parallelism=1))
    assert queue.limit == 1
    [cell] = study.cells

    class Preempt(Watch):
        sent = 0

        def on_tick(self) -> None:
            if not self.sent and self.rounds and self.rounds[-1] >= 1:
                [job] = queue.jobs.values()
                [task] = children(job.job_id)
                os.kill(task, submitit.JobEnvironment._usr_sig())
                self.sent = self.rounds[-1]

    view = Preempt()
    queue.interval = 0.1
    study.run(execute=ClusterScheduler(queue, study.folder / "cluster"), view=view)
    assert 0 < view.sent < 120
    logs = "".join(file.read_text() for file in (study.folder / "cluster" / "logs").glob("*_log.*"))
    assert "Requeued job" in logs
    assert RunDir(cell.folder).about["status"] == "finished"
    assert [line["round"] for line in RunDir(cell.folder).lines("metrics.jsonl")] == list(range(1, 121))


def children(pid: str) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# a SLURM of scripts ---------------------------------------------------------------------------------------------------

SBATCH = """#!{python}
import pathlib, sys
folder = pathlib.Path(__file__).parent
(folder / "submitted.sh").write_text(pathlib.Path(sys.argv[1]).read_text())
print("Submitted batch job 77")
"""
SQUEUE = """#!{python}
import pathlib
file = pathlib.Path(__file__).parent / "queue"
print(file.read_text() if file.exists() else "")
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """sbatch writes down what it is given, squeue lists what the file `queue` says; nothing runs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "squeue": SQUEUE, "srun": SQUEUE, "sacct": SQUEUE}.items():
        (folder / name).write_text(text.format(python=sys.executable))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr("crossward.studies.slurm.LOOK", {"slurm": 0.05})
    monkeypatch.setattr("crossward.studies.slurm.LISTED_FOR", 0.0)
    return folder


def jobs_for(tmp_path: Path, *names: str) -> list[Job]:
    return [Job(name, name, {"task": "run", "folder": str(tmp_path / name), "config": {}}) for name in names]


def test_cells_are_an_array_with_the_options_of_the_study(slurm, tmp_path):
    settings = SlurmSettings(
        partition="gpu", memory="16 GB", time="8:00:00", cpus=4, gpus=1, array_parallelism=3,
        setup=("module load python",), extra={"nice": 100},
    )  # fmt: skip
    queue = SlurmQueue(tmp_path / "cluster", settings)
    assert queue.submit([tmp_path / f"{i}.task.json" for i in range(5)]) == [f"77_{i}" for i in range(5)]
    script = (slurm / "submitted.sh").read_text()
    for line in ("array=0-4%3", "partition=gpu", "mem=16GB", "time=480", "cpus-per-task=4", "gpus-per-node=1",
                 "signal=USR2@90", "nice=100"):  # fmt: skip
        assert f"#SBATCH --{line}\n" in script
    assert "module load python" in script


def test_what_is_handed_over_holds_a_path_and_no_configuration(slurm, tmp_path):
    queue = SlurmQueue(tmp_path / "cluster", SlurmSettings())
    queue.submit([tmp_path / "a.task.json", tmp_path / "b.task.json"])
    [pickled, _] = sorted((tmp_path / "cluster" / "logs").glob("*submitted.pkl"))
    content = pickled.read_bytes()
    assert b"crossward.studies.cluster_task" in content
    assert str(tmp_path / "a.task.json").encode() in content
    assert len(content) < 1000


def test_jobs_stay_in_the_queue_when_the_study_stops_and_are_watched_again(slurm, tmp_path):
    (slurm / "queue").write_text("77_0\n77_1\n")
    scheduler = slurm_scheduler(tmp_path, SlurmSettings())
    jobs = jobs_for(tmp_path, "a", "b")

    class Stop(Watch):
        def on_tick(self) -> None:
            raise KeyboardInterrupt

    view = Stop()
    with pytest.raises(KeyboardInterrupt):
        scheduler(jobs, view)
    assert view.notes[-1].startswith("2 job(s) go on in the queue (77)")
    (slurm / "submitted.sh").unlink()
    tasks = {task.name.split("-")[0]: task for task in (tmp_path / "cluster").glob("*.task.json")}
    beside(tasks["a"], OUTCOME).write_text(json.dumps({"event": "done", "seconds": 1.5, "peak_bytes": 7}))
    beside(tasks["b"], OUTCOME).write_text(json.dumps({"event": "failed", "reason": "no memory"}))
    again = Watch()
    slurm_scheduler(tmp_path, SlurmSettings())(jobs, again)
    assert again.notes == ["2 job(s) of an earlier call are watched again"]
    assert (again.done, again.failures) == (["a"], ["no memory"])
    assert not (slurm / "submitted.sh").exists()  # nothing was handed over twice


def test_a_job_that_is_gone_without_a_result_has_failed(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr("crossward.studies.cluster_scheduler.LAG", 0.1)
    view = Watch()
    began = time.monotonic()
    slurm_scheduler(tmp_path, SlurmSettings())(jobs_for(tmp_path, "a", "b"), view)
    assert time.monotonic() - began < 10
    assert len(view.failures) == 2
    assert "ended without a result: it is no longer in the queue, see" in view.failures[0]


def test_a_full_disk_on_a_node_stops_the_study(slurm, tmp_path):
    (slurm / "queue").write_text("77\n")

    class Full(Watch):
        def on_start(self, job) -> None:
            [task] = (tmp_path / "cluster").glob("*.task.json")
            outcome = {"event": "failed", "reason": "no space left", "errno": 28}
            beside(task, OUTCOME).write_text(json.dumps(outcome))

    with pytest.raises(StorageError, match="no space left"):
        slurm_scheduler(tmp_path, SlurmSettings())(jobs_for(tmp_path, "a"), Full())


# what is refused ------------------------------------------------------------------------------------------------------


def test_without_sbatch_the_message_says_where_to_go(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no sbatch here") as error:
        slurm_scheduler(tmp_path, SlurmSettings())
    assert "login node" in error.value.hint


def test_without_submitit_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError) as error:
        slurm_scheduler(tmp_path, SlurmSettings(cluster="debug"))
    assert "crossward[cluster]" in error.value.hint


@pytest.mark.parametrize(
    ("option", "what"),
    [
        ("cpu=4", "has no option 'cpu'.*'cpus'"),
        ("cpus", "is not of the form key=value"),
        ("cpus=many", "cpus: .*integer"),
        ("cpus=0", "cpus: .*greater"),
        ("time=soon", "time: .*minutes"),
        ("memory=lots", 'memory is written as "16GB"'),
        ("cluster=mesos", "cluster: "),
    ],
)
def test_wrong_options_are_refused(option, what):
    with pytest.raises(ConfigError, match=f"(?s){what}"):
        with_options(SlurmSettings(), "--slurm", [option])


def test_options_of_the_command_line_stand_before_those_of_the_file():
    settings = SlurmSettings.model_validate({"slurm_array_parallelism": 4, "cpus": 2})
    changed = with_options(settings, "--slurm", ["slurm_array_parallelism=8", "setup=module load cuda"])
    assert (changed.array_parallelism, changed.cpus, changed.setup) == (8, 2, ("module load cuda",))
    assert SlurmSettings(time="2-00:00:00").time == 2880
    assert SlurmSettings(time="2-03:00").time == 2 * 1440 + 180
    assert SlurmSettings(time="30:30").time == 31
    assert memory_bytes(RaySettings(memory="2GiB").memory or "") == 2 * 2**30


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--engine", "slrum"), "there is no engine 'slrum' for a study"),
        (("--slurm", "cpus=2"), "--slurm is for --engine slurm, and the engine is local"),
        (("--engine", "slurm", "--ray", "cpus=2"), "--ray is for --engine ray"),
    ],
)
def test_engines_that_do_not_fit_are_refused(make_study, cli, words, what):
    study = make_study(SECTION)
    done = cli("study", "run", str(study.file.file), "--out", str(study.out), *words)
    assert done.code == 2
    assert what in done.err


def test_this_machine_is_the_engine_by_default(make_study):
    study = make_study(SECTION)
    with study_engine("local", study.file.settings, study.folder) as execute:
        assert execute is None
