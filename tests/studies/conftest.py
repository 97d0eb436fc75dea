"""Studies of tiny phantoms, and a folder of drawn images."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from tiny_studies import SHARED, StudyMaker, write_study

from crossward.studies.study import Study


@pytest.fixture
def make_study(tmp_path: Path) -> StudyMaker:
    """make_study("seeds = [0]…"): a study of that section [study] on tiny phantoms."""

    def make(section: str, shared: str = SHARED, name: str = "tiny") -> Study:
        return write_study(tmp_path, tmp_path / "out", section, shared, name)

    return make


@pytest.fixture
def drawn_folder(gallery) -> Path:
    """Images of somebody's own: a folder for each class."""
    for name in ("benign", "malignant"):
        for i in range(30):
            gallery.image(f"{name}/{i}.png")
    return gallery.root
