"""A run killed at any moment goes on to the same bits. The killed runs are processes of their own, killed for real."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

import psutil
import pytest
from dying import ANYWHERE, POINTS, pool_and_die, resume_and_die, run_and_die

from crossward.methods import METHODS, method_class
from crossward.runs import lifecycle as api
from crossward.runs.run_directory import RunDir
from crossward.testing.small_options import SMALL_METHOD_OPTIONS

CLASSIFYING = [name for name in METHODS if "classification" in method_class(name).tasks]
SMALL = {"sites": 4, "train": 12, "val": 6, "test": 6}
SECTIONS = {"data": SMALL, "evaluate": {"select": "nll"}, "partition": {"public": 0.2}}
KEEPING = {
    "train": {"keep_state": True, "momentum": 0.9, "lr": 0.05, "batch_size": 4},
    "run": {"participation": 0.5, "rounds": 3},
    "checkpoint": {"every": 1},  # on a busy disk, "auto" would leave out the one that a run is to be killed at
}
SECONDS_TO_END = 30  # for workers whose parent was killed, on a busy machine
WRITES = 33  # of files, in a scaffold run with these settings; the last is the word "finished"


@pytest.fixture(scope="module")
def killed():
    """Calls a function in a process that must die by SIGKILL. The processes are forked off one that has imported
    torch and trained nothing, as that takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["crossward.runs.lifecycle", "torch._dynamo", "crossward.data.sources.phantom.source", "crossward.nets.cnn"]
    )

    def call(work, *args) -> None:
        process = context.Process(target=work, args=args)
        process.start()
        process.join(600)
        assert process.exitcode == -signal.SIGKILL

    return call


@pytest.fixture
def same(run_contents):
    """Whether two runs left the same, by the names of what differs."""

    def differing(one: Path, other: Path) -> list[str]:
        a, b = run_contents(one), run_contents(other)
        return [name for name in {**a, **b} if a.get(name) != b.get(name)]

    return differing


def folder_of(config) -> Path:
    [folder] = Path(config["run"]["out"]).iterdir()
    return folder


# Every method is resumed within one process by the conformance suite; killed for real, these in every run of the tests
# and the others in `make e2e`.
IN_EVERY_RUN = ("fedavg", "scaffold", "moon", "fedproto", "fedbm", "fednpr-per", "feddf", "mh-pflgb", "fedavg+ft")
CASES = [
    *(
        pytest.param(name, point, {}, marks=() if name in IN_EVERY_RUN else pytest.mark.e2e)
        for name, point in zip([*CLASSIFYING, "fedavg+ft"], cycle(ANYWHERE))
    ),
    *(("scaffold", point, KEEPING) for point in POINTS),
    ("fedavg+ft", "between two deployed networks", {}),
    ("local", "between two deployed networks", {}),
]


@pytest.mark.parametrize(("method", "point", "more"), CASES)
def test_a_killed_run_resumes_to_the_same_bits(finished_run, killed, same, config, method, point, more):
    options = SMALL_METHOD_OPTIONS.get(method, {})
    whole = finished_run(method, options, **SECTIONS | more)
    begun = config(**SECTIONS | more | {"method": {"name": method} | options})
    killed(run_and_die, begun, point)
    folder = folder_of(begun)
    assert RunDir.open(folder).about["status"] == "running"
    assert api.resume(folder).about["status"] == "finished"
    assert same(folder, whole.folder) == []


@pytest.mark.parametrize("write", [*range(5, WRITES, 3), WRITES])
def test_a_file_cut_short_by_the_kill(finished_run, killed, same, config, write):
    whole = finished_run("scaffold", {}, **SECTIONS | KEEPING)
    begun = config(**SECTIONS | KEEPING | {"method": {"name": "scaffold"}})
    killed(run_and_die, begun, write)
    api.resume(folder_of(begun))
    assert same(folder_of(begun), whole.folder) == []
    assert not list(folder_of(begun).rglob(".*"))


def test_before_the_run_is_described_it_can_be_started_again(finished_run, killed, same, config):
    begun = config(**SECTIONS | KEEPING | {"method": {"name": "scaffold"}})
    begun["run"]["name"] = "mine"
    for write in (1, 4):  # partition.json, run.json
        killed(run_and_die, begun, write)
    api.run(begun)
    assert same(folder_of(begun), finished_run("scaffold", {}, **SECTIONS | KEEPING).folder) == []


