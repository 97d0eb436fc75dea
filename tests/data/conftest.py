"""Shared by the tests of data: archives of folders, and what a partition must be."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))  # tests import dicom_corpus.py by its name


@pytest.fixture(scope="session")
def zip_folder() -> Callable[[Path, Path], Path]:
    """zip_folder(folder, to) packs what is in the folder as `to`.zip."""
    return lambda folder, to: Path(shutil.make_archive(str(to), "zip", folder))


@pytest.fixture(scope="session")
def is_partition() -> Callable[[list[np.ndarray], int], bool]:
    """Whether the parts hold each of n positions once."""
    return lambda parts, n: sorted(np.concatenate(parts).tolist()) == list(range(n))
