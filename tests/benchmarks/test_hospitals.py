"""The benchmark of hospitals, with a run in this process in place of a run across processes: `make e2e` has those."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest

pytest.importorskip("flwr")


@pytest.fixture
def hospitals(monkeypatch):
    """The program, whose sites are not started and whose runs across hospitals are runs in this process."""
    import hospitals

    started: list[str] = []

    @contextmanager
    def running_federation(folder: Path, sites: Sequence[str], members: Sequence[str]) -> Iterator[SimpleNamespace]:
        assert not sites
        assert len(members) == 2
        kit = SimpleNamespace(folder=folder, coordinator=folder / "coordinator")
        yield SimpleNamespace(kit=kit, start=started.append)
        assert started == [*members]

    def start_run(file: Path, coordinator: Path, overrides: Sequence[str], options: hospitals.RunOptions) -> Path:
        settings = tomllib.loads(file.read_text())
        settings["run"] |= {"out": str(coordinator), "name": options.name}
        return hospitals.run_here(hospitals.config_from(settings)).folder

    monkeypatch.setattr(hospitals, "running_federation", running_federation)
    monkeypatch.setattr(hospitals.Superlink, "of", lambda federation: hospitals.Superlink(None))
    monkeypatch.setattr(hospitals, "start_run", create_autospec(hospitals.start_run, side_effect=start_run))
    monkeypatch.setattr(hospitals, "follow_run", create_autospec(hospitals.follow_run))
    return hospitals


def test_a_round_across_hospitals_is_measured(hospitals, capsys):
    hospitals.main(["--smoke"])
    printed = capsys.readouterr().out
    assert printed.startswith("while nothing happens, the SuperLink takes 0.00% of a core for a site")
    assert "s a round across 2 sites" in printed
    assert "0.00 s a site and round; of all processes: 0.00 s a round" in printed
    assert "0.00 x the ledger" in printed
    assert hospitals.follow_run.call_count == 1


def test_the_figures_of_a_process(hospitals):
    """This one: it takes time and memory, and its rounds are seen."""
    process = hospitals.Superlink(os.getpid())
    assert process.seconds > 0
    assert process.mebibytes > 1
    process.after_rounds = [(1.0, 100.0), (1.5, 100.0), (2.5, 110.0)]
    assert process.seconds_of_round() == 0.75


def test_every_case_has_a_run_of_its_own(hospitals):
    names = ["cnn-0", "cnn-1", "wide-0", "wide-1", "resnet18-0", "resnet18-1"]
    assert [case.name for case in hospitals.CASES] == names


@pytest.mark.parametrize("net", ["wide", "resnet18"])
def test_networks_of_44_mb(hospitals, net):
    from crossward.nets import build

    settings = hospitals.config_from(hospitals.config("fedavg").canonical() | {"net": hospitals.NETS[net]})
    network = build(settings.net.name, channels=3, classes=8, size=24, **settings.net.options)
    assert sum(
        weight.numel() * weight.element_size() for weight in network.state_dict().values()
    ) / 1e6 == pytest.approx(44.7, abs=0.1)


def test_what_a_large_network_adds_is_without_its_training(hospitals, capsys):
    tiny, wide = hospitals.CASES[0], hospitals.CASES[2]
    took = {tiny: hospitals.Rounds(0.5, 0.3, 1.0), wide: hospitals.Rounds(3.0, 0.9, 5.5)}
    hospitals.print_added(took)
    assert capsys.readouterr().out == (
        "cnn of 44.7 MB, training only, adds 2.30 s a round by the clock, the 0.20 s left out that training takes more "
        "at a site; 4.50 s of all processors, with training\n"
    )
    hospitals.print_added({wide: took[wide]})  # nothing to compare it with
    assert capsys.readouterr().out == ""


def test_the_seconds_and_memory_of_all_processes(hospitals):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    everything = hospitals.AllProcesses(SimpleNamespace(processes={"coordinator": child}))
    before = everything.look()
    child.communicate(b"\n")
    assert everything.look() >= before  # what it has taken counts when it is gone
    everything.after_rounds = [2.0, 3.0, 5.0]
    assert everything.seconds_of_round() == 1.5
    assert hospitals.proportional_megabytes([os.getpid(), child.pid]) > 1
