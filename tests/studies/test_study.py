"""Studies: which runs a file asks for, and what is read off their folders."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from crossward.experiment.load import checked

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "studies").glob("*.toml"))


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("study", ROOT / "studies" / "study.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["study"] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_run_of_every_study_is_a_valid_configuration(study, file: Path, tmp_path: Path):
    cells = list(study.cells(file, tmp_path))
    assert len({cell.folder for cell in cells}) == len(cells) > 1
    for cell in cells:
        config = checked(cell.config)
        assert config.run.seed == cell.seed
        assert config.run.out / config.run.name == cell.folder


def test_runs_differ_in_method_value_and_seed_alone(study, tmp_path: Path):
    cells = list(study.cells(ROOT / "studies" / "pbc_small.toml", tmp_path))
    assert len(cells) == 8 * 2 * 3
    same = {json.dumps({k: v for k, v in c.config.items() if k in ("data", "net", "train", "evaluate")}) for c in cells}
    assert len(same) == 1
    assert {c.config["partition"]["beta"] for c in cells} == {0.05, 0.1}


def folder(place: Path, scores: list[float], best: int) -> Path:
    place.mkdir(parents=True)
    lines = [
        {"round": r, "best": r == best, "seconds": 6.0, "metrics": {"test": {"global": {"f1": f1}}} if f1 else None}
        for r, f1 in enumerate(scores, 1)
    ]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (place / "summary.json").write_text("{}")
    return place


def test_figures_by_hand(study, tmp_path: Path):
    scores = [0.0] * 3 + [0.9] + [0.2, 0.4] * 5  # three rounds not evaluated, the best on validation, and the last ten
    cell = study.Cell("fedavg", 0.1, 0, folder(tmp_path / "a", scores, best=4), {})
    assert study.judged(cell) == pytest.approx({"best": 90.0, "last": 30.0, "minutes": 14 * 6 / 60})


def test_mean_and_deviation(study):
    assert study.spread([1.0, 3.0]) == "2.0 ± 1.4"
    assert study.spread([2.0]) == "2.0 ± 0.0"
    assert study.spread([]) == "–"
