"""The benchmark of hospitals, with a run in this process in place of a run across processes: `make e2e` has those."""

from __future__ import annotations

import os
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
    assert "0.00 s a site and round" in printed
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
    assert [case.name for case in hospitals.CASES] == ["cnn-0", "cnn-1", "resnet18-0", "resnet18-1"]
