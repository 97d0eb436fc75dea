"""Cells: the grid of a study, configurations that are checked, and folders that end in a digest of what they hold."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from crossward.comparison.papers.studies import table_studies
from crossward.comparison.papers.tables import paper_table, table_names
from crossward.config.reading import config_from
from crossward.errors import ConfigError, DataError
from crossward.studies.cells import resolve_cells
from crossward.studies.grid import cell_count, grid
from crossward.studies.identity import Collections, run_digest, settings_apart
from crossward.studies.study_file import read_study

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "studies").glob("*.toml"))


class NoImages(Collections):
    """For files whose images are not here."""

    def fingerprint(self, data) -> str:
        return "images"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_cell_of_every_study_is_valid(file: Path, tmp_path: Path):
    cells = resolve_cells(read_study(file), tmp_path, NoImages())
    assert len({cell.folder for cell in cells}) == len(cells) > 1
    for cell in cells:
        assert cell.config.run.seed == cell.seed
        assert cell.config.run.out / cell.config.run.name == cell.folder
        assert cell.folder.name.endswith(f"-{cell.key[:10]}")


@pytest.mark.parametrize("file", [f for f in FILES if (ROOT / "studies/results" / f"{f.stem}.json").exists()],
                         ids=lambda file: file.stem)  # fmt: skip
def test_stored_figures_of_every_study_are_found_again(file: Path):
    """Their keys are those of the cells as the files write them."""
    rows = json.loads((ROOT / "studies" / "results" / f"{file.stem}.json").read_text())
    assert all("key" in row for row in rows)
    keys = {cell.written_key: cell for cell in grid(read_study(file))}
    found = [row for row in rows if row["key"] in keys]
    for row in found:
        cell = keys[row["key"]]
        assert (row["method"], row["seed"]) == (cell.label, cell.seed)
        assert row["value"] == (next(iter(cell.setting.values())) if cell.setting else "")


def test_cells_differ_in_method_value_and_seed_alone():
    cells = list(grid(read_study(ROOT / "studies" / "pbc_small.toml")))
    assert len(cells) == 8 * 2 * 3
    shared = ("data", "net", "train", "evaluate")
    assert len({json.dumps({name: cell.document[name] for name in shared}) for cell in cells}) == 1
    assert {cell.document["partition"]["beta"] for cell in cells} == {0.05, 0.1}
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells), "a cut-off study still compares"


def test_axes_baselines_repeats_and_exclude(make_study):
    study = make_study(
        """
        seeds = [0, 1]
        baselines = ["central", "ensemble"]
        noise_floor = true
        method = ["fedavg", { name = "fedprox", mu = 0.1, plugin = {} }]
        exclude = [
            { method = ["fedprox", "local"], net = "wide" },
            { method = "central", seed = 1 },
        ]
        [study.axes]
        "train.lr" = [0.1, 0.2]
        net = ["cnn", { label = "wide", name = "cnn", projection = 8 }]
        """
    )
    assert study.size == cell_count(study.file.settings) == 2 * 4 * (2 + 2 + 1 + 1)
    counts = Counter((cell.label, cell.repeat) for cell in study.cells)
    # without its members there is no ensemble
    assert counts == {
        ("fedavg", 0): 8,
        ("fedavg", 1): 8,
        ("fedprox", 0): 4,
        ("central", 0): 4,
        ("local", 0): 4,
        ("ensemble", 0): 4,
    }
    first = study.cells[0]
    assert (first.setting, first.setting_name) == ({"train.lr": 0.1, "net": "cnn"}, "lr 0.1, cnn")
    assert first.folder.name.startswith("fedavg-lr0.1-cnn-s0-")
    again = study.cells[1]
    assert (again.repeat, again.config.run.batch_order, again.seed) == (1, 1, first.seed)
    assert again.folder != first.folder
    wide = [cell for cell in study.cells if cell.setting["net"] == "wide"]
    assert {cell.config.net.options["projection"] for cell in wide} == {8}
    for cell in study.cells:
        if cell.label == "ensemble":
            [local] = [c for c in study.cells if c.folder == cell.members]
            assert (local.label, local.setting, local.seed) == ("local", cell.setting, cell.seed)


def test_an_axis_of_datasets_brings_sections_along(make_study):
    study = make_study(
        """
        seeds = [0]
        method = ["fedavg"]
        [[study.axes.dataset]]
        label = "few sites"
        data = { source = "phantom", sites = 2 }
        [[study.axes.dataset]]
        label = "polyps"
        data = { source = "phantom", kind = "polyp" }
        run = { rounds = 3 }
        """
    )
    few, polyps = study.cells
    assert (few.config.data.kind, few.config.data.sites, few.config.run.rounds) == ("blood", 2, 2)
    assert (polyps.config.data.kind, polyps.config.run.rounds) == ("polyp", 3)
    assert polyps.setting_name == "polyps"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            'seeds = [0]\nmethod = ["fedavg",\n{ name = "fedprox", nu = 1 }]',
            "fedprox: method.nu: no such option ({file}, line 4). Did you mean 'mu'?",
        ),
        ('seeds = [0]\nmethod = ["fedavg", "fedprx"]', "fedprx: method: there is no method 'fedprx' ({file}, line 3)."),
        (
            'seeds = [0]\nmethod = ["fedprox", "fedavg"]\naxes."method.mu" = [0.1, 1]',
            "fedavg: method.mu: no such option ({file}, line 4).",
        ),
        (
            'seeds = [0]\nmethod = ["fedavg"]\naxes."train.lrr" = [1]',
            "fedavg: train.lrr: no such key ({file}, line 4).",
        ),
        (
            'seeds = [0]\nmethod = ["fedavg", "scaffold"]\naxes."train.lr" = [-1]',
            "train.lr: input should be greater than 0, not -1 ({file}, line 4)",
        ),
    ],
)
def test_mistakes_in_cells_are_said_of_their_method(make_study, section, said):
    study = make_study(section)
    with pytest.raises(ConfigError) as error:
        _ = study.cells
    lines = [line.replace(str(study.file.file), "{file}") for line in error.value.details]
    assert any(line.startswith(said) for line in lines), lines
    assert not study.folder.exists()


def test_what_is_wrong_everywhere_is_said_once(make_study):
    study = make_study('seeds = [0, 1]\nmethod = ["fedavg", "scaffold"]', "[run]\nround = 3\n")
    with pytest.raises(ConfigError) as error:
        _ = study.cells
    [line] = error.value.details
    assert line.startswith("run.round: no such key")
    assert "line 5" in line


def test_an_axis_that_a_method_does_not_follow(make_study):
    study = make_study(
        'seeds = [0]\nmethod = ["fedavg", { name = "scaffold", net = "cnn" }]\naxes."net.projection" = [4, 8]',
        '[net]\nname = "cnn"\n',
    )
    with pytest.raises(ConfigError, match="scaffold is the same run with projection 4 and with projection 8"):
        _ = study.cells


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('columns = ["best.global.f2"]', "study.columns: 'best.global.f2' names no metric 'f2' ({file}, line 4)."),
        ('columns = ["first.global.f1"]', "study.columns: the column 'first.global.f1' names no rounds"),
        ('columns = ["f1"]', "study.columns: 'f1' is no column"),
        ('columns = ["best.global.dice"]', "study.columns: 'best.global.dice' names no metric 'dice'"),
        ('sites = "best.mean.f1"', "study.sites: the column 'best.mean.f1' has no such view"),
        ('reach = { reference = "fedavq" }', "study.reach.reference: there is no method 'fedavq' ({file}, line 4)."),
        ('reach = { reference = "fedavg", windw = 2 }', "study.reach.windw: no such option ({file}, line 4)."),
        ('join = "hospital-9"', "study.join: 'hospital-9' is not left out ({file}, line 4)."),
    ],
)
def test_mistakes_in_tables_are_found_before_anything_runs(make_study, section, said):
    study = make_study(f'seeds = [0]\nmethod = ["fedavg"]\n{section}')
    with pytest.raises(ConfigError) as error:
        _ = study.cells
    assert error.value.details[0].replace(str(study.file.file), "{file}").startswith(said)


def test_an_ensemble_without_a_common_test_set_is_refused(make_study):
    study = make_study(
        'seeds = [0]\nmethod = ["fedavg"]\nbaselines = ["ensemble"]',
        "[data]\nsites = 2\ntrain = 16\nval = 4\ntest = 4\nglobal_test = 0\n",
    )
    with pytest.raises(ConfigError, match="no ensemble without a test set of the whole federation"):
        _ = study.cells


def test_images_that_are_missing_are_found_before_anything_runs(make_study, tmp_path):
    study = make_study('seeds = [0]\nmethod = ["fedavg"]', f'[data]\nsource = "folder"\npath = "{tmp_path}/none"\n')
    with pytest.raises(DataError, match="no folder or archive"):
        _ = study.cells


# identity -------------------------------------------------------------------------------------------------------------
def test_the_digest_is_of_what_is_computed():
    def digest(document, images="a"):
        return run_digest(config_from(document), images)

    plain = digest({})
    assert digest({"run": {"out": "elsewhere", "name": "x"}, "engine": {"name": "pool", "workers": 3}}) == plain
    assert digest({"method": {"name": "fedprox"}}) == digest({"method": {"name": "fedprox", "mu": 0.01}})
    assert digest({"train": {"lr": 0.3}}) != plain
    assert digest({"run": {"seed": 1}}) != plain
    assert digest({"run": {"batch_order": 1}}) != plain
    assert digest({}, images="b") != plain
    moved = [{"data": {"source": "folder", "path": path}} for path in ("/a", "/b")]
    assert digest(moved[0]) == digest(moved[1])


def test_changed_images_are_a_new_cell(make_study, drawn_folder):
    shared = f'[data]\nsource = "folder"\npath = "{drawn_folder}"\nsize = 8\n[run]\nrounds = 1\n'
    section = 'seeds = [0]\nmethod = ["fedavg"]'
    before = make_study(section, shared).cells[0]
    assert make_study(section, shared).cells[0].folder == before.folder
    next(drawn_folder.rglob("*.png")).unlink()
    assert make_study(section, shared).cells[0].folder != before.folder


def test_a_run_from_before_a_key_existed_is_the_same_run():
    config = config_from({"train": {"lr": 0.3}})
    stored = config.canonical()
    del stored["run"]["batch_order"]
    assert settings_apart({"config": stored}, config) == []
    stored["train"]["lr"] = 0.1
    assert settings_apart({"config": stored}, config) == ["train.lr: 0.1 in the run, 0.3 now"]


@pytest.mark.parametrize("small", [False, True], ids=["full", "small"])
def test_the_studies_of_every_table_of_the_papers_are_valid(small, tmp_path):
    names = table_names()
    assert len(names) == 31
    for name in names:
        for study in table_studies(paper_table(name), small=small):
            file = tmp_path / f"{study.name}.toml"
            file.write_text(study.text())
            assert resolve_cells(read_study(file), tmp_path, NoImages())
