"""Studies from their file to their records: what is kept, gone on with, left alone, and counted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from tiny_studies import SHARED, StudyMaker, run_here

import crossward
from crossward.errors import ConfigError, StorageError
from crossward.runs.result import load
from crossward.studies.ensemble import combine
from crossward.studies.figures import column_value, site_values
from crossward.studies.grid import MANY_CELLS
from crossward.studies.prune import prunable, remove
from crossward.studies.scheduler import Listener
from crossward.studies.states import BLOCKED, CUT_OFF, FAILED, FINISHED, STORED, WAITING
from crossward.studies.stored_figures import read_rows, store_rows
from crossward.studies.study import Study

TWO = 'seeds = [0]\nmethod = ["fedavg", "scaffold"]'


class Quick(Exception):
    """Raised in place of running a job."""


def refuse(jobs, listener) -> None:
    raise Quick(sorted(Path(job.task["folder"]).name for job in jobs))


def states(study: Study) -> list[str]:
    return [planned.state for planned in study.plan()]


def register(study: Study) -> None:
    """What `run` does before its first job."""
    study.run(execute=lambda jobs, listener: None)


def test_the_whole_way_with_workers(make_study: StudyMaker, tmp_path):
    """Methods, baselines and the noise floor; a cell that fails at build; then nothing is left to do."""
    study = make_study(
        """
        seeds = [0]
        baselines = ["ensemble"]
        noise_floor = true
        method = ["fedavg", { name = "mh-pflgb", label = "no such site", site = [{ name = "nowhere", shrink = 2 }] }]
        """
    )
    outcome = study.run(workers=2)
    assert [(each.cell.label, each.cell.repeat, each.state) for each in outcome.cells] == [
        ("fedavg", 0, FINISHED),
        ("fedavg", 1, FINISHED),
        ("no such site", 0, FAILED),
        ("local", 0, FINISHED),
        ("ensemble", 0, FINISHED),
    ]
    assert not outcome.complete
    assert outcome.done == 4
    [failed] = outcome.in_state(FAILED)
    assert "nowhere" in failed.reason
    failures = json.loads((study.folder / "failures.json").read_text())["failures"]
    assert [each["reason"] for each in failures.values()] == [failed.reason]

    before = {file: file.stat().st_mtime_ns for file in study.folder.rglob("metrics.jsonl")}
    again = Study(study.file.file, study.out).run(execute=refuse)  # nothing is run: failed cells are asked for
    assert again.done == 0
    assert {file: file.stat().st_mtime_ns for file in study.folder.rglob("metrics.jsonl")} == before
    with pytest.raises(Quick, match="no such site"):
        Study(study.file.file, study.out).run(execute=refuse, retry_failed=True)

    one, other = (study.plan()[i].cell.folder for i in (0, 1))
    assert load(one).rounds[0]["loss"] != load(other).rounds[0]["loss"], "another order of batches"
    check_records(crossward.study(study.file.file, study.out))
    tables = study.tables()
    assert tables.labels == ("fedavg", "local", "ensemble")
    assert [each.column for each in tables.noise] == list(tables.columns)
    assert any("1 of 5 cells have no figures yet: 1 failed" in note for note in tables.notes)


def check_records(study: Study) -> None:
    records = study.records()
    assert {record["method"] for record in records} == {"fedavg", "local", "ensemble"}
    [value] = [
        record["value"]
        for record in records
        if (record["method"], record["repeat"], record["round"], record["split"], record["view"], record["metric"])
        == ("fedavg", 0, 2, "test", "global", "accuracy")
    ]
    finished = load(study.plan()[0].cell.folder)
    assert value == finished.rounds[1]["metrics"]["test"]["global"]["accuracy"]
    frame = study.frame()
    assert frame.to_dict("records") == records
    assert list(frame.columns) == [
        "method", "seed", "repeat", "round", "chosen", "split", "view", "site", "metric", "value"
    ]  # fmt: skip
    assert frame.dtypes[["round", "value"]].astype(str).tolist() == ["int64", "float64"]
    chosen = frame[frame.chosen & (frame.split == "test") & (frame.view == "global") & (frame.metric == "accuracy")]
    best = finished.summary["best"]["metrics"]["test"]["global"]["accuracy"]
    assert chosen[(chosen.method == "fedavg") & (chosen.repeat == 0)].value.tolist() == [best]


def test_without_pandas_there_are_records_and_no_frame(make_study: StudyMaker, monkeypatch):
    study = make_study('seeds = [0]\nmethod = ["fedavg"]\naxes."train.lr" = [0.1, 0.2]')
    assert study.records() == [], "nothing has run"
    assert study.frame().empty
    run_here(study)
    register(study)
    assert {record["train.lr"] for record in study.records()} == {0.1, 0.2}
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    with pytest.raises(ConfigError, match="pandas is not installed") as error:
        study.frame()
    assert "records()" in error.value.hint


def test_the_ensemble_is_the_mean_of_the_local_predictions(make_study: StudyMaker):
    study = make_study('seeds = [0]\nmethod = ["local"]\nbaselines = ["ensemble"]')
    run_here(study)
    local, ensemble = (load(planned.cell.folder) for planned in study.plan())
    for line in ensemble.rounds:
        by_site = local.predictions(line["round"])
        mean = sum(sets["common_test"] for sets in by_site.values()) / len(by_site)
        assert ensemble.predictions(line["round"])["server"]["test"].allclose(mean)
        truth = local.targets()["server"]["test"]
        accuracy = (mean.argmax(1) == truth).double().mean().item()
        assert line["metrics"]["test"]["global"]["accuracy"] == pytest.approx(accuracy)
    assert [line["best"] for line in ensemble.rounds] == [line["best"] for line in local.rounds]
    assert ensemble.about["method"]["name"] == "ensemble"
    assert states(study) == [FINISHED, FINISHED]


def test_class_maps_are_combined_by_majority():
    import torch

    maps = [torch.tensor(rows, dtype=torch.uint8) for rows in ([[[0, 1]]], [[[0, 1]]], [[[1, 2]]])]
    assert combine(maps).tolist() == [[[0, 1]]]
    assert combine([maps[0], maps[2]]).tolist() == [[[0, 1]]], "of equals the first"


# what is kept and what is done again ----------------------------------------------------------------------------------
def test_changed_cells_are_new_and_nothing_is_overwritten(make_study: StudyMaker):
    study = make_study(TWO)
    run_here(study)
    register(study)
    folders = [planned.cell.folder for planned in study.plan()]
    changed = make_study(TWO.replace('"scaffold"', '{ name = "scaffold", server_lr = 0.5 }'))
    plan = changed.plan()
    assert [each.state for each in plan] == [FINISHED, WAITING]
    assert plan[0].cell.folder == folders[0]
    assert plan[1].cell.folder != folders[1]
    assert folders[1].is_dir()
    register(changed)
    status = changed.status()
    assert status.runs_of_others == (folders[1].name,)


def test_a_cut_off_cell_goes_on_to_the_same_bits(make_study: StudyMaker, tmp_path):
    study = make_study('seeds = [0]\nmethod = ["scaffold"]', SHARED.replace("rounds = 2", "rounds = 3"))
    run_here(study)
    [planned] = study.plan()
    whole = [{**line, "seconds": 0} for line in load(planned.cell.folder).rounds]
    shutil.rmtree(planned.cell.folder)
    from crossward.core.run import Observer
    from crossward.runs import lifecycle

    class Stop(Observer):
        def on_round(self, record) -> None:
            if record.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lifecycle.run(planned.cell.config, observers=[Stop()])
    assert states(study) == [CUT_OFF]
    run_here(study)
    assert states(study) == [FINISHED]
    assert [{**line, "seconds": 0} for line in load(planned.cell.folder).rounds] == whole


def test_runs_under_the_former_names_count_if_they_are_the_same(make_study: StudyMaker):
    study = make_study(TWO)
    run_here(study)
    for planned in study.plan():
        planned.cell.folder.rename(planned.cell.former_folder)
    assert states(study) == [FINISHED, FINISHED]
    assert [planned.cell.folder.name for planned in study.plan()] == ["fedavg-s0", "scaffold-s0"]
    register(study)
    assert study.status().counts() == {FINISHED: 2}
    assert len(study.results()) == 2
    changed = make_study(TWO, SHARED.replace("rounds = 2", "rounds = 1"))
    assert states(changed) == [WAITING, WAITING]


def test_figures_stand_for_runs_whose_folders_are_gone(make_study: StudyMaker, tmp_path):
    columns = ["last.global.f1", "best.mean.accuracy", "best.global.nll"]
    section = f'{TWO}\ncolumns = {columns}\nsites = "last.site.f1"\nlast = 2'
    (tmp_path / "results").mkdir()
    study = make_study(section)
    run_here(study)
    register(study)
    figures = {(f.label, f.column): f.values for f in study.tables().methods}
    sites = {(row.label, site.site): site.estimate.value for row in study.tables().sites for site in row.sites}
    assert len(figures) == 6
    assert len(sites) == 4
    stored = read_rows(study.file, study.folder)
    assert (tmp_path / "results" / "tiny.json").exists()
    shutil.rmtree(study.folder)
    assert states(study) == [STORED, STORED]
    tables = Study(study.file.file, study.out).tables()
    for key, values in {(f.label, f.column): f.values for f in tables.methods}.items():
        assert values == pytest.approx(figures[key])
    for row in tables.sites:
        for site in row.sites:
            assert site.estimate.value == pytest.approx(sites.pop((row.label, site.site)))
    assert not sites
    assert not any("are gone, and with them" in note for note in tables.notes), "nothing is missing"
    assert study.run(execute=refuse).complete
    changed = make_study(section, SHARED.replace("rounds = 2", "rounds = 3"))
    assert states(changed) == [WAITING, WAITING]
    register(changed)
    assert read_rows(changed.file, changed.folder) == stored, "rows are never dropped"


def test_rows_are_renewed_and_kept(make_study: StudyMaker):
    study = make_study(TWO)
    study.folder.mkdir(parents=True)
    store_rows(study.file, study.folder, [{"key": "a", "x": 1}, {"key": "b", "x": 2}])
    store_rows(study.file, study.folder, [{"key": "b", "x": 3}, {"key": "c", "x": 4}])
    assert [row["x"] for row in read_rows(study.file, study.folder).values()] == [1, 3, 4]
    (study.folder / "figures.json").write_text("[1]")
    with pytest.raises(StorageError, match="holds no list of figures"):
        read_rows(study.file, study.folder)


def test_figures_by_hand():
    from crossward.comparison.study_spec import parse_column

    scores = [0.0] * 3 + [0.9] + [0.2, 0.4] * 5  # three rounds not evaluated, the best on validation, and the last ten
    lines = []
    for number, f1 in enumerate(scores, 1):
        local = {"mean": {"auc": f1 / 2}, "worst": {"auc": f1 / 4}, "sites": {"a": {"f1": f1}, "b": {"f1": None}}}
        metrics = {"test": {"global": {"f1": f1, "nll": f1}, "local": local}} if f1 else None
        lines.append({"round": number, "best": number == 4, "metrics": metrics})
    wanted = {"best.global.f1": 90.0, "last.global.f1": 30.0, "last.mean.auc": 15.0, "best.worst.auc": 22.5}
    for column, value in wanted.items():
        assert column_value(lines, parse_column(column), 10) == pytest.approx(value)
    assert column_value(lines, parse_column("last.global.nll"), 10) == pytest.approx(0.3), "no fraction, not in percent"
    assert column_value(lines, parse_column("best.global.auc"), 10) is None
    assert site_values(lines, parse_column("last.site.f1", by_site=True), 10) == {"a": pytest.approx(30.0)}


# what does not belong -------------------------------------------------------------------------------------------------
def test_a_run_of_another_format_is_left_alone(make_study: StudyMaker):
    study = make_study(TWO)
    run_here(study)
    folder = study.plan()[0].cell.folder
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {"format": 9}))
    planned = study.plan()[0]
    assert planned.state == BLOCKED
    assert "format 9; this crossward reads format 1" in planned.reason
    outcome = study.run(execute=refuse)
    assert not outcome.complete
    assert json.loads((folder / "run.json").read_text())["format"] == 9


def test_a_run_with_other_settings_under_the_same_name_is_left_alone(make_study: StudyMaker):
    study = make_study(TWO)
    run_here(study)
    folder = study.plan()[0].cell.folder
    about = json.loads((folder / "run.json").read_text())
    about["config"]["train"]["lr"] = 7.0
    (folder / "run.json").write_text(json.dumps(about | {"crossward": "0.0.9"}))
    planned = study.plan()[0]
    assert planned.state == BLOCKED
    assert "crossward 0.0.9 with other settings: train.lr: 7.0 in the run" in planned.reason


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "damaged"), ("[]", "holds no JSON object"), ('{"format": 1}', "not as crossward writes it")],
)
def test_a_damaged_run_is_left_alone(make_study: StudyMaker, content, said):
    study = make_study(TWO)
    folder = study.plan()[0].cell.folder
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(content)
    planned = study.plan()[0]
    assert planned.state == BLOCKED
    assert said in planned.reason


def test_foreign_and_half_written_files(make_study: StudyMaker):
    study = make_study(TWO)
    first, second = (planned.cell.folder for planned in study.plan())
    first.mkdir(parents=True)
    (first / "holiday.jpg").write_text("x")
    second.mkdir()
    (second / "metrics.jsonl").touch()
    (study.folder / "notes.txt").write_text("mine")
    (study.folder / "study.json").write_text('{"format": 1, "cel')
    one, other = study.plan()
    assert (one.state, other.state) == (BLOCKED, CUT_OFF)
    assert "holds what is not of a run: holiday.jpg" in one.reason
    notes: list[str] = []

    class Notes(Listener):
        def on_note(self, text: str) -> None:
            notes.append(text)

    study.run(execute=lambda jobs, listener: None, view=Notes())
    assert any("study.json is damaged and is written anew" in note for note in notes)
    assert any("left alone" in note and "notes.txt" in note for note in notes)
    assert study.status().strangers == ("notes.txt",)
    assert (first / "holiday.jpg").read_text() == "x"


def test_the_folder_of_a_later_version_is_refused(make_study: StudyMaker):
    study = make_study(TWO)
    study.folder.mkdir(parents=True)
    (study.folder / "study.json").write_text('{"format": 7, "cells": {}}')
    with pytest.raises(StorageError, match="is of format 7; this crossward reads format 1"):
        study.run(execute=refuse)


def test_two_at_work_in_one_folder(make_study: StudyMaker):
    study = make_study(TWO)
    study.folder.mkdir(parents=True)
    with (
        FileLock(study.folder / ".lock"),
        pytest.raises(StorageError, match="another `crossward study` is at work in") as error,
    ):
        study.run(execute=refuse)
    assert "study status" in error.value.hint


def test_a_grid_of_a_hundred_thousand_cells_is_not_run_unasked(make_study: StudyMaker):
    rates = [i / 100 for i in range(1, 101)]
    study = make_study(f'seeds = {list(range(1000))}\nmethod = ["fedavg"]\naxes."train.lr" = {rates}')
    assert study.size == 100_000 > MANY_CELLS
    with pytest.raises(ConfigError, match="asks for 100,000 runs") as error:
        study.run(execute=refuse)
    assert "--yes" in error.value.hint
    assert not study.folder.exists()


def test_a_full_disk_in_the_middle(make_study: StudyMaker, tmp_path):
    """A real small disk: the study stops, says so, and goes on once there is space."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4200k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        file = make_study('seeds = [0, 1, 2]\nmethod = ["scaffold"]').file.file
        study = Study(file, disk)
        with pytest.raises(StorageError, match="the study stops: cannot write"):
            study.run(workers=1)
        assert 0 < states(study).count(FINISHED) < 3
        assert FAILED not in states(study)
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert Study(file, disk).run(workers=1).complete
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# pruning, status ------------------------------------------------------------------------------------------------------
def test_pruning_keeps_what_tables_need(make_study: StudyMaker):
    all_predictions = SHARED.replace("rounds = 2", "rounds = 4") + '\n[evaluate]\nkeep_predictions = "all"\n'
    study = make_study('seeds = [0]\nmethod = ["fedavg"]', all_predictions)
    run_here(study)
    register(study)
    before = study.tables()
    folder = study.plan()[0].cell.folder
    best = load(folder).summary["best"]["round"]
    found = prunable(study.status())
    kept = {f"round-{number:04d}" for number in (best, 4)}
    assert {file.stem for file in found.predictions} == {f"round-{n:04d}" for n in range(1, 5)} - kept
    assert found.checkpoint_bytes > 0
    remove(found.checkpoints)
    remove(found.predictions)
    assert {file.stem for file in (folder / "predictions").iterdir()} == kept | {"targets"}
    assert not (folder / "checkpoint").exists()
    assert states(study) == [FINISHED]
    assert Study(study.file.file, study.out).tables().methods == before.methods
    assert prunable(study.status()).checkpoints == ()


