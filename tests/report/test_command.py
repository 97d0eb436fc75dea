"""`crossward report` as people type it: the page, the figures, one hospital, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from drawn_runs import Drawn, draw_runs

SMALL = Drawn(methods=("local", "fedrep"), seeds=(0, 1), rounds=2, images=20, predictions=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command") / "blood"
    draw_runs(folder, SMALL)
    return folder


def test_a_folder_of_runs_becomes_a_page(cli, runs, tmp_path):
    file = tmp_path / "new" / "page.html"
    done = cli("report", runs, "-o", file)
    assert done.code == 0
    assert str(file) in done.out.replace("\n", "")
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_says_what_was_written(cli, runs, tmp_path):
    file = tmp_path / "page.html"
    said = json.loads(cli("report", runs, "-o", file, "--json").out)
    assert said["report"] == str(file)
    assert said["bytes"] == file.stat().st_size
    assert said["title"]


def test_figures_are_written_for_a_paper_without_a_browser(cli, runs, tmp_path):
    assert cli("report", runs, "-o", tmp_path / "page.html", "--figures", tmp_path / "figures").code == 0
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert {f"differences.{suffix}" for suffix in ("svg", "pdf", "png", "csv")} <= names


def test_the_page_of_one_hospital_is_written_alone(cli, runs, tmp_path):
    file = tmp_path / "north.html"
    assert cli("report", runs, "-o", file, "--hospital", "north").code == 0
    text = file.read_text(encoding="utf-8")
    assert "hospital-north" in text
    assert "south" not in text


def test_an_unknown_hospital_is_refused_with_the_nearest_name(cli, runs, tmp_path):
    done = cli("report", runs, "-o", tmp_path / "x.html", "--hospital", "nort")
    assert done.code == 2
    assert "north" in done.err
    assert not (tmp_path / "x.html").exists()


def test_a_folder_without_runs_a_missing_path_and_a_folder_as_output_are_refused(cli, runs, tmp_path):
    assert cli("report", tmp_path).code == 5
    assert cli("report", tmp_path / "missing").code == 5
    done = cli("report", runs, "-o", tmp_path)
    assert done.code == 2
    assert "is a folder" in done.err


def test_runs_of_different_data_are_refused_with_the_option_that_shows_them(cli, runs, tmp_path):
    draw_runs(tmp_path / "other", replace(SMALL, data="other"))
    done = cli("report", runs, tmp_path / "other", "-o", tmp_path / "x.html")
    assert done.code == 2
    assert "--side-by-side" in done.err
    assert cli("report", runs, tmp_path / "other", "-o", tmp_path / "x.html", "--side-by-side").code == 0


def test_a_study_that_has_not_run_says_how_to_run_it(cli, tmp_path):
    file = tmp_path / "blood.toml"
    file.write_text('[data]\nsource = "phantom"\n[study]\nseeds = [0]\nmethod = [{name = "fedavg"}]\n')
    done = cli("report", file, "--studies", tmp_path)
    assert done.code == 5
    assert "crossward study run" in done.err


def test_the_same_scripts_and_style_are_allowed_whenever_the_page_is_made(runs, cli, tmp_path):
    first, second = tmp_path / "1.html", tmp_path / "2.html"
    for file in (first, second):
        assert cli("report", runs, "-o", file, "-q").code == 0
    policies = [text.read_text(encoding="utf-8").split("Content-Security-Policy")[1][:400] for text in (first, second)]
    assert policies[0] == policies[1]
