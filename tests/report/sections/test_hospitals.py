"""Hospitals in every setting of a study, and the sheet that each is handed: gains, classes, confusions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn_runs import Drawn, draw_runs, draw_study

from crossward.report.assembly import make_page
from crossward.report.content import Chart, DataTable, Prose, Tabs, blocks_of, charts_of
from crossward.report.render import render_page
from crossward.report.sections.comparison import learning_blocks
from crossward.report.sections.data import data_section
from crossward.report.sections.hospital_sheets import hospital_pages
from crossward.report.sections.hospitals import hospitals_section
from crossward.report.sections.verdict import verdict_section
from crossward.report.site_decisions import read_site_decisions
from crossward.report.source import read_report_source

RESAMPLES = 100
FEW = Drawn(seeds=(0, 1), rounds=2)


@pytest.fixture(scope="module")
def study(tmp_path_factory, cache):
    """Two settings; the second has one more hospital, and a method less."""
    folder = tmp_path_factory.mktemp("settings") / "study"
    more = replace(FEW, sites=("north", "south", "west"), methods=("local", "fedavg"))
    return read_report_source([draw_study(folder, {0.1: FEW, 0.5: more})], resamples=RESAMPLES)


def test_every_setting_has_its_hospitals(study):
    section = hospitals_section(study)
    (tabs,) = [block for block in section.blocks if isinstance(block, Tabs)]
    assert [tab.label for tab in tabs.tabs] == ["Beta 0.1", "Beta 0.5"]
    groups = [
        {row["group"] for row in block.spec["data"]["values"]}
        for tab in tabs.tabs
        for block in tab.blocks
        if isinstance(block, Chart)
    ]
    assert groups == [{"north", "south", "east"}, {"north", "south", "west"}]
    ids = [block.id for block in blocks_of(section) if isinstance(block, Chart | DataTable)]
    assert len(ids) == len(set(ids))


def test_a_hospitals_sheet_has_every_setting_it_is_in(study):
    sheets = {sheet.name: sheet for sheet in hospital_pages(study)}
    assert set(sheets) == {"north", "south", "east", "west"}
    assert sheets["north"].title == "north, in two settings"
    (tabs,) = [block for block in sheets["north"].blocks if isinstance(block, Tabs)]
    words = ["".join(str(getattr(part, "text", part)) for part in tab.blocks[0].text) for tab in tabs.tabs]
    assert all(isinstance(tab.blocks[0], Prose) for tab in tabs.tabs)
    assert "with fedrep" in words[0]
    assert "with fedavg" in words[1]  # the best of the methods that this setting has
    assert sheets["west"].title.startswith("west: ")  # of one setting, as before


def test_a_sheet_names_runs_of_its_own_setting_only(study):
    sheet = next(sheet for sheet in hospital_pages(study) if sheet.name == "west")
    of_setting = {run.id for run in study.runs if run.setting == "beta 0.5"}
    (table,) = [block for block in sheet.blocks if isinstance(block, DataTable)]
    assert {run for row in table.rows for run in row[1].runs} <= of_setting


def test_every_setting_has_its_data(study):
    section = data_section(study)
    (tabs,) = [block for block in section.blocks if isinstance(block, Tabs)]
    assert [tab.label for tab in tabs.tabs] == ["Beta 0.1", "Beta 0.5"]
    hospitals = [
        [row[0] for row in block.rows] for tab in tabs.tabs for block in tab.blocks if isinstance(block, DataTable)
    ]
    assert hospitals == [["north", "south", "east"], ["north", "south", "west"]]
    charts = {chart.id: chart for chart in charts_of(section)}
    assert set(charts) == {"divergence", "divergence-1", "who-holds-what-1"}  # the first opens the page
    assert {row["x"] for row in charts["who-holds-what-1"].spec["data"]["values"]} == {"north", "south", "west"}
    (first,) = [chart for chart in charts_of(verdict_section(study)) if chart.id == "who-holds-what"]
    assert first.caption.endswith("With beta 0.1; section Data has the others.")


def test_one_setting_needs_no_choice(source):
    assert not [block for block in hospitals_section(source).blocks if isinstance(block, Tabs)]
    assert not [block for block in data_section(source).blocks if isinstance(block, Tabs)]


@pytest.mark.parametrize(("column", "first"), [("best.global.f1", "Common test set"), ("best.worst.f1", "Worst hospital")])  # fmt: skip # noqa: E501
def test_curves_open_with_the_images_that_the_verdict_is_about(source, column, first):
    about = replace(source, spec=replace(source.spec, columns=(column,)))
    (tabs,) = [block for block in learning_blocks(about) if isinstance(block, Tabs)]
    labels = [tab.label for tab in tabs.tabs]
    assert labels[0] == first
    assert set(labels) == {"Common test set", "Mean of the hospitals", "Worst hospital"}


def expected_recall(source, label: str, site: str) -> np.ndarray:
    """The mean over seeds, straight from the stored predictions."""
    figures = []
    for run in source.of(label):
        predicted = run.result.predictions(run.rounds.best)[site]["test"].argmax(1).numpy()
        truth = run.result.targets()[site]["test"].numpy()
        hits = [predicted[truth == k] == k for k in range(len(source.classes))]
        figures.append([np.mean(each) if len(each) else np.nan for each in hits])
    return np.nanmean(figures, axis=0)


def test_a_sheet_has_the_recall_of_each_class_at_this_hospital(source):
    sheet = next(sheet for sheet in hospital_pages(source) if sheet.name == "south")
    chart = next(chart for chart in charts_of(sheet) if chart.id == "hospital-south-recall")
    found = {(method, name): value for method, name, value, *_ in chart.rows}
    for label in ("fedrep", "local"):
        for name, value in zip(source.classes, expected_recall(source, label, "south"), strict=True):
            assert found[label, name] == pytest.approx(100 * value, abs=0.06)
    assert {method for method, _ in found} == {"fedrep", "local"}  # the best over all hospitals, and training alone
    lowest = min(source.classes, key=lambda name: found["fedrep", name])
    assert f"recall is lowest for {lowest}" in chart.title


def test_a_sheet_has_what_is_taken_for_what_at_this_hospital(source):
    sheet = next(sheet for sheet in hospital_pages(source) if sheet.name == "north")
    chart = next(chart for chart in charts_of(sheet) if chart.id == "hospital-north-confusion")
    images = np.zeros((3, 3), dtype=int)
    for run in source.of("fedrep"):
        predicted = run.result.predictions(run.rounds.best)["north"]["test"].argmax(1).numpy()
        np.add.at(images, (run.result.targets()["north"]["test"].numpy(), predicted), 1)
    cells = {(row["y"], row["x"]): row["images"] for row in chart.spec["data"]["values"]}
    for true, of in enumerate(source.classes):
        for said, called in enumerate(source.classes):
            assert cells[of, called] == images[true, said]


def test_many_classes_have_a_table_of_confusions_in_place_of_a_matrix(tmp_path, cache):
    draw_runs(tmp_path / "runs", replace(FEW, classes=tuple(f"c{k}" for k in range(20)), images=120))
    source = read_report_source([tmp_path / "runs"], resamples=RESAMPLES)
    sheet = hospital_pages(source)[0]
    tables = {table.id: table for table in blocks_of(sheet) if isinstance(table, DataTable)}
    rows = tables["hospital-north-confusion"].rows
    assert len(rows) == 5
    counts = [images for *_, images in rows]
    assert counts == sorted(counts, reverse=True)
    assert all(true != said for true, said, _ in rows)
    recall = next(chart for chart in charts_of(sheet) if chart.id == "hospital-north-recall")
    assert len({row["group"] for row in recall.spec["data"]["values"]}) == 16


def test_without_predictions_the_classes_come_from_metrics(tmp_path, cache, source):
    draw_runs(tmp_path / "runs", Drawn(common=30, predictions=False))
    stored = read_report_source([tmp_path / "runs"], resamples=RESAMPLES)
    for site in ("north", "south", "east"):
        mine, theirs = (read_site_decisions(each, "", ["fedrep"])["fedrep", site] for each in (stored, source))
        np.testing.assert_allclose(mine.figures.value, theirs.figures.value)
        np.testing.assert_array_equal(mine.confusion, theirs.confusion)


def test_settings_with_other_classes_stand_side_by_side(tmp_path, cache):
    draw_runs(tmp_path / "a", replace(FEW, methods=("local", "fedavg")))
    draw_runs(tmp_path / "b", replace(FEW, methods=("local", "fedavg"), classes=("x", "y"), sites=("p", "q"), data="o"))
    source = read_report_source([tmp_path / "a", tmp_path / "b"], side_by_side=True, resamples=RESAMPLES)
    sheets = {sheet.name: sheet for sheet in hospital_pages(source)}
    assert {"north", "p"} <= set(sheets)
    (recall,) = [chart for chart in charts_of(sheets["p"]) if chart.id.endswith("-recall")]
    assert {name for _, name, *_ in recall.rows} == {"x", "y"}
    assert render_page(make_page(source))