def test_unfinished_cells_are_not_pruned(make_study: StudyMaker):
    study = make_study('seeds = [0]\nmethod = ["fedavg"]')
    run_here(study)
    register(study)
    folder = study.plan()[0].cell.folder
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {"status": "interrupted"}))
    assert study.status().counts() == {CUT_OFF: 1}
    assert prunable(study.status()).checkpoints == ()


def test_the_status_of_a_thousand_cells_comes_at_once(make_study: StudyMaker):
    """The bar is two seconds; CPU time is measured, in a process of its own, as this machine is shared."""
    study = make_study(f'seeds = {list(range(250))}\nmethod = ["fedavg", "scaffold", "fedprox", "local"]')
    study_cells = study.cells
    [first] = [cell for cell in study_cells if (cell.label, cell.seed) == ("fedavg", 0)]
    config = first.config.canonical()
    crossward.run(config)
    register(study)
    about = json.loads((first.folder / "run.json").read_text())
    summary = (first.folder / "summary.json").read_text()
    for cell in study_cells:
        if cell is not first:
            cell.folder.mkdir()
            own = about | {"config": about["config"] | {"run": about["config"]["run"] | {"seed": cell.seed}}}
            (cell.folder / "run.json").write_text(json.dumps(own))
            (cell.folder / "summary.json").write_text(summary)
    command = [sys.executable, "-m", "crossward", "study", "status", str(study.file.file), "--out", str(study.out)]
    began = os.times()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ended = os.times()
    seconds = ended.children_user + ended.children_system - began.children_user - began.children_system
    assert "1000 cells" in done.stdout
    assert "1000 finished" in done.stdout
    assert seconds < 4, "twice the bar, for a machine that is busy"


