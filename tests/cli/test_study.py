"""crossward study: run, status, table, prune, and what they say of bad input."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from crossward.cli.study_progress import LiveStudyView, PlainStudyView, in_words
from crossward.studies.scheduler import Job

SHARED = """
[data]
sites = 2
train = 16
val = 4
test = 4
global_test = 8
[run]
rounds = 3
"""


@pytest.fixture
def study_file(tmp_path, monkeypatch) -> Path:
    """A study in the current folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tiny.toml"
    all_predictions = '[evaluate]\nkeep_predictions = "all"\n'
    file.write_text(f'[study]\nseeds = [0, 1]\nmethod = ["fedavg", "fedprox"]\n{SHARED}\n{all_predictions}')
    return file


def test_from_one_file_to_tables(cli, study_file, monkeypatch):
    output = cli("study", "run", study_file, "--workers", "1")
    assert output.code == 0, output.err
    first, *lines = output.out.splitlines()
    assert first == "0 of 4 cells have finished, 4 to do, 1 at a time"
    assert sum(" done in " in line and "best f1 on validation" in line for line in lines) == 4
    assert "Differences: F1" in output.out
    assert "not distinguishable" in output.out or "better" in output.out or "worse" in output.out
    assert lines[-1] == "runs/studies/tiny"

    again = cli("study", "run", study_file)
    assert again.out.startswith("4 of 4 cells have finished, 0 to do")
    status = cli("study", "status", study_file, "--all").out
    assert "4 cells in runs/studies/tiny: 4 finished; no process works on it now" in status
    assert len([line for line in status.splitlines() if line.startswith("finished")]) == 4
    states = json.loads(cli("study", "status", study_file, "--json").out)["states"]
    assert states == {"finished": 4}

    markdown = cli("study", "table", study_file, "--format", "markdown").out
    assert "| fedprox − fedavg |" in markdown
    assert cli("study", "table", study_file, "--format", "latex").out.count("\\toprule") > 1
    document = json.loads(cli("study", "table", study_file, "--json").out)
    assert document["labels"] == ["fedavg", "fedprox"]
    check_dry_run_and_prune(cli, study_file, monkeypatch)


def check_dry_run_and_prune(cli, study_file: Path, patch) -> None:
    dry = cli("study", "run", study_file, "--dry-run").out
    assert dry.count("finished  fed") == 4
    assert "nothing is left to do" in dry
    study_file.write_text(study_file.read_text().replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    dry = cli("study", "run", study_file, "--dry-run").out
    assert dry.count("waiting   fed") == 2
    assert "finished cells" in dry, "the estimate is made of what is there"
    assert "In all about" in dry
    folder = Path("runs/studies/tiny")
    before = {file.name for file in folder.glob("fedavg-s0-*/predictions/*")}
    patch.setattr("sys.stdin", io.StringIO(""))  # a script, which answers nothing
    asked = cli("study", "prune", study_file)
    assert asked.code == 0
    assert "and 0 KiB of predictions" in asked.out
    assert "predictions of older rounds are kept: --yes removes them" in asked.out
    assert {file.name for file in folder.glob("fedavg-s0-*/predictions/*")} == before
    patch.setattr("sys.stdin", io.StringIO("n\n"))
    assert "are kept" in cli("study", "prune", study_file).out
    assert not list(folder.glob("*/checkpoint"))
    assert {file.name for file in folder.glob("fedavg-s0-*/predictions/*")} == before
    pruned = cli("study", "prune", study_file, "--yes")
    assert "of predictions from finished cells in runs/studies/tiny" in pruned.out
    assert len(list(folder.glob("fedavg-s0-*/predictions/*"))) < len(before)


def test_one_mistake_of_all_cells_is_said_once_at_the_end(cli, study_file):
    text = study_file.read_text().replace("[0, 1]", "[0, 1, 2]")
    study_file.write_text(text.replace("sites = 2", "sites = 2\nsize = 16"))
    output = cli("study", "run", study_file, "--json", "--workers", "1")
    assert output.code == 4
    assert "6 of 6 cells have no result" in output.err
    assert output.err.count("cannot be drawn") == 1
    assert "and 2 more: " in output.err


def test_a_folder_in_place_of_the_file_is_refused_in_words(cli, study_file):
    output = cli("study", "status", study_file.parent)
    assert output.code == 2
    assert "is a folder, not a configuration" in output.err
    assert "Name the TOML file." in output.err


def test_a_cell_that_fails_is_said_at_the_end(cli, study_file):
    text = study_file.read_text().replace('"fedprox"', '{ name = "fedprox", site = [{ name = "nowhere" }] }')
    study_file.write_text(text.replace("[0, 1]", "[0]"))
    output = cli("study", "run", study_file, "--json", "--workers", "1")
    assert output.code == 4
    assert "1 of 2 cells have no result" in output.err
    assert "--retry-failed" in output.err
    events = [json.loads(line) for line in output.out.splitlines()]
    assert [event["event"] for event in events if event["event"] in ("done", "failed")] in (
        ["done", "failed"],
        ["failed", "done"],
    )
    assert events[-1]["states"] == {"finished": 1, "failed": 1}
    status = cli("study", "status", study_file).out
    assert "failed: fedprox, seed 0:" in status
    assert "nowhere" in status


def test_an_estimate_leaves_nothing_behind(cli, study_file, tmp_path):
    study_file.write_text(study_file.read_text().replace('"fedavg", "fedprox"', '"fedavg"'))
    output = cli("study", "run", study_file, "--dry-run").out
    assert output.count("waiting   fedavg-s") == 2
    assert "part of a round" in output
    assert not (tmp_path / "runs").exists()
    listed = cli("study", "run", study_file, "--dry-run", "--no-estimate").out
    assert listed.splitlines()[-1] == "2 cells in runs/studies/tiny"


def test_the_dry_run_of_a_race_says_that_it_is_the_most(cli, study_file):
    study_file.write_text(study_file.read_text().replace("[study]", "[study]\nrace = true"))
    listed = cli("study", "run", study_file, "--dry-run", "--no-estimate").out
    assert "It is a race: the weaker half of the methods stops at each stage" in listed


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ("seeds = [0, 1]", "seeds = []", 2, "study.seeds: there are no seeds"),
        ('"fedprox"', '"fedprx"', 2, "there is no method 'fedprx'"),
        ("[run]", "[rnu]", 2, "Did you mean 'run'?"),
        ("seeds = [0, 1]", 'seeds = [0]\ncolumns = ["best.global.f3"]', 2, "names no metric 'f3'"),
        ("seeds = [0, 1]", f'seeds = {list(range(400))}\naxes."train.lr" = {[i / 99 for i in range(1, 99)]}', 2,
         "asks for 78,400 runs"),
    ],
)  # fmt: skip
def test_bad_input_ends_in_words(cli, study_file, old, new, code, said):
    study_file.write_text(study_file.read_text().replace(old, new))
    output = cli("study", "run", study_file)
    assert output.code == code
    assert said in output.err
    assert "Traceback" not in output.err
    assert not Path("runs").exists()


