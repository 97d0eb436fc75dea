"""Studies that run in a blink: what their files share, and cells that are run in this process, not by workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from crossward.core.run import Observer
from crossward.studies.ensemble import write_ensemble
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
FOUR_ROUNDS = SHARED.replace("val = 4", "val = 8").replace("rounds = 2", "rounds = 4")  # for rungs
StudyMaker = Callable[..., Study]


def write_study(folder: Path, out: Path, section: str, shared: str = SHARED, name: str = "tiny") -> Study:
    """The study of a section [study], in a file in this folder."""
    file = folder / f"{name}.toml"
    file.write_text(f"[study]\n{section}\n{shared}")
    return Study(file, out)


def run_here(study: Study) -> None:
    """Run what is to be done, one cell after the other, without workers."""
    for planned in study.plan():
        if planned.state not in TO_DO:
            continue
        cell = planned.cell
        if cell.members is not None:
            write_ensemble(cell.members, cell.folder)
        else:
            run_cell({"folder": str(cell.folder), "config": cell.config.canonical()}, Observer())
