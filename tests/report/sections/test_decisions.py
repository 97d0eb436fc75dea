"""Classes and decisions: what stored predictions say, what the slider shows, and runs that keep none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn_runs import Drawn, draw_runs, many

from crossward.comparison.operating_points import sensitivity_at_specificity
from crossward.report.content import Chart, Chooser, DataTable, Note, Slider, blocks_of, charts_of
from crossward.report.decisions import distinct_names, read_decisions
from crossward.report.figures import drawn as drawn_files
from crossward.report.sections.classes import classes_section
from crossward.report.source import read_report_source

ONE = Drawn(methods=("fedavg",), seeds=(0,), rounds=2)


def section_of(folder, drawn: Drawn):
    draw_runs(folder, drawn)
    return classes_section(read_report_source([folder], resamples=100))


def chart(section, id: str) -> Chart:
    return next(each for each in charts_of(section) if each.id == id)


@pytest.fixture(scope="module")
def section(source):
    return classes_section(source)


def test_recall_of_a_class_is_that_of_the_stored_metrics(source):
    decisions = read_decisions(source, "")
    method = next(method for method in decisions.methods if method.label == "fedavg")
    confusion = method.confusion
    assert method.images == 120
    assert confusion.sum() == 3 * 120
    assert np.all(method.recall.low <= method.recall.value)
    assert np.all(method.recall.value <= method.recall.high)


def test_one_seed_has_the_recalls_of_metrics_jsonl(tmp_path):
    draw_runs(tmp_path, replace(ONE, sites=("north",)))
    source = read_report_source([tmp_path], resamples=100)
    [method] = read_decisions(source, "").methods
    stored = source.runs[0].rounds.best_metrics["test"]["local"]["sites"]["north"]
    assert method.recall.value == pytest.approx(stored["recall"])
    assert method.f1.value == pytest.approx(stored["f1_per_class"])
    assert method.calibration.value == pytest.approx(stored["ece"])
    assert method.calibration.low is not None


def test_every_position_of_the_slider_has_the_exact_sensitivity(tmp_path):
    section = section_of(tmp_path, replace(ONE, sites=("north",)))
    slider = next(block for block in section.blocks if isinstance(block, Slider))
    source = read_report_source([tmp_path], resamples=100)
    run = source.runs[0].result
    scores, truth = run.predictions(1)["north"]["test"].numpy(), run.targets()["north"]["test"].numpy()
    rows = chart(section, "sensitivity").spec["data"]["values"]
    positions = np.arange(slider.low, slider.high + slider.step / 2, slider.step)
    assert {row["specificity"] for row in rows} == set(np.round(positions, 2))
    for row in rows[::17]:
        label = source.classes.index(row["group"])
        wanted = sensitivity_at_specificity(scores[:, label], truth == label, row["specificity"] / 100, resamples=100)
        assert row["value"] == pytest.approx(100 * wanted.sensitivity.value, abs=0.051)


def test_curves_have_at_most_200_points_and_charts_hold_no_prediction(section):
    for id in ("roc", "precision-recall"):
        rows = chart(section, id).spec["data"]["values"]
        curves = {(row["method"], row["name"]) for row in rows}
        assert len(curves) == 9
        assert len(rows) / len(curves) <= 200
    text = str([each.spec for each in charts_of(section)])
    assert "north/0" not in text


def test_the_confusion_matrix_is_normalised_by_row_and_chosen_by_method(section):
    rows = [row for row in chart(section, "confusion").spec["data"]["values"] if row["method"] == "fedrep"]
    for name in ("cat", "dog", "owl"):
        own = [row for row in rows if row["y"] == name]
        assert sum(row["value"] for row in own) == pytest.approx(100, abs=0.2)
        assert sum(row["images"] for row in own) == own[0]["of"]
    choosers = [block for block in blocks_of(section) if isinstance(block, Chooser)]
    assert [chooser.param for chooser in choosers] == ["shown_method", "shown_class"]


def test_runs_without_predictions_have_figures_but_no_curves_and_say_why(tmp_path):
    section = section_of(tmp_path, Drawn(seeds=(0, 1), rounds=2, predictions=False))
    ids = {each.id for each in charts_of(section)}
    assert {"classes-recall", "classes-f1", "confusion"} <= ids
    assert "roc" not in ids
    assert any("keep no predictions" in block.text for block in section.blocks if isinstance(block, Note))


def test_many_classes_have_a_table_of_confusions_and_bounded_charts(tmp_path):
    section = section_of(tmp_path, replace(ONE, classes=many("class", 62), images=400, sites=("north",)))
    assert len(chart(section, "classes-recall").spec["data"]["values"]) <= 20
    assert len({row["name"] for row in chart(section, "roc").spec["data"]["values"]}) == 12
    tables = {block.id: block for block in blocks_of(section) if isinstance(block, DataTable)}
    assert len(tables["confusion"].rows) == 15
    assert len(tables["classes-table"].rows) == 62


def test_a_class_that_is_nowhere_tested_is_a_dash_in_the_table_and_in_no_chart(tmp_path):
    section = section_of(tmp_path, replace(ONE, classes=("cat", "dog", "owl", "yeti"), images=3, sites=("north",)))
    tables = {block.id: block for block in blocks_of(section) if isinstance(block, DataTable)}
    absent = [row for row in tables["classes-table"].rows if row[1] == 0]
    assert absent
    assert all(row[2].value is None for row in absent)
    shown = {row["group"] for row in chart(section, "classes-recall").spec["data"]["values"]}
    assert not shown & {row[0] for row in absent}


def test_names_that_look_alike_stay_apart():
    assert distinct_names(["a" * 100, "a" * 101, ""]) == ("a" * 59 + "…", "a" * 59 + "…′", "(no name)")


@pytest.mark.parametrize("id", ["classes-recall", "confusion", "roc", "precision-recall", "sensitivity", "reliability"])
def test_every_figure_can_be_drawn_for_a_paper(section, id):
    files = drawn_files(chart(section, id))
    assert b"<svg" in files["svg"]
    assert len(files["png"]) > 3000
