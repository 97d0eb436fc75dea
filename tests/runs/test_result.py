"""The Python API: run, resume and load, and what a Result tells."""

from __future__ import annotations

import subprocess
import sys

import pytest

import crossward
from crossward.config.reading import config_from
from crossward.errors import ConfigError, StorageError
from crossward.runs.result import summarised
from crossward.runs.run_directory import RunDir


def test_importing_crossward_imports_nothing_heavy():
    code = """
import sys, crossward
heavy = {"torch", "numpy", "monai", "pydantic"} & set(sys.modules)
assert not heavy, heavy
try:
    crossward.nothing
except AttributeError as error:
    print(error)
print(sorted(crossward.__all__))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [
        "module 'crossward' has no attribute 'nothing'",
        "['Result', 'Study', '__version__', 'load', 'resume', 'run', 'study']",
    ]


def test_a_mapping_a_file_and_a_config_run_alike(finished_run, config, toml_file, run_contents):
    by_file = crossward.run(toml_file(config()))
    by_name = crossward.run(str(toml_file(config())), ["run.name=mine"])
    by_config = crossward.run(config_from(config()))
    assert [r.folder.name for r in (by_file, by_name, by_config)] == ["fedavg-blood-s0-1", "mine", "fedavg-blood-s0-2"]
    for result in (by_file, by_name, by_config):
        assert isinstance(result, crossward.Result)
        assert run_contents(result.folder) == run_contents(finished_run().folder)


def test_overrides_of_a_mapping(config):
    assert len(crossward.run(config(), ["run.rounds=1"]).rounds) == 1


def test_another_seed_gives_another_result(finished_run):
    one, other = finished_run(), finished_run(run={"seed": 1})
    assert one.folder != other.folder
    assert not one.predictions(3)["server"]["test"].equal(other.predictions(3)["server"]["test"])


def test_strict_and_plain_give_the_same(finished_run, run_contents):
    strict = finished_run("scaffold", engine={"strict": True, "device": "cpu"})
    assert run_contents(strict.folder) == run_contents(finished_run("scaffold").folder)


def test_what_a_result_tells(finished_run):
    result = crossward.load(str(finished_run().folder))
    assert repr(result) == f"Result('{result.folder}', finished)"
    assert result.config["train"]["lr"] == 0.05
    assert [line["round"] for line in result.rounds] == [1, 2, 3]
    assert {row["item"] for row in result.traffic} == {"model", "n"}
    assert result.predictions(3)["server"]["test"].shape == (16, 8)
    assert result.targets()["server"]["test"].shape == (16,)
    assert result.summary["rounds"] == 3
    assert result.summary["failures"] == 0
    assert result.deployed().classes == tuple(result.about["task"]["classes"])


def test_the_summary_adds_up(finished_run):
    result = finished_run("scaffold")
    assert summarised(RunDir(result.folder)) == result.summary
    for direction in ("down", "up"):
        assert result.summary["bytes"][direction] == sum(
            row["bytes"] for row in result.traffic if row["direction"] == direction
        )
    assert result.summary["seconds"] == pytest.approx(sum(line["seconds"] for line in result.rounds), abs=1e-3)


def test_a_summary_of_rounds_that_were_not_evaluated(tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    line = {"metrics": None, "best": False, "bytes": {"down": 3, "up": 4}, "seconds": 0.5, "failures": {"a": "why"}}
    rundir.append("metrics.jsonl", [{"round": 1} | line, {"round": 2} | line])
    assert summarised(rundir) == {
        "rounds": 2,
        "best": None,
        "last": None,
        "bytes": {"down": 6, "up": 8},
        "seconds": 1.0,
        "failures": 2,
    }


def test_a_run_under_way_can_be_read(config, interrupted_run):
    result = crossward.load(interrupted_run(config(), round=2))
    assert result.about["status"] == "interrupted"
    assert [line["round"] for line in result.rounds] == [1, 2]
    with pytest.raises(StorageError, match="has not finished: it is interrupted") as error:
        result.deployed()
    assert f"crossward resume {result.folder}" in error.value.hint
    with pytest.raises(StorageError, match=r"summary\.json"):
        _ = result.summary


def test_whose_network(finished_run):
    personal, shared = finished_run("local"), finished_run()
    with pytest.raises(ConfigError, match="each site has a network of its own") as error:
        personal.deployed()
    assert error.value.hint == "Name one: hospital-1, hospital-2, hospital-3."
    for result in (personal, shared):
        with pytest.raises(ConfigError, match="there is no site 'hospital-9'"):
            result.deployed("hospital-9")
    assert personal.deployed("hospital-2").task == shared.deployed("hospital-2").task == "classification"


def test_a_site_that_only_trains_gets_its_network(config, gallery):
    rows = gallery.rows(("a",)) + [row | {"path": gallery.image(row["path"].replace("0/", "1/")), "site": "b"}
                                   for row in gallery.rows(("a",), {"train": 6})]  # fmt: skip
    result = crossward.run(config(data=gallery.table(rows), method={"name": "local"}))
    assert result.deployed("b").task == "classification"
