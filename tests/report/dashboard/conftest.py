"""Runs of a study in a folder, and the dashboard over it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
sys.path.append(str(Path(__file__).parent))
from drawn_runs import Drawn, draw_runs
from open_dashboard import OpenDashboard, opened


@pytest.fixture
def root(tmp_path) -> Path:
    """Two finished runs of a study."""
    draw_runs(tmp_path / "runs" / "blood", Drawn(methods=("local", "fedrep"), seeds=(0,), rounds=3))
    (tmp_path / "runs" / "blood" / "study.json").write_text('{"format": 1, "cells": {}}')
    return tmp_path / "runs"


@pytest.fixture
def dashboard(root) -> Iterator[OpenDashboard]:
    with opened(root) as made:
        yield made
