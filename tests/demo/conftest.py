"""Drawn runs and the browser are those of the report's tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "report"))
from opened_page import browser  # noqa: F401  # a fixture
