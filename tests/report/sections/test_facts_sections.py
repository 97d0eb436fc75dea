"""Data, method, reproduce and checklist: what run directories say, and what they do not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from drawn_runs import Drawn, draw_runs, many
from scipy.spatial.distance import jensenshannon

from crossward.data.copies import what_was_done
from crossward.data.near_leaks import NearLeak, near_leak_notes
from crossward.report.content import CodeBlock, DataTable, Details, Note, Prose, Verdict, blocks_of, charts_of
from crossward.report.divergence import jensen_shannon
from crossward.report.reporting_items import CLAIM, TRIPOD
from crossward.report.sections.checklist import SUPPLY, checklist_section, limitations, run_facts
from crossward.report.sections.data import data_section
from crossward.report.sections.method import changed_options, departures_of, method_section, sent_items
from crossward.report.sections.reproduce import reproduce_section, weights_hash
from crossward.report.source import read_report_source
from crossward.testing.toy import Toy


def table(section, id: str) -> DataTable:
    return next(block for block in blocks_of(section) if isinstance(block, DataTable) and block.id == id)


def words(section) -> str:
    blocks = [*blocks_of(section)]
    notes = [block.text for block in blocks if isinstance(block, Note)]
    return " ".join([*notes, *("".join(map(str, block.text)) for block in blocks if isinstance(block, Prose))])


# data -----------------------------------------------------------------------------------------------------------------
def test_divergence_is_that_of_scipy_and_undefined_without_images():
    counts = np.array([[5, 0, 3], [0, 4, 4], [0, 0, 0]])
    found = jensen_shannon(counts)
    assert found[0, 1] == pytest.approx(jensenshannon(counts[0], counts[1], base=2) ** 2)
    assert found[0, 0] == 0
    assert np.isnan(found[0, 2])


def test_the_table_counts_images_and_names_missing_classes(source):
    rows = {row[0]: row for row in table(data_section(source), "partition").rows}
    assert rows["north"][3] == 40
    counts = source.runs[0].about["class_counts"]["north"]["train"]
    lacking = [name for name, count in zip(source.classes, counts, strict=True) if not count]
    assert rows["north"][5] == (", ".join(lacking) or "none")


def test_a_run_that_does_not_know_its_classes_says_so(tmp_path):
    [folder] = draw_runs(tmp_path, Drawn(methods=("fedavg",), seeds=(0,), predictions=False))
    about = json.loads((folder / "run.json").read_text()) | {"class_counts": {}}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "predictions" / "targets.safetensors").unlink()
    section = data_section(read_report_source([tmp_path], resamples=100))
    assert "do not know the classes" in words(section)
    assert charts_of(section) == []


def test_left_out_files_are_listed_without_their_folders(tmp_path):
    [folder] = draw_runs(tmp_path, Drawn(methods=("fedavg",), seeds=(0,), rounds=2))
    (folder / "quarantine.json").write_text(json.dumps({"left_out": ["/data/Mrs-Smith/x.png: truncated"]}))
    section = data_section(read_report_source([tmp_path], resamples=100))
    [details] = [block for block in blocks_of(section) if isinstance(block, Details)]
    assert "one file" in details.summary.lower()
    assert "Smith" not in str(details)
    assert "x.png: truncated" in str(details)


@pytest.mark.parametrize(
    ("recipe_key", "said", "not_said"),
    [
        ({"duplicates": "keep", "duplicates_reason": "as published"}, "copies of images stay on both sides", "clean"),
        ({"duplicates": "drop"}, "clean", "accepts"),
    ],
)
def test_the_audit_says_what_the_configuration_accepts(recipe_key, said, not_said, tmp_path):
    [folder] = draw_runs(tmp_path, Drawn(methods=("fedavg",), seeds=(0,), rounds=2))
    warnings = what_was_done(recipe_key, Toy().collection())
    about = json.loads((folder / "run.json").read_text()) | {"warnings": warnings}
    (folder / "run.json").write_text(json.dumps(about))
    text = words(data_section(read_report_source([tmp_path], resamples=100)))
    assert said in text
    assert not_said not in text


def test_the_audit_points_to_images_that_are_almost_the_same(tmp_path):
    [folder] = draw_runs(tmp_path, Drawn(methods=("fedavg",), seeds=(0,), rounds=2))
    leak = NearLeak("smith.png", "north", "doe.png", "south", "test", False, 0.99)
    about = json.loads((folder / "run.json").read_text()) | {"warnings": near_leak_notes([leak])}
    (folder / "run.json").write_text(json.dumps(about))
    text = words(data_section(read_report_source([tmp_path], resamples=100)))
    assert "1 pair(s) of almost the same image are trained on and held out, 1 of them with another label" in text
    assert "smith" not in text


def test_many_hospitals_stay_readable(tmp_path):
    draw_runs(tmp_path, Drawn(methods=("fedavg",), seeds=(0,), rounds=2, sites=many("h", 200), images=3))
    section = data_section(read_report_source([tmp_path], resamples=100))
    assert len(table(section, "partition").rows) == 60
    [divergence] = charts_of(section)
    assert len(divergence.spec["data"]["values"]) == 24**2


# method ---------------------------------------------------------------------------------------------------------------
def test_what_left_a_hospital_is_by_item_and_kind(source):
    rows = [row for row in table(method_section(source), "disclosure").rows if row[0].name == "fedavg"]
    [row] = rows
    assert (row[1], row[2], row[3]) == ("model", "weights", "weights")
    assert row[4].value == pytest.approx(500)  # 1 MB a round of two clients
    assert row[6].value == pytest.approx(4)
    assert "Nothing left a hospital under local" in words(method_section(source))
    [sent] = [item for item in sent_items(source.of("fedavg")[0].result) if item.direction == "up"]
    assert sent.rounds == 4


def test_options_that_differ_from_the_paper_are_named(finished_run):
    run = finished_run("fedprox", {"mu": 0.5})
    [report_run] = read_report_source([run.folder], resamples=100).runs
    assert changed_options(report_run) == ["mu = 0.5 (paper: 0.01)"]
    [default] = read_report_source([finished_run().folder], resamples=100).runs
    assert changed_options(default) == []


def test_departures_and_citation_come_from_the_methods_file(source):
    from crossward.config.describe import describe
    from crossward.methods import METHODS

    assert len(departures_of(describe("fedbm", *METHODS["fedbm"]))) > 5
    folded = {block.summary: block for block in method_section(source).blocks if isinstance(block, Details)}
    described = folded["Method fedavg: citation and departures"]
    assert "https://arxiv.org/abs/1602.05629" in str(described)


# reproduce ------------------------------------------------------------------------------------------------------------
def test_every_run_has_its_folder_and_hashes(finished_run):
    run = finished_run()
    section = reproduce_section(read_report_source([run.folder], resamples=100))
    [row] = table(section, "runs").rows
    assert row[0].text == str(run.folder)
    assert row[-1].text == weights_hash(run.folder / "weights" / "best")
    assert len(row[-1].text) == 12
    commands = [block.text for block in blocks_of(section) if isinstance(block, CodeBlock)]
    assert commands[0] == f"crossward run {run.folder / 'config.toml'}"
    assert any('name = "fedavg"' in text for text in commands)


def test_other_weights_have_another_hash(tmp_path):
    assert weights_hash(tmp_path / "nothing") == "–"
    (tmp_path / "global.safetensors").write_bytes(b"a")
    first = weights_hash(tmp_path)
    (tmp_path / "global.safetensors").write_bytes(b"b")
    assert weights_hash(tmp_path) != first


# checklist ------------------------------------------------------------------------------------------------------------
def test_the_guidelines_have_all_their_items():
    assert [item.number for item in CLAIM] == [str(number) for number in range(1, 45)]
    whole = dict.fromkeys(item.number.rstrip("abcdefg") for item in TRIPOD)
    assert list(whole) == [str(number) for number in range(1, 28)]


def test_what_a_run_does_not_know_is_for_the_authors(source):
    section = checklist_section(source)
    facts = run_facts(source)
    for id, items in (("claim", CLAIM), ("tripod", TRIPOD)):
        for item, row in zip(items, table(section, id).rows, strict=True):
            known = bool(facts.get(item.fact))
            assert isinstance(row[3], Verdict)
            assert (row[3].word != SUPPLY) == known
            assert (row[4] != "–") == known
    intended = table(section, "model-card").rows[0]
    assert intended[1].word == SUPPLY
    assert not {"funding", "ethics", "external"} & set(facts)


def test_limitations_follow_from_the_numbers(source, tmp_path):
    lines = limitations(source)
    assert any("fewer than 100 test images" in line for line in lines)
    assert not any("seed" in line for line in lines)
    draw_runs(tmp_path, Drawn(methods=("fedavg",), seeds=(0,), rounds=2, images=150))
    single = limitations(read_report_source([tmp_path], resamples=100))
    assert any("one seed" in line for line in single)
    assert not any("fewer than" in line for line in single)