# joining --------------------------------------------------------------------------------------------------------------
def test_a_newcomer_joins_every_run(make_study: StudyMaker):
    shared = """
    [data]
    sites = 3
    train = 16
    val = 4
    test = 4
    global_test = 0
    [partition]
    kind = "site"
    leave_out = ["hospital-3"]
    [run]
    rounds = 1
    """
    study = make_study(
        'seeds = [0]\ncolumns = ["last.mean.accuracy"]\njoin = "hospital-3"\nmethod = ["fedrep"]', shared
    )
    run_here(study)
    assert states(study) == [CUT_OFF], "it has not joined yet"
    from crossward.core.run import Observer
    from crossward.studies.worker import run_cell

    [planned] = study.plan()
    config = planned.cell.config.canonical()
    run_cell({"folder": str(planned.cell.folder), "config": config, "join": "hospital-3"}, Observer())
    assert states(study) == [FINISHED]
    register(study)
    [row] = study.joined()
    assert (row.metric, row.runs) == ("accuracy", 1)
    assert row.gain[0] == pytest.approx(row.joined[0] - row.alone[0])
    assert row.gain[1] is None


# her own images -------------------------------------------------------------------------------------------------------
def test_one_file_and_one_folder_of_images(make_study: StudyMaker, drawn_folder):
    """Four methods, two seeds, a folder of somebody's own, and nothing else said."""
    data = f'[data]\nsource = "folder"\npath = "{drawn_folder}"\nsize = 16\n'
    shared = f"{data}[partition]\nsites = 2\n[run]\nrounds = 1\n"
    study = make_study('seeds = [0, 1]\nmethod = ["fedavg", "fedprox", "scaffold", "fedrep"]', shared)
    run_here(study)
    register(study)
    tables = study.tables()
    assert tables.labels == ("fedavg", "fedprox", "scaffold", "fedrep")
    assert tables.columns == ("best.global.f1", "best.mean.f1", "best.worst.f1")
    pairs = {(pair.a, pair.b) for pair in tables.pairs}
    assert pairs == {(name, "fedavg") for name in ("fedprox", "scaffold", "fedrep")}
    assert {pair.verdict for pair in tables.pairs} <= {"better", "worse", "not distinguishable"}
