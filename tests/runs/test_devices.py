"""Devices: which ones are chosen, what is refused before a run, how many workers they take, what a run says of them."""

from __future__ import annotations

import json
import subprocess

import pytest
import torch

from crossward.config.reading import config_from
from crossward.config.schema import EngineSettings
from crossward.core.determinism import fix_order_of_sums
from crossward.core.engine import Job, run_job
from crossward.data.sources.phantom.source import PhantomSettings
from crossward.errors import ConfigError, RunError
from crossward.runs import devices
from crossward.runs.build import prepare
from crossward.runs.devices import (
    chosen_devices,
    device_cautions,
    device_facts,
    repeats_to_the_bit,
    used_devices,
    worker_count,
)


@pytest.fixture
def gpus(monkeypatch):
    """A machine with three GPUs, as torch would report it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


@pytest.fixture
def no_gpus(monkeypatch):
    for kind in devices.ACCELERATORS:
        monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: False)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("auto", ("cuda:0", "cuda:1", "cuda:2")),
        ("all", ("cuda:0", "cuda:1", "cuda:2")),
        ("cuda", ("cuda:0",)),
        ("cuda:2", ("cuda:2",)),
        (("cuda:0", "cuda:2"), ("cuda:0", "cuda:2")),
        ("cpu", ("cpu",)),
    ],
)
def test_the_devices_that_are_asked_for(wanted, expected):
    assert chosen_devices(wanted) == expected


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("cuda:3", "from cuda:0 to cuda:2"),
        (("cuda:0", "cuda:7"), "'cuda:7'"),
        ("cuda:x", "from cuda:0 to cuda:2"),
        ("tpu", "there is no tpu here"),
        ((), "not on this machine"),
        (("cuda:1", "cuda:1"), "more than once"),
        (("cuda", "cuda:0"), "more than once"),
        (("cuda:1", "cpu"), "mixes kinds"),
    ],
)
def test_devices_that_are_not_there_are_refused(wanted, words):
    with pytest.raises(ConfigError) as error:
        chosen_devices(wanted)
    assert words in str(error.value)
    assert error.value.hint


@pytest.mark.usefixtures("no_gpus")
def test_a_machine_without_gpus():
    assert chosen_devices("auto") == ("cpu",)
    with pytest.raises(ConfigError, match="no accelerator"):
        chosen_devices("all")
    with pytest.raises(ConfigError, match="no cuda here") as error:
        chosen_devices("cuda")
    assert "cpu" in error.value.hint


@pytest.fixture
def unreadable_images(monkeypatch):
    """Whoever reads images of the phantom fails the test: real ones may take an hour."""

    def load(self):
        raise AssertionError("images were read")

    monkeypatch.setattr(PhantomSettings, "load", load)


@pytest.mark.usefixtures("unreadable_images")
def test_a_run_refuses_a_device_before_it_reads_images(config):
    with pytest.raises(ConfigError, match=r"engine\.device"):
        prepare(config_from(config(engine={"device": ["cpu", "tpu:1"]})))


@pytest.mark.usefixtures("unreadable_images")
def test_a_run_misses_a_compiler_before_it_reads_images(config, monkeypatch):
    monkeypatch.setattr(devices, "compiler_problem", lambda device: "no compiler")
    with pytest.raises(ConfigError, match=r"engine\.compile"):
        prepare(config_from(config(engine={"device": "cpu", "compile": True})))


@pytest.mark.parametrize(
    ("settings", "here", "sites", "expected"),
    [
        ({}, ("cuda:0", "cuda:1"), 9, 2),
        ({"workers": 5}, ("cuda:0", "cuda:1"), 9, 5),
        ({}, ("cpu",), 9, 8),
        ({}, ("cpu",), 3, 3),
        ({"threads": 3}, ("cpu",), 9, 2),
        ({"threads": 16}, ("cpu",), 9, 1),
    ],
)
def test_how_many_workers(monkeypatch, settings, here, sites, expected):
    monkeypatch.setattr(devices, "usable_cores", lambda: 8)
    assert worker_count(EngineSettings(name="pool", **settings), here, sites) == expected


def test_idle_devices_are_reported(monkeypatch):
    two = ("cuda:0", "cuda:1")
    (line,) = device_cautions(EngineSettings(name="local"), two, 9, 9)
    assert line.startswith("cuda:1 will be idle")
    assert 'engine.name = "pool"' in line
    (line,) = device_cautions(EngineSettings(name="pool", workers=1), two, 9, 9)
    assert 'engine.workers = "auto"' in line
    assert device_cautions(EngineSettings(name="pool"), two, 9, 9) == []
    assert device_cautions(EngineSettings(name="pool"), two, 9, 2) == []
    (line,) = device_cautions(EngineSettings(name="pool"), ("cuda:0", "cuda:1", "cuda:2"), 9, 2)
    assert line == "cuda:2 will be idle while sites train: 2 of them do in a round"
    (line,) = device_cautions(EngineSettings(name="pool", workers=3), ("cuda:0", "cuda:1"), 9, 1)
    assert line == "cuda:1 will be idle while sites train: 1 of them does in a round"
    monkeypatch.setattr(devices, "usable_cores", lambda: 2)
    assert device_cautions(EngineSettings(name="pool", workers=4), two, 9, 9) == []  # GPUs do the work, not cores
    assert device_cautions(EngineSettings(name="pool", workers=4), ("cpu",), 9, 9) == [
        "4 workers of 1 threads on 2 cores"
    ]


def test_devices_that_other_runs_of_a_study_use_are_not_idle(monkeypatch):
    monkeypatch.setenv("CROSSWARD_WORKERS", "2")
    assert device_cautions(EngineSettings(name="local"), ("cuda:0", "cuda:1"), 9, 9) == []
    (line,) = device_cautions(EngineSettings(name="local"), ("cuda:0", "cuda:1", "cuda:2"), 9, 9)
    assert line.startswith("cuda:2 will be idle: 2 process(es) compute")


@pytest.mark.parametrize(
    ("settings", "worker", "expected"),
    [
        ({"name": "local"}, "0", ("cuda:0",)),
        ({"name": "local"}, "4", ("cuda:1",)),
        ({"name": "pool"}, "0", ("cuda:0", "cuda:1", "cuda:2")),
        ({"name": "pool", "workers": 2}, "0", ("cuda:0", "cuda:1")),
        ({"name": "pool", "workers": 5}, "0", ("cuda:0", "cuda:1", "cuda:2")),
    ],
)
def test_the_devices_that_a_run_computes_on(monkeypatch, settings, worker, expected):
    monkeypatch.setenv("CROSSWARD_WORKER", worker)
    assert used_devices(EngineSettings(**settings), ("cuda:0", "cuda:1", "cuda:2"), 9) == expected


@pytest.mark.parametrize("visible", ["1", "GPU-5e6f7a8b", "GPU-5e6f7a8b-1111-2222-3333-444455556666"])
def test_what_a_run_says_of_its_devices(monkeypatch, visible):
    answer = (
        "0, GPU-1a2b3c4d-1111-2222-3333-444455556666, NVIDIA A100, 40960 MiB, 550.54\n"
        "1, GPU-5e6f7a8b-1111-2222-3333-444455556666, NVIDIA L4, 23034 MiB, 550.54\n"
    )
    monkeypatch.setattr(devices.shutil, "which", lambda name: "/bin/nvidia-smi")
    done = subprocess.CompletedProcess([], 0, answer)
    monkeypatch.setattr(devices.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices._nvidia.cache_clear()
    try:
        facts = device_facts(("cuda:0",))
    finally:
        devices._nvidia.cache_clear()
    expected = {"device": "cuda:0", "is": "NVIDIA L4", "memory": "23034 MiB", "driver": "550.54"}
    assert facts["devices"] == [expected]
    assert device_facts(("cpu",)) == {"devices": [{"device": "cpu"}]}


def test_how_far_a_run_repeats():
    assert repeats_to_the_bit(("cpu",), False).startswith("to the bit")
    assert repeats_to_the_bit(("cuda:0",), False).startswith("not to the bit")
    assert repeats_to_the_bit(("cuda:0",), True).startswith("to the bit")


def test_the_run_directory_says_so(finished_run):
    environment = json.loads((finished_run().folder / "environment.json").read_text())
    assert environment["repeats"] == "to the bit, on the same kind of CPU"
    assert environment["devices"] == [{"device": "cpu"}]


def test_deterministic_algorithms_are_for_accelerators(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    usual = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    try:
        fix_order_of_sums(torch.device("cpu"), True)
        assert not torch.are_deterministic_algorithms_enabled()
        fix_order_of_sums(torch.device("cuda"), True)
        assert torch.are_deterministic_algorithms_enabled()
        fix_order_of_sums(torch.device("cuda"), False)
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = usual


def test_an_operation_without_a_deterministic_algorithm_is_named(config, monkeypatch):
    run_sites = prepare(config_from(config())).run_sites

    def lacking(*_, **__):
        raise RuntimeError("upsample_bilinear2d_backward does not have a deterministic implementation, but you set …")

    monkeypatch.setattr(type(run_sites.method), "train", lacking)
    with pytest.raises(RunError, match="upsample_bilinear2d_backward") as error:
        run_job(run_sites, Job(0, "train", 0, 0, True), {}, {})
    assert "engine.deterministic = false" in error.value.hint


def test_compiling_without_a_compiler_is_refused_before_the_run(monkeypatch):
    monkeypatch.setattr(devices, "compiler_problem", lambda device: f"no compiler for {device}")
    with pytest.raises(ConfigError, match=r"engine\.compile = true: no compiler for cpu"):
        prepare(config_from({"engine": {"compile": True, "device": "cpu"}}))
    prepare(config_from({"engine": {"device": "cpu"}}))
