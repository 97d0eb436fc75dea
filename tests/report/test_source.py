"""What a report is made of: which runs are taken, which are refused, and what is said of the others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from drawn_runs import Drawn, draw_runs

from crossward.errors import ConfigError, StorageError
from crossward.report.assembly import make_hospital_page, make_page
from crossward.report.content import DataTable, blocks_of, charts_of, document
from crossward.report.render import render_page
from crossward.report.source import read_report_source
from crossward.runs.run_directory import RunDir

RESAMPLES = 200  # as of the drawn report of conftest.py
SMALL = Drawn(methods=("local", "fedavg"), seeds=(0, 1), rounds=2, images=20)


def read(*paths, **options):
    return read_report_source(list(paths), resamples=RESAMPLES, **options)


def test_no_runs_are_refused_in_words(tmp_path):
    with pytest.raises(ConfigError, match="no runs were given"):
        read()
    with pytest.raises(StorageError, match="there is no run in"):
        read(tmp_path)
    with pytest.raises(StorageError, match="there is no"):
        read(tmp_path / "missing")


def test_a_folder_of_runs_and_its_runs_one_by_one_are_the_same_report(drawn_folder, source):
    one_by_one = read(*sorted(drawn_folder.iterdir()))
    assert one_by_one.labels == source.labels
    assert one_by_one.tables.pairs == source.tables.pairs
    assert one_by_one.name == "9 runs"


def test_a_run_that_is_named_twice_counts_once(tmp_path):
    [run] = draw_runs(tmp_path, replace(SMALL, methods=("fedavg",), seeds=(0,)))
    assert len(read(run, run, tmp_path).runs) == 1


def test_one_run_is_reported_without_a_comparison(tmp_path):
    [run] = draw_runs(tmp_path, replace(SMALL, methods=("fedavg",), seeds=(0,)))
    page = make_page(read(run))
    assert page.title.startswith("fedavg reaches ")
    assert "There is no other method to compare it with." in page.lead[0]
    assert "one seed" in page.lead[0]


def test_one_seed_and_no_predictions_has_no_interval_and_says_so(tmp_path):
    draw_runs(tmp_path, replace(SMALL, methods=("local", "fedrep"), seeds=(0,), predictions=False))
    source = read(tmp_path)
    page = make_page(source)
    assert "one seed and no interval" in page.title
    [table] = [block for block in blocks_of(page) if isinstance(block, DataTable) and block.id == "comparison-table"]
    assert {row[-1].word for row in table.rows} == {"reference", "no interval"}


def test_runs_of_different_data_are_refused_and_stand_side_by_side_on_request(tmp_path):
    draw_runs(tmp_path / "a", SMALL)
    draw_runs(tmp_path / "b", replace(SMALL, data="other", images=25))
    with pytest.raises(ConfigError, match="different data") as refused:
        read(tmp_path)
    assert "--side-by-side" in refused.value.hint
    source = read(tmp_path, side_by_side=True)
    assert source.settings == ("drawn at 28x28 pixels", "other at 28x28 pixels")
    assert any("not compared" in note for note in source.notes)
    assert all(pair.a != pair.b for pair in source.tables.pairs)


def test_runs_of_one_seed_that_share_images_out_differently_are_refused(tmp_path):
    first, *_ = draw_runs(tmp_path, SMALL)
    partition = RunDir(first).read("partition.json")
    RunDir(first).write("partition.json", partition | {"hash": "f" * 32})
    with pytest.raises(ConfigError, match="different data") as refused:
        read(tmp_path)
    assert "both of seed 0" in refused.value.details[0]


def test_a_run_that_is_still_going_is_shown_and_named(tmp_path):
    draw_runs(tmp_path / "done", SMALL)
    draw_runs(tmp_path / "going", replace(SMALL, methods=("fedrep",), status="running"))
    source = read(tmp_path)
    assert "fedrep" in source.labels
    assert "fedrep-s0 is still running: round 2 of 2; its figures may change" in source.notes


def test_half_written_and_foreign_folders_are_left_out_in_words(tmp_path):
    folders = draw_runs(tmp_path, SMALL)
    (tmp_path / "holiday").mkdir()
    (tmp_path / "cut" / "checkpoint").mkdir(parents=True)
    (folders[0] / "metrics.jsonl").write_text("no json\n")
    about = RunDir(folders[1]).about
    RunDir(folders[1]).write("run.json", {key: value for key, value in about.items() if key != "task"})
    notes = " ".join(read(tmp_path).notes)
    for words in ("holiday is left out", "cut is left out", f"{folders[0].name} is left out"):
        assert words in notes
    assert folders[1].name in notes


def test_a_run_without_an_evaluated_round_is_left_out(tmp_path):
    folders = draw_runs(tmp_path, SMALL)
    (folders[-1] / "metrics.jsonl").write_text("")
    assert any("no round of it is evaluated yet" in note for note in read(tmp_path).notes)


def test_a_line_that_a_crash_cut_short_is_not_read(tmp_path):
    folders = draw_runs(tmp_path, SMALL)
    file = folders[0] / "metrics.jsonl"
    file.write_text(file.read_text() + '{"round": 3, "cli')
    assert read(tmp_path).runs[0].rounds.last == 2


def test_two_settings_of_one_method_have_labels_that_tell_them_apart(tmp_path):
    draw_runs(tmp_path / "a", SMALL)
    for folder in draw_runs(tmp_path / "b", replace(SMALL, methods=("fedavg",))):
        about = RunDir(folder).about
        RunDir(folder).write("run.json", about | {"method": {"name": "fedavg", "tau": 2}})
    assert set(read(tmp_path).labels) == {"local", "fedavg", "fedavg (tau=2)"}


def test_the_same_run_twice_counts_once_and_other_configurations_are_refused(tmp_path):
    draw_runs(tmp_path / "a", SMALL)
    [again] = draw_runs(tmp_path / "b", replace(SMALL, methods=("fedavg",), seeds=(0,)))
    source = read(tmp_path)
    assert any("have the same configuration" in note for note in source.notes)
    about = RunDir(again).about
    RunDir(again).write("run.json", about | {"config": about["config"] | {"train": {"epochs": 9}}})
    with pytest.raises(ConfigError, match="two runs of fedavg have seed 0"):
        read(tmp_path)
    assert any("·" in label for label in read(tmp_path, side_by_side=True).labels)


def test_repeats_with_another_order_of_batches_make_the_noise_floor(tmp_path):
    draw_runs(tmp_path / "a", SMALL)
    draw_runs(tmp_path / "b", replace(SMALL, methods=("fedavg",), batch_order=1))
    source = read(tmp_path)
    assert sum(run.repeat for run in source.runs) == 2
    assert source.tables.noise
    assert len(source.of("fedavg")) == 2


def test_many_classes_and_many_hospitals_stay_readable(tmp_path):
    names = tuple(f"class {k}" for k in range(30))
    sites = tuple(f"hospital-{k}" for k in range(70))
    draw_runs(tmp_path, Drawn(methods=("local", "fedavg"), seeds=(0,), rounds=1, sites=sites, classes=names, images=4,
                              predictions=False))  # fmt: skip
    source = read(tmp_path)
    page = make_page(source)
    charts = {chart.id: chart for chart in charts_of(page)}
    cells = charts["who-holds-what"].spec["data"]["values"]
    assert len({cell["x"] for cell in cells}) == 12
    assert len({cell["y"] for cell in cells}) == 20
    assert sum(cell["value"] for cell in cells) == 70 * 4
    assert len(charts["who-holds-what"].rows) == 30 * 70
    assert len({row["group"] for row in charts["hospital-dots"].spec["data"]["values"]}) == 40
    assert page.hospitals == ()
    assert make_hospital_page(source, "hospital-7").title.startswith("hospital-7: ")


def test_the_sheet_of_a_hospital_names_no_other(source):
    page = make_hospital_page(source, "north")
    text = json.dumps(document(page))
    assert "north" in text
    assert "south" not in text
    assert "east" not in text
    with pytest.raises(ConfigError, match="there is no hospital 'nort'") as refused:
        make_hospital_page(source, "nort")
    assert "north" in refused.value.hint


def test_hostile_names_are_shown_as_text(tmp_path):
    bad = ["<script>alert(1)</script>", "\"' onload=x", "abc\u202edef", "x" * 10_000, "token:better"]
    sites = tuple(name.replace("/", "|") for name in bad)  # a slash would be refused as the name of a site
    draw_runs(tmp_path, Drawn(methods=("local", "fedavg"), seeds=(0,), rounds=1, sites=sites, classes=tuple(bad)))
    page = make_page(read(tmp_path))
    html = render_page(page)
    assert "<script>alert" not in html
    assert "\u202e" not in html
    assert "x" * 200 not in html
    assert len(page.hospitals) == len(bad)
    assert len({sheet.id for sheet in page.hospitals}) == len(bad)


def test_the_report_of_a_study_of_thirty_runs_is_small(tmp_path):
    methods = tuple(f"m{k}" for k in range(9))
    names = tuple(f"hospital-{k}" for k in range(12))
    runs = Drawn(("local", *methods), rounds=100, sites=names, images=20, predictions=False, distinct=2)
    draw_runs(tmp_path, runs)
    html = render_page(make_page(read(tmp_path)))
    assert len(html.encode()) < 2_000_000
