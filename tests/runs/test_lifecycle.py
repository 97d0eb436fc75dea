"""One lifecycle: what it does once, and what a run directory says however a run ends."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from crossward.config.reading import config_from, method_of
from crossward.core.method import Method, RoundContext
from crossward.core.run import Observer, RoundRecord
from crossward.core.tree import Tree
from crossward.runs import lifecycle
from crossward.runs.build import prepare
from crossward.runs.run_directory import RunDir
from crossward.runs.run_files import FAILURE


def test_the_method_starts_once(config, monkeypatch):
    rounds = []
    start = Method.start

    def counting(self: Method, ctx: RoundContext) -> Tree:
        rounds.append(ctx.round)
        return start(self, ctx)

    monkeypatch.setattr(Method, "start", counting)
    lifecycle.run(config())
    assert rounds == [0]


def test_options_are_validated_once(config, monkeypatch):
    validated: list[str] = []
    original = TypeAdapter.validate_python

    def counting(self, value, **options):
        validated.append(getattr(self._type, "__name__", ""))
        return original(self, value, **options)

    monkeypatch.setattr(TypeAdapter, "validate_python", counting)
    settings = config_from(config(method={"name": "fedprox", "mu": 0.3}))
    prepare(settings)
    assert method_of(settings).mu == 0.3
    assert validated.count("FedProx") == 1


class Crash(Observer):
    def on_round(self, record: RoundRecord) -> None:
        raise ZeroDivisionError("a defect of an observer")


def test_a_defect_is_written_down_and_raised(config, tmp_path):
    with pytest.raises(ZeroDivisionError):
        lifecycle.run(config(run={"name": "crashed", "out": str(tmp_path)}), observers=[Crash()])
    about = RunDir.open(tmp_path / "crashed").about
    assert about["status"] == "failed"
    assert about["error"] == "a defect: ZeroDivisionError('a defect of an observer')"


def test_a_run_that_fails_before_it_is_described_says_why(tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    with pytest.raises(ValueError, match="no sites"), lifecycle.held(rundir):
        raise ValueError("no sites")
    assert rundir.read(FAILURE) == {"error": "a defect: ValueError('no sites')"}
    assert not rundir.described


class Rounds(Observer):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_round(self, record: RoundRecord) -> None:
        self.seen.append(record.round)


def test_a_resumed_run_repeats_no_round(config, interrupted_run):
    folder = interrupted_run(config(), 1)
    rounds = Rounds()
    lifecycle.resume(folder, observers=[rounds])
    assert rounds.seen == [2, 3]
