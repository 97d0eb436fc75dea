"""The benchmark of hospitals with processes and all, on next to no work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.e2e
def test_a_round_across_hospitals_is_measured():
    command = [sys.executable, str(BENCHMARKS / "hospitals.py"), "--smoke"]
    program = subprocess.run(command, capture_output=True, text=True)
    assert program.returncode == 0, program.stderr
    assert program.stdout.startswith("while nothing happens, the SuperLink takes ")
    assert "tiny cnn, training only: " in program.stdout
