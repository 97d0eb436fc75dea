"""The programs of benchmarks/ are imported as when they are run: with their own folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session", autouse=True)
def benchmarks() -> Path:
    """The folder; on the path for good, so that worker processes find the modules by their names, too."""
    sys.path.append(str(BENCHMARKS))
    return BENCHMARKS
