"""Studies that run in a blink: a file, and cells that are run in this process rather than by workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from crossward.core.run import Observer
from crossward.studies.states import TO_DO
from crossward.studies.study import Study
from crossward.studies.worker import run_cell

SHARED = """
[data]
sites = 2
train = 16
val = 4
test = 4
global_test = 8
[run]
rounds = 2
"""
StudyMaker = Callable[..., Study]


@pytest.fixture
def make_study(tmp_path: Path) -> StudyMaker:
    """make_study("seeds = [0]…"): a study of that section [study] on tiny phantoms."""

    def make(section: str, shared: str = SHARED, name: str = "tiny") -> Study:
        file = tmp_path / f"{name}.toml"
        file.write_text(f"[study]\n{section}\n{shared}")
        return Study(file, tmp_path / "out")

    return make


@pytest.fixture
def drawn_folder(gallery) -> Path:
    """Images of somebody's own: a folder for each class."""
    for name in ("benign", "malignant"):
        for i in range(30):
            gallery.image(f"{name}/{i}.png")
    return gallery.root


def run_here(study: Study) -> None:
    """Run what is to be done, one cell after the other, without workers."""
    from crossward.studies.ensemble import write_ensemble

    for planned in study.plan():
        if planned.state in TO_DO:
            cell = planned.cell
            if cell.members is not None:
                write_ensemble(cell.members, cell.folder)
            else:
                config = cell.config.canonical()
                run_cell({"folder": str(cell.folder), "config": config}, Observer())