def test_killed_again_and_again(finished_run, killed, same, config):
    whole = finished_run("scaffold", {}, **SECTIONS | KEEPING)
    begun = config(**SECTIONS | KEEPING | {"method": {"name": "scaffold"}})
    killed(run_and_die, begun, "between the best and the last checkpoint")
    for point in ("before old memory is discarded", "after the last round", "before the summary"):
        killed(resume_and_die, folder_of(begun), point)
    api.resume(folder_of(begun))
    assert same(folder_of(begun), whole.folder) == []


def test_memory_that_lives_on_disk(finished_run, killed, same, config):
    """1 MiB holds the memory of two clients, so that the others are evicted, at other moments after resuming."""
    more = KEEPING | {"run": {"rounds": 3}}
    whole = finished_run("scaffold", {}, **SECTIONS | more)
    begun = config(**SECTIONS | more | {"method": {"name": "scaffold"}, "engine": {"memory_mib": 1, "device": "cpu"}})
    killed(run_and_die, begun, "between the best and the last checkpoint")
    api.resume(folder_of(begun))
    assert same(folder_of(begun), whole.folder) == []


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("fedavg+ft", "fednpr-per", "mh-pflgb"), id="some methods"),
        pytest.param(("fedavg+ft", *CLASSIFYING), id="every method", marks=pytest.mark.e2e),
    ],
)
def test_the_local_engine_takes_up_what_the_pool_began(finished_run, killed, same, tmp_path, config, names):
    """Both compute the same bits."""
    methods = [*((name, {}) for name in names), ("scaffold", KEEPING)]
    engine = {"engine": {"name": "pool", "workers": 2, "device": "cpu"}}
    begun = []
    for name, more in methods:
        method = {"name": name} | SMALL_METHOD_OPTIONS.get(name, {})
        begun.append(config(**SECTIONS | more | engine | {"method": method}))
    for number, each in enumerate(begun):
        each["run"] = each["run"] | {"out": str(tmp_path / str(number))}
    killed(pool_and_die, begun, tmp_path / "pids")
    for (name, more), each in zip(methods, begun, strict=True):
        api.resume(folder_of(each), ["engine.name=local"])
        whole = finished_run(name, SMALL_METHOD_OPTIONS.get(name, {}), **SECTIONS | more)
        assert same(folder_of(each), whole.folder) == [], name
    until = time.monotonic() + SECONDS_TO_END
    workers = {*map(int, (tmp_path / "pids").read_text().split())}
    while any(map(is_a_worker, workers)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [*filter(is_a_worker, workers)]


def is_a_worker(pid: int) -> bool:
    """Whether it still runs, and is no other process that was given the same number since."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "crossward.engines.pool_worker" in process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def test_the_pool_takes_up_what_it_was_killed_in(finished_run, killed, same, config):
    whole = finished_run("scaffold", {}, **SECTIONS | KEEPING)
    begun = config(**SECTIONS | KEEPING | {"method": {"name": "scaffold"}, "engine": {"name": "pool", "workers": 2}})
    begun["engine"]["device"] = "cpu"
    killed(run_and_die, begun, "between the best and the last checkpoint")
    api.resume(folder_of(begun), ["engine.workers=1"])
    assert same(folder_of(begun), whole.folder) == []


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """`crossward run` on a pool, with Ctrl-C as a terminal sends it: to the command and to its workers."""
    from crossward.config.reading import to_toml

    out = tmp_path_factory.mktemp("interrupted")
    engine = {"name": "pool", "workers": 1, "device": "cpu"}
    data = {"source": "phantom", "global_test": 16, "size": 28} | SMALL
    (out / "c.toml").write_text(to_toml({"run": {"rounds": 12, "out": str(out)}, "data": data, "engine": engine}))
    command = [sys.executable, "-m", "crossward.cli.main", "run", str(out / "c.toml"), "--json"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # under nohup, Ctrl-C would be ignored
    )
    assert '"round": 1,' in process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=600)
    return out / "fedavg-blood-s0-1", process.returncode, said


def test_ctrl_c_ends_the_command_with_130_and_the_run_resumes(interrupted, cli, same, tmp_path):
    folder, code, said = interrupted
    assert code == 130
    assert "Traceback" not in said
    assert RunDir.open(folder).about["status"] == "interrupted"
    assert 1 <= len(RunDir(folder).lines("metrics.jsonl")) < 12
    resumed = cli("resume", folder, "--set", "engine.name=local", "-q")
    assert (resumed.code, resumed.out) == (0, f"{folder}\n")
    again = cli("run", folder / "config.toml", "--set", "engine.name=local", "--set", f"run.out={tmp_path}", "-q")
    assert same(folder, Path(again.out.strip())) == []


def test_ctrl_c_tells_how_to_go_on(interrupted):
    folder, _, said = interrupted
    assert f"crossward resume {folder}" in said
