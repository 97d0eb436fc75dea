"""The report of a study whose run directories are gone, all or some, and whose figures are stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from drawn_runs import Drawn, draw_runs

from crossward.errors import ConfigError, StorageError
from crossward.report.assembly import make_hospital_page, make_page
from crossward.report.content import DataTable, Figure, blocks_of, charts_of
from crossward.report.render import render_page
from crossward.report.source import ReportSource, read_report_source
from crossward.studies.grid import grid
from crossward.studies.stored_figures import store_rows
from crossward.studies.study_file import read_study
from crossward.studies.study_folder import CellRecord, StudyFolder

STUDY = """
[study]
seeds = [0, 1, 2]
method = ["local", "fedavg", "fedrep"]
columns = ["best.mean.f1"]
sites = "best.site.f1"

[data]
source = "phantom"
kind = "blood"
size = 28

[net]
name = "cnn"

[run]
rounds = 2
"""
STORED = {"local": 40.0, "fedavg": 50.0, "fedrep": 60.0}


@pytest.fixture
def file(tmp_path) -> Path:
    place = tmp_path / "blood.toml"
    place.write_text(STUDY)
    return place


def keep_figures(file: Path, folder: Path, labels=tuple(STORED), *, sites: bool = False) -> None:
    study = read_study(file)
    rows = []
    for cell in grid(study):
        if cell.label in labels:
            value = STORED[cell.label] + cell.seed
            row = {"method": cell.label, "value": "", "seed": cell.seed, "key": cell.written_key, "best.mean.f1": value}
            more = {"sites_column": "best.site.f1", "sites": {"north": value - 5, "south": value + 5}} if sites else {}
            rows.append(row | more)
    folder.mkdir(parents=True, exist_ok=True)
    store_rows(study, folder, rows)


def read(path: Path, tmp_path: Path) -> ReportSource:
    return read_report_source([path], out=tmp_path / "studies", resamples=100)


def figures(page, id: str) -> dict[str, float]:
    """Method -> its first figure."""
    table = next(block for block in blocks_of(page) if isinstance(block, DataTable) and block.id == id)
    return {row[0].name: next(cell.value for cell in row if isinstance(cell, Figure)) for row in table.rows}


def test_a_study_without_a_run_directory_has_its_stored_figures(file, tmp_path, cache):
    (tmp_path / "results").mkdir()
    keep_figures(file, tmp_path / "studies" / "blood")
    shutil.rmtree(tmp_path / "studies")  # the figures are in results/blood.json, beside the study
    page = make_page(read(file, tmp_path))
    assert figures(page, "comparison-table") == pytest.approx({"fedrep": 61, "fedavg": 51, "local": 41})
    assert page.title.startswith("fedrep gains 20.0 points of F1 over training alone")
    assert any("folders of nine runs are gone" in note for note in page.notes)
    assert [section.id for section in page.sections] == ["verdict", "comparison"]
    assert page.sources == ()
    assert "whose folders are gone" in render_page(page)


def test_stored_figures_of_hospitals_have_their_section_and_pages(file, tmp_path, cache):
    keep_figures(file, tmp_path / "studies" / "blood", sites=True)
    source = read(file, tmp_path)
    page = make_page(source)
    assert [section.id for section in page.sections] == ["verdict", "comparison", "hospitals"]
    assert {sheet.name for sheet in page.hospitals} == {"north", "south"}
    dots = next(chart for chart in charts_of(page) if chart.id == "hospital-dots")
    values = {(row["method"], row["group"]): row["value"] for row in dots.spec["data"]["values"]}
    assert values["fedrep", "north"] == pytest.approx(56)
    assert make_hospital_page(source, "south").title.startswith("south: +20.0 points")


@pytest.mark.parametrize("by", ["file", "folder"])
def test_runs_that_are_gone_stand_beside_runs_that_are_there(file, tmp_path, cache, by):
    folder = tmp_path / "studies" / "blood"
    drawn = Drawn(methods=("local", "fedavg"), rounds=2, images=20)
    places = draw_runs(folder, drawn)
    index = StudyFolder(folder)
    cells = {(cell.label, cell.seed): cell for cell in grid(read_study(file))}
    for place, (label, seed) in zip(places, [(m, s) for m in drawn.methods for s in drawn.seeds], strict=True):
        key = cells[label, seed].written_key
        index.cells[key] = CellRecord(place.name, label, {}, seed, key=key)
    for seed in drawn.seeds:
        key = cells["fedrep", seed].written_key
        index.cells[key] = CellRecord(f"fedrep-s{seed}", "fedrep", {}, seed, key=key)
    index.keep_cells()
    keep_figures(file, folder)
    source = read(file if by == "file" else folder, tmp_path)
    assert source.labels == ("local", "fedavg", "fedrep")
    assert len(source.runs) == 6
    page = make_page(source)
    assert figures(page, "comparison-table")["fedrep"] == pytest.approx(61)
    assert [note for note in page.notes if "folders of three runs are gone" in note]
    assert not [note for note in page.notes if "not begun" in note]
    learning = next(chart for chart in charts_of(page) if chart.id == "learning-mean")
    assert {row["method"] for row in learning.spec["data"]["values"]} == {"local", "fedavg"}
    assert {section.id for section in page.sections} >= {"classes", "data", "method", "reproduce", "checklist"}
    assert render_page(page)


def test_a_hospital_cannot_be_shown_where_none_has_figures(file, tmp_path, cache):
    keep_figures(file, tmp_path / "studies" / "blood")
    with pytest.raises(ConfigError, match="no hospital 'north'") as refused:
        make_hospital_page(read(file, tmp_path), "north")
    assert "No figures of hospitals are left" in str(refused.value)


def test_a_study_that_never_ran_is_refused(file, tmp_path):
    with pytest.raises(StorageError, match="the study blood has no folder") as refused:
        read(file, tmp_path)
    assert "crossward study run" in str(refused.value)


def test_damaged_figures_are_refused_with_their_place(file, tmp_path):
    folder = tmp_path / "studies" / "blood"
    folder.mkdir(parents=True)
    (folder / "figures.json").write_text(json.dumps({"no": "list"}))
    with pytest.raises(StorageError, match=r"figures\.json holds no list of figures"):
        read(file, tmp_path)
