"""The study files of the papers' tables take their first step on real images, where these are here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from crossward.comparison.papers.studies import PaperStudy, table_studies
from crossward.comparison.papers.tables import paper_table, table_names
from crossward.config.reading import config_from
from crossward.errors import ConfigError
from crossward.runs.lifecycle import run
from crossward.studies.grid import GridCell, grid
from crossward.studies.study_file import read_study

DATA = Path(os.environ.get("CROSSWARD_DATA", Path(__file__).parents[3] / "shared" / "data"))
ARCHIVES = {
    "pbc": "PBC_dataset_normal_DIB.zip",
    "ham10000": "HAM10000.zip",
    "breakhis": "BreaKHis_v1.zip",
    "oct2017": "OCT2017.zip",
}
IMAGES = 150  # in all


def studies_on(source: str) -> list[PaperStudy]:
    small = [study for name in table_names() for study in table_studies(paper_table(name), small=True)]
    return [study for study in small if study.document["data"]["source"] == source]


def first_cells(study: PaperStudy, folder: Path) -> Iterator[GridCell]:
    """Every method of the study in its first setting."""
    file = folder / f"{study.name}.toml"
    file.write_text(study.text())
    seen: set[str] = set()
    for cell in grid(read_study(file)):
        if cell.label not in seen:
            seen.add(cell.label)
            yield cell


def take_first_step(cell: GridCell, folder: Path) -> None:
    """One round of one epoch at few sites with few images, without a look at the test set."""
    document = cell.document
    document["run"] |= {"rounds": 1, "name": cell.name, "out": str(folder)}
    document.setdefault("train", {})["epochs"] = 1
    document.setdefault("partition", {})["limit"] = IMAGES
    document["evaluate"] = {"every": 0}
    result = run(config_from(document))
    assert len(result.rounds) == 1
    assert result.rounds[0]["clients"]
    assert not result.rounds[0]["failures"]


@pytest.mark.e2e
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("source", ARCHIVES)
def test_every_method_of_the_papers_studies_takes_its_first_step(source, tmp_path, monkeypatch):
    if not (DATA / ARCHIVES[source]).exists():
        pytest.skip(f"{ARCHIVES[source]} is not in {DATA}")
    monkeypatch.setenv("CROSSWARD_DATA", str(DATA))
    steps = 0
    for study in studies_on(source):
        for cell in first_cells(study, tmp_path):
            take_first_step(cell, tmp_path / study.name)
            steps += 1
    assert steps


def test_where_images_are_missing_the_study_says_which(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSWARD_DATA", str(tmp_path))
    [study, *_] = studies_on("pbc")
    [cell, *_] = first_cells(study, tmp_path)
    with pytest.raises(ConfigError, match="PBC is not in"):
        take_first_step(cell, tmp_path)
