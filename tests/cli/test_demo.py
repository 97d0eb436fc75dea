"""The command demo, with situations of a few images: what it prints, writes and opens, and how it fails."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.console import Console

sys.path.append(str(Path(__file__).parents[1] / "studies"))
from execution import RunHere

from crossward.cli import demo as command
from crossward.cli.demo_progress import LiveDemoView, result_lines
from crossward.demo import situations
from crossward.demo.situations import Situation
from crossward.studies.scheduler import Job
from crossward.studies.study_file import read_study

STUDY = """
[study]
seeds = [0, 1]
columns = ["best.mean.f1"]
resamples = 50
pairs = [["fedavg", "local"], ["fednpr-per", "local"], ["fednpr-per", "fedavg"]]
method = ["local", "fedavg", "fednpr-per"]

[data]
source = "phantom"
sites = 3
train = 16
val = 8
test = 12
global_test = 8

[net]
name = "cnn"

[run]
rounds = 1
"""


class Tiny(Situation):
    """A situation whose study is run in a blink."""

    def study_text(self) -> str:
        return STUDY.replace("rounds = 1", f"rounds = {self.made_for}") if self.made_for.isdigit() else STUDY


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(situations, "SITUATIONS", (
        Tiny("few", "Few of them", "Few", "Why few.", ("fednpr-per",)),
        Tiny("many", "Many of them", "Many", "Why many.", ("fednpr-per",)),
    ))  # fmt: skip


def test_the_demo_runs_its_situations_and_ends_with_the_address_of_one_report(cli, tmp_path, tiny, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setattr(command, "has_screen", lambda: True)
    output = cli("demo", "--out", tmp_path)
    lines = output.out.splitlines()
    report = tmp_path / "demo-1" / "report.html"
    assert lines[-1] == report.as_uri()
    assert opened == [report.as_uri()]
    assert len(lines) <= 25
    assert "1 of 2  Few of them: 6 runs" in output.out
    assert [line.partition(",")[0] for line in lines if "fednpr-per is " in line] == ["Few", "Many"]
    html = report.read_text(encoding="utf-8")
    assert 'href="#few"' in html
    assert 'id="many-hospital-hospital-1' in html
    assert "Not distinguishably ahead of both: fednpr-per" in html
    assert html.count("<!doctype html>") == 1
    assert read_study(tmp_path / "demo-1" / "few.toml").settings.seeds == (0, 1)


def test_as_json_every_line_is_an_event_and_the_last_has_the_results(cli, tmp_path, tiny, monkeypatch):
    # the test above has runs in worker processes, which take longer to start than these runs
    monkeypatch.setattr("crossward.demo.runs.on_this_machine", lambda *_: nullcontext(RunHere()))
    (tmp_path / "demo-1").mkdir()
    output = cli("demo", "--out", tmp_path, "--json")
    *events, last = map(json.loads, output.out.splitlines())
    assert [event["situation"] for event in events if event["event"] == "situation"] == ["few", "many"]
    assert sum(event["event"] == "done" for event in events) == 12
    assert last["folder"] == str(tmp_path / "demo-2")
    assert Path(last["report"]).is_file()
    assert {(row["situation"], row["method"]) for row in last["results"]} == {
        (situation, method) for situation in ("few", "many") for method in ("local", "fedavg", "fednpr-per")
    }
    (row,) = [row for row in last["results"] if row["situation"] == "few" and row["method"] == "fednpr-per"]
    assert row["of_the_paper"]
    assert row["over_local"]["low"] <= row["over_local"]["value"] <= row["over_local"]["high"]
    assert re.fullmatch("better|worse|not distinguishable", row["over_fedavg"]["verdict"])


def test_a_mistake_in_any_situation_is_found_before_anything_runs(cli, tmp_path, monkeypatch):
    good = Tiny("few", "Few of them", "Few", "Why few.")
    monkeypatch.setattr(situations, "SITUATIONS", (good, Tiny("bad", "Bad", "Bad", "0")))
    output = cli("demo", "--out", tmp_path)
    assert output.code == 2
    assert "rounds" in output.err
    assert list((tmp_path / "demo-1").glob("*/*/run.json")) == []


def test_without_the_packages_of_the_report_the_demo_says_so_before_anything_runs(cli, tmp_path, tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    output = cli("demo", "--out", tmp_path)
    assert output.code == 2
    assert "pip install 'crossward[report]'" in output.err
    assert list(tmp_path.iterdir()) == []


def test_results_have_a_verdict_for_each_situation_and_a_line_for_each_method():
    row = {"situation": "few", "nav": "[few]", "verdict": "[b] is ahead", "measured": "F1, all", "method": "[b]",
           "of_the_paper": True, "value": 0.5, "over_fedavg": None}  # fmt: skip
    rows = [
        {**row, "over_local": {"value": 0.1, "low": 0.0, "high": 0.2, "verdict": verdict}}
        for verdict in ("better", "worse", "not distinguishable")
    ]
    console = Console(width=80, file=io.StringIO())
    for line in result_lines([*rows, {**rows[0], "situation": "many", "nav": "many"}]):
        console.print(line)
    _, first, *lines = console.file.getvalue().splitlines()
    assert first == "[few], F1: [b] is ahead"
    assert [line.split("+10.0 ")[1].strip() for line in lines[:3]] == ["better", "worse", "may be chance"]
    assert all("[b]" in line for line in lines)
    assert lines[3] == "many, F1: [b] is ahead"
    assert len(lines) == 5
    assert all(line == line.rstrip() for line in lines)


def test_of_many_methods_that_no_paper_is_judged_by_the_first_few_are_printed():
    row = {"situation": "all", "nav": "All", "verdict": "m0 is ahead", "measured": "F1", "of_the_paper": False,
           "value": 0.5, "over_local": None, "over_fedavg": None}  # fmt: skip
    lines = result_lines([{**row, "method": f"m{number}"} for number in range(36)])
    assert len(lines) == 8
    assert "m4" in lines[-2]
    assert "31 more methods in the report" in lines[-1]


def test_on_a_terminal_every_situation_has_one_line_with_its_bar():
    console = Console(width=100, file=io.StringIO(), force_terminal=True)
    view = LiveDemoView(2, console)
    first, second = (Situation(name, f"The {name}", name, "Why.") for name in ("first", "second"))
    jobs = [Job(f"k{number}", "fedavg", {"folder": f"cell-{number}"}) for number in range(2)]
    for situation in (first, second):
        view.begin_situation(situation)
        view.begin(jobs, 2, 0, {})
        view.on_start(jobs[0])
        assert f"The {situation.name}" in drawn(view)
        assert "0/2 runs: fedavg" in drawn(view)
        view.on_done(jobs[0], 1.0, 0)
        view.on_start(jobs[1])
        view.on_done(jobs[1], 1.0, 0)
    view.finish()
    lines = drawn(view).splitlines()
    assert len(lines) == 2
    assert all("✓" in line and "2 runs in" in line for line in lines)


def drawn(view: LiveDemoView) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(view.draw())
    return console.file.getvalue()
