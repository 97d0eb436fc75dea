"""Studies: the runs that a file asks for, the tables that are made of their folders, and the whole program."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from crossward.config.reading import config_from

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "studies").glob("*.toml"))


@pytest.fixture(scope="module")
def study():
    sys.path.append(str(ROOT / "studies"))  # processes that a study starts import it by its name
    return importlib.import_module("study")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_run_of_every_study_is_a_valid_configuration(study, file: Path, tmp_path: Path):
    cells = list(study.Study(file, tmp_path).cells())
    assert len({cell.folder for cell in cells}) == len(cells) > 1
    for cell in cells:
        config = config_from(cell.config)
        assert config.run.seed == cell.seed
        assert config.run.out / config.run.name == cell.folder


def test_runs_differ_in_method_value_and_seed_alone(study, tmp_path: Path):
    cells = list(study.Study(ROOT / "studies" / "pbc_small.toml", tmp_path).cells())
    assert len(cells) == 8 * 2 * 3
    same = {json.dumps({k: v for k, v in c.config.items() if k in ("data", "net", "train", "evaluate")}) for c in cells}
    assert len(same) == 1
    assert {c.config["partition"]["beta"] for c in cells} == {0.05, 0.1}


def folder(place: Path, scores: list[float], best: int) -> Path:
    place.mkdir(parents=True)
    lines = []
    for r, f1 in enumerate(scores, 1):
        local = {"mean": {"auc": f1 / 2}, "worst": {"auc": f1 / 4}}
        metrics = {"test": {"global": {"f1": f1}, "local": local}} if f1 else None
        lines.append({"round": r, "best": r == best, "seconds": 6.0, "metrics": metrics})
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (place / "summary.json").write_text("{}")
    return place


def test_figures_by_hand(study, tmp_path: Path):
    scores = [0.0] * 3 + [0.9] + [0.2, 0.4] * 5  # three rounds not evaluated, the best on validation, and the last ten
    columns = ["best.global.f1", "last.global.f1", "last.mean.auc", "best.worst.auc"]
    figures = study.run_figures(folder(tmp_path / "a", scores, best=4), columns, 10)
    assert figures == pytest.approx(dict(zip(columns, (90.0, 30.0, 15.0, 22.5))) | {"minutes": 14 * 6 / 60})


def test_tables_by_hand(study, tmp_path: Path):
    text = """
        [study]
        seeds = [0, 1]
        last = 2
        columns = ["last.global.f1"]
        pairs = [["plus", "fedavg"]]
        method = [{ name = "fedavg" }, { name = "fedavg+npr", label = "plus", plugin.npr.k = 2 }]
        [run]
        rounds = 2
        """
    file = tmp_path / "s.toml"
    file.write_text(text)
    tiny = study.Study(file, tmp_path)
    cells = list(tiny.cells())
    assert [cell.folder.name for cell in cells] == ["fedavg-s0", "plus-s0", "fedavg-s1", "plus-s1"]
    assert config_from(cells[1].config).plugin == {"npr": {"k": 2}}
    for cell, f1 in zip(cells, (0.5, 0.6, 0.7, 0.6), strict=True):
        folder(cell.folder, [f1, f1], best=2)
    figures = tiny.figures()
    assert tiny.summary_table(figures).splitlines()[2:] == [
        "| fedavg | 60.0 ± 14.1 | 0.2 |",
        "| plus | 60.0 ± 0.0 | 0.2 |",
    ]
    assert tiny.difference_table(figures).splitlines()[2:] == ["| plus − fedavg | +0.0 ± 14.1 (1/2) |"]


def test_mean_and_deviation(study):
    assert study.spread([1.0, 3.0]) == "2.0 ± 1.4"
    assert study.spread([2.0]) == "2.0 (one run)"
    assert study.spread([]) == "–"


def test_a_study_runs_and_prints_every_table(study, tmp_path: Path, capsys):
    """The program itself: `study.py run FILE`."""
    file = tmp_path / "tiny.toml"
    file.write_text(
        """
        [study]
        seeds = [0]
        last = 1
        columns = ["last.global.accuracy", "best.mean.accuracy"]
        pairs = [["scaffold", "fedavg"]]
        sites = "last.site.accuracy"
        reach = { reference = "fedavg", target = 0.0, metric = "accuracy" }
        method = [{ name = "fedavg" }, { name = "scaffold" }]
        [data]
        sites = 2
        train = 16
        val = 4
        test = 4
        global_test = 8
        [run]
        rounds = 1
        """
    )
    study.main(["run", str(file), "--out", str(tmp_path / "runs"), "--workers", "1"])
    done, *tables = capsys.readouterr().out.split("\n\n")
    assert done.splitlines()[0] == "2 runs to do"
    assert sorted(done.splitlines()[1:3]) == ["fedavg-s0", "scaffold-s0"]
    summary = done.splitlines()[3:]
    assert summary[0] == "| method | accuracy, last rounds | accuracy of a site, best on val | minutes |"
    assert [rows_of(table)[0][0] for table in tables] == ["scaffold − fedavg", "fedavg", "fedavg"]
    figures = json.loads((tmp_path / "results" / "tiny.json").read_text())
    assert [run["method"] for run in figures] == ["fedavg", "scaffold"]
    assert list(figures[0]["sites"]) == ["hospital-1", "hospital-2"]
    costs = rows_of(tables[-1])
    assert [row[0] for row in costs] == ["fedavg", "scaffold"]
    assert [row[1:4] for row in costs] == [
        ["1/1", "1.0 (one run)", "1.0 (one run)"]
    ] * 2  # the first round is the target's
    assert float(costs[1][5].split()[0]) == pytest.approx(2.0, abs=0.05)  # SCAFFOLD sends twice as much

    study.main(["table", str(file), "--out", str(tmp_path / "runs")])
    assert capsys.readouterr().out.startswith("\n".join(summary))


def test_a_newcomer_joins_every_run(study, tmp_path: Path):
    file = tmp_path / "join.toml"
    file.write_text(
        """
        [study]
        seeds = [0]
        columns = ["last.mean.accuracy"]
        join = "hospital-3"
        method = [{ name = "fedrep" }]
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
    )
    tiny = study.Study(file, tmp_path)
    for cell in tiny.cells():
        assert study.run_cell(cell, tiny.settings["join"]) == "fedrep-s0"
    title, _, *rows = tiny.join_table().splitlines()
    assert title == "| hospital-3 | accuracy |"
    assert [row.split(" | ")[0] for row in rows] == ["| alone", "| joined", "| joined − alone"]


def rows_of(table: str) -> list[list[str]]:
    """The cells of a table without its heading."""
    return [row.strip("| ").split(" | ") for row in table.strip().splitlines()[2:]]


def test_figures_outlive_the_folders_of_their_runs(study, tmp_path: Path):
    file = tmp_path / "s.toml"
    file.write_text(
        '[study]\nseeds = [0]\ncolumns = ["last.global.f1"]\nmethod = [{ name = "fedavg" }]\n[run]\nrounds = 2\n'
    )
    first = study.Study(file, tmp_path / "here")
    [cell] = first.cells()
    folder(cell.folder, [0.5, 0.5], best=2)
    figures = first.store()
    elsewhere = study.Study(file, tmp_path / "there")
    assert elsewhere.figures() == figures
    assert elsewhere.unfinished() == []
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 3"))
    changed = study.Study(file, tmp_path / "there")
    assert changed.figures() == []
    assert len(changed.unfinished()) == 1
