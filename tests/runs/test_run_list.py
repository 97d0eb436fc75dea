"""The list of runs: what it says of sound, unfinished, broken and foreign folders, and what is removed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from crossward.errors import StorageError
from crossward.runs import run_list
from crossward.runs.run_list import (
    config_differences,
    find_run,
    folder_size,
    last_round,
    list_runs,
    read_run_entry,
    remove_run,
    run_details,
)


@pytest.fixture
def runs(tmp_path, finished_run) -> Path:
    """A folder with one finished run."""
    root = tmp_path / "runs"
    shutil.copytree(finished_run().folder, root / "one")
    return root


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def by_name(root: Path) -> dict[str, run_list.RunEntry]:
    return {entry.name: entry for entry in list_runs(root)}


def test_a_finished_run(runs, finished_run):
    [entry] = list_runs(runs)
    result = finished_run()
    best = result.summary["best"]
    assert (entry.name, entry.status, entry.method, entry.data) == ("one", "finished", "fedavg", "phantom blood 28x28")
    assert (entry.rounds, entry.planned, entry.seed) == (3, 3, 0)
    assert entry.metric == "f1, local view"
    assert entry.best == best["metrics"]["val"]["local"]["mean"]["f1"]
    assert entry.best_round == best["round"]
    assert entry.created == result.about["created"]
    assert entry.size is None


def test_the_best_is_by_the_metric_and_view_that_chose(runs, finished_run):
    about = json.loads((runs / "one/run.json").read_text())
    about["config"]["evaluate"] |= {"select": "accuracy", "view": "global"}
    edit(runs / "one/run.json", config=about["config"])
    [entry] = list_runs(runs)
    assert entry.metric == "accuracy, global view"
    assert entry.best == finished_run().summary["best"]["metrics"]["val"]["global"]["accuracy"]


def test_the_best_by_a_sum_of_metrics(runs, finished_run):
    about = json.loads((runs / "one/run.json").read_text())
    about["config"]["evaluate"] |= {"select": "accuracy+f1+precision", "view": "local"}
    edit(runs / "one/run.json", config=about["config"])
    [entry] = list_runs(runs)
    assert entry.metric == "accuracy+f1+precision, local view"
    scores = finished_run().summary["best"]["metrics"]["val"]["local"]["mean"]
    assert entry.best == pytest.approx(scores["accuracy"] + scores["f1"] + scores["precision"])


def test_a_run_that_was_interrupted(config, interrupted_run):
    folder = interrupted_run(config(), round=2)
    [entry] = list_runs(folder.parent)
    assert (entry.status, entry.rounds, entry.planned, entry.best) == ("interrupted", 2, 3, None)


def test_studies_are_searched_and_runs_are_not(runs):
    shutil.copytree(runs / "one", runs / "study" / "arm" / "two")
    shutil.copytree(runs / "one", runs / "one" / "joined" / "hospital-7" / "alone")
    assert by_name(runs).keys() == {"one", "study/arm/two"}
    assert by_name(runs / "one").keys() == {"one"}


def test_the_newest_is_first(runs):
    shutil.copytree(runs / "one", runs / "later")
    edit(runs / "later/run.json", created="2999-01-01T00:00:00Z")
    assert [entry.name for entry in list_runs(runs)] == ["later", "one"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("run.json", "", "run.json is damaged"),
        ("run.json", "[1]", "holds no JSON object"),
        ("run.json", '{"format": 9}', "of format 9; this crossward reads format 1"),
        ("run.json", '{"format": 1}', "not as crossward writes it"),
        ("run.json", "\udcff", "run.json is damaged"),
        ("summary.json", '{"rounds": 3, "best": {"rou', "summary.json is damaged"),
        ("summary.json", '{"best": 3}', "not as crossward writes it"),
    ],
)
def test_a_broken_file_costs_one_line(runs, name, text, reason):
    shutil.copytree(runs / "one", runs / "two")
    (runs / "two" / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    entries = by_name(runs)
    assert entries["one"].status == "finished"
    assert entries["two"].status == "broken"
    assert reason in entries["two"].reason


def test_half_written_and_foreign_folders_are_listed_with_the_reason(runs):
    (runs / "cut" / "checkpoint").mkdir(parents=True)
    (runs / "failed").mkdir()
    (runs / "failed" / "failed.json").write_text('{"error": "no site came"}')
    (runs / "photos" / "holiday").mkdir(parents=True)
    (runs / ".hidden").mkdir()
    (runs / "notes.txt").write_text("x")
    entries = by_name(runs)
    assert entries.keys() == {"one", "cut", "failed", "photos"}
    assert (entries["cut"].status, entries["cut"].reason) == ("broken", "no run.json: it was cut off before round 1")
    assert (entries["failed"].status, entries["failed"].reason) == ("failed", "no site came")
    assert entries["photos"].status == "not a run"


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(StorageError, match="there is no folder"):
        list_runs(tmp_path / "nope")


def test_sizes_only_on_request(runs):
    [entry] = list_runs(runs, sizes=True)
    assert entry.size == sum(file.stat().st_size for file in (runs / "one").rglob("*") if file.is_file())
    assert folder_size(runs) == entry.size
    parts = run_details(runs / "one")["sizes"]
    assert sum(parts.values()) == entry.size
    assert parts["predictions"] > 0


def test_finished_runs_are_read_once_until_they_change(runs, monkeypatch):
    first = list_runs(runs)
    read: list[Path] = []
    honest = run_list._read
    monkeypatch.setattr(run_list, "_read", lambda file: read.append(file) or honest(file))
    assert list_runs(runs) == first
    assert read == []
    edit(runs / "one/run.json", status="stopped")
    assert list_runs(runs)[0].status == "stopped"
    assert {file.name for file in read} == {"run.json", "summary.json"}


def test_nothing_but_two_files_of_a_finished_run_is_opened(runs):
    for item in (runs / "one").iterdir():
        if item.name not in ("run.json", "summary.json"):
            shutil.rmtree(item) if item.is_dir() else item.unlink()
    assert read_run_entry(runs / "one").status == "finished"


@pytest.mark.parametrize("text", ["{", '{"version": 1, "as": 3}', "[]", '{"version": 1}'])
def test_a_damaged_cache_is_not_believed(runs, text):
    first = list_runs(runs)
    run_list._cache_file(runs).write_text(text)
    assert list_runs(runs) == first


def test_a_cache_that_cannot_be_written_changes_nothing(runs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path / "file"))
    assert [entry.name for entry in list_runs(runs)] == ["one"]


@pytest.mark.parametrize(
    ("text", "round"),
    [
        ("", 0),
        ('{"round": 1, "a": 2}\n{"round": 2, "a": 3}\n', 2),
        ('{"round": 1, "a": 2}\n{"round": 2, "a"', 1),
        ('{"round": 7, "a": "' + "x" * 200_000 + '"}\n', 7),
    ],
)
def test_the_last_whole_line_counts(tmp_path, text, round):
    (tmp_path / "metrics.jsonl").write_text(text)
    assert last_round(tmp_path / "metrics.jsonl") == round
    assert last_round(tmp_path / "nope") == 0


def test_two_thousand_runs(tmp_path, finished_run):
    """No time is asserted here; it is measured by hand."""
    result = finished_run()
    about = (result.folder / "run.json").read_text()
    summary = (result.folder / "summary.json").read_text()
    for number in range(2000):
        folder = tmp_path / f"study-{number % 20}" / f"run-{number}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(about)
        (folder / "summary.json").write_text(summary)
    entries = list_runs(tmp_path)
    assert len(entries) == 2000
    assert {entry.status for entry in entries} == {"finished"}
    assert list_runs(tmp_path) == entries


def test_the_list_needs_no_torch(runs):
    code = """