class Terminal(io.StringIO):
    """Somebody at a keyboard, with this to say."""

    def isatty(self) -> bool:
        return True


def test_a_person_is_asked_before_ten_thousand_cells(cli, study_file, monkeypatch):
    rates = [i / 99 for i in range(1, 99)]
    text = study_file.read_text().replace("seeds = [0, 1]", f'seeds = {list(range(400))}\naxes."train.lr" = {rates}')
    study_file.write_text(text)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    refused = cli("study", "run", study_file)
    assert refused.code == 1
    assert "asks for 78,400 runs. Go on? [y/N]" in refused.err
    assert not Path("runs").exists()


def test_nothing_has_finished(cli, study_file):
    output = cli("study", "table", study_file)
    assert output.code == 5
    assert "no cell of" in output.err
    assert "4 waiting" in cli("study", "status", study_file).out
    assert "removed 0 KiB of checkpoints" in cli("study", "prune", study_file).out


def test_the_live_view_shows_cells_rounds_bests_and_the_time_left():
    console = Console(force_terminal=True, width=100, record=True, file=io.StringIO())
    view = LiveStudyView(console)
    jobs = [Job(f"a{i}", "fedavg", {"folder": f"/x/fedavg-s{i}"}) for i in range(3)]
    view.begin([], 2, 0, {})
    assert not view.live.is_started
    view.begin(jobs, 2, 1, {"fedavg": [60.0]})
    view.on_start(jobs[0])
    view.on_round(jobs[0], {"round": 1, "rounds": 4, "best": 0.25, "metric": "f1"})
    view.on_failure(jobs[1], "[why]")
    view.close()
    console.print(view.draw())
    shown = console.export_text()
    for words in ("1/4 cells", "1 failed", "fedavg-s0", "round 1/4", "best f1 0.250", "f1 on validation 0.250", "left"):
        assert words in shown
    assert "failed fedavg-s1: [why]" in shown


def test_plain_lines_and_times():
    assert [in_words(seconds) for seconds in (3.2, 130, 7500)] == ["3 s", "2 min", "2 h 05 min"]
    console = Console(width=80, record=True, file=io.StringIO())
    view = PlainStudyView(console)
    job = Job("a", "fedavg", {"folder": "/x/fedavg-s0"})
    view.begin([job], 1, 0, {})
    view.on_note("mind [this]")
    view.on_start(job)
    view.on_done(job, 2.0, 1)
    assert "note: mind [this]" in console.export_text(clear=False)
    assert "[1/1] fedavg-s0 done in 2 s" in console.export_text()
