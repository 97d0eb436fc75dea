"""crossward runs: list, show, diff, remove."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def runs(tmp_path, finished_run, monkeypatch) -> Path:
    """runs/ in the current folder, with two runs."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs"
    shutil.copytree(finished_run().folder, root / "plain")
    shutil.copytree(finished_run("fedprox", {"mu": 0.5}).folder, root / "prox")
    return root


def test_the_list_is_the_default(cli, runs):
    output = cli("runs")
    assert output.code == 0
    head, *rows, total = output.out.splitlines()
    assert head.split() == ["status", "method", "data", "best", "on", "validation", "rounds", "created", "run"]
    assert {row.split()[1] for row in rows} == {"fedavg", "fedprox"}
    assert all("f1, local view, round" in row and "3/3" in row for row in rows)
    assert total == "2 in all, 2 finished"
    assert cli("runs", runs).out == cli("runs", "list", runs).out == output.out


def test_what_is_broken_is_listed_with_the_reason(cli, runs):
    (runs / "plain" / "run.json").write_text("{")
    output = cli("runs")
    assert output.code == 0
    assert "2 in all, 1 broken, 1 finished" in output.out
    assert "plain: broken: run.json is damaged" in output.out


def test_json_and_sizes(cli, runs):
    rows = json.loads(cli("runs", "--json", "--sizes").out)
    assert [row["status"] for row in rows] == ["finished", "finished"]
    assert all(row["size"] > 1000 for row in rows)
    assert " kB" in cli("runs", "--sizes").out or " MB" in cli("runs", "--sizes").out


def test_a_folder_that_is_not_there(cli, runs):
    output = cli("runs", "nope")
    assert output.code == 5
    assert "there is no folder nope" in output.err


def test_show(cli, runs):
    output = cli("runs", "show", "prox")
    assert output.code == 0
    assert "fedprox (buffers = average, mu = 0.5)" in output.out
    assert "hospital-1" in output.out
    assert "3 of 3 done, seed 0" in output.out
    details = json.loads(cli("runs", "show", "prox", "--json").out)
    assert details["about"]["method"]["mu"] == 0.5
    assert details["summary"]["rounds"] == 3
    assert cli("runs", "show", "pro").code == 5


def test_diff(cli, runs):
    output = cli("runs", "diff", "plain", "prox")
    assert output.code == 0
    assert "method.mu" in output.out
    assert "train.lr" not in output.out
    changes = json.loads(cli("runs", "diff", "plain", "prox", "--json").out)
    assert changes["method.name"] == ["fedavg", "fedprox"]
    assert "configured alike" in cli("runs", "diff", "plain", "plain").out


def test_remove_asks_first(cli, runs, monkeypatch):
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: PTH123, SIM115
    assert cli("runs", "remove", "plain").code == 1
    assert (runs / "plain").exists()
    output = cli("runs", "remove", "plain", "prox", "--yes")
    assert output.code == 0
    assert output.out.startswith("removed 2 run(s)")
    assert list(runs.iterdir()) == []


def test_remove_touches_nothing_if_one_name_is_wrong(cli, runs):
    output = cli("runs", "remove", "plain", "proxx", "--yes")
    assert output.code == 5
    assert "Did you mean 'prox'?" in output.err
    assert (runs / "plain").exists()