import sys
from crossward.cli.main import main
sys.argv = ["crossward", "runs", sys.argv[1]]
try:
    main()
except SystemExit as stop:
    assert not stop.code
print(sorted({"torch", "numpy", "scipy", "pydantic"} & set(sys.modules)), file=sys.stderr)
"""
    process = subprocess.run([sys.executable, "-c", code, str(runs)], capture_output=True, text=True, check=True)
    assert process.stderr == "[]\n"
    assert "finished" in process.stdout


def test_differences_name_the_key_and_both_values(runs, finished_run):
    prox = finished_run("fedprox", {"mu": 0.5}, train={"lr": 0.01}).folder
    differences = {key: (one, other) for key, one, other in config_differences(runs / "one", prox)}
    assert differences["method.name"] == ("fedavg", "fedprox")
    assert differences["method.mu"] == (None, 0.5)
    assert differences["train.lr"] == (0.05, 0.01)
    assert "train.momentum" not in differences
    assert config_differences(prox, prox) == []


def test_a_run_is_found_by_path_and_by_name(runs):
    assert find_run(str(runs / "one"), Path("nowhere")) == runs / "one"
    assert find_run("one", runs) == runs / "one"
    with pytest.raises(StorageError, match="there is no run 'onne'") as error:
        find_run("onne", runs)
    assert "Did you mean 'one'?" in error.value.hint
    with pytest.raises(StorageError, match="it has no"):
        find_run("runs", runs.parent)


def test_removing(runs):
    remove_run(runs / "one")
    assert list(runs.iterdir()) == []


def test_a_folder_that_is_no_run_is_left_alone(runs, tmp_path):
    (tmp_path / "photos").mkdir()
    for folder in (tmp_path / "photos", runs, tmp_path / "nope"):
        with pytest.raises(StorageError, match="not a run directory"):
            remove_run(folder)
    assert (runs / "one" / "run.json").exists()


def test_a_run_under_way_is_left_alone(runs):
    with FileLock(runs / "one" / "checkpoint" / "lock"), pytest.raises(StorageError, match="a process is running"):
        remove_run(runs / "one")
    assert (runs / "one" / "run.json").exists()
