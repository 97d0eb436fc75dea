"""Drawn runs and their reports, made once for all tests of the report, and the browser that looks at them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from drawn_runs import Drawn, draw_runs
from opened_page import browser  # noqa: F401  # a fixture

from crossward.report.assembly import make_page
from crossward.report.content import Page
from crossward.report.source import ReportSource, read_report_source

RESAMPLES = 200


@pytest.fixture(scope="session")
def drawn_folder(tmp_path_factory, cache) -> Path:
    """Three methods, three seeds, three hospitals."""
    folder = tmp_path_factory.mktemp("drawn") / "blood"
    draw_runs(folder, Drawn(common=30))
    return folder


@pytest.fixture(scope="session")
def source(drawn_folder) -> ReportSource:
    return read_report_source([drawn_folder], resamples=RESAMPLES)


@pytest.fixture(scope="session")
def page(source) -> Page:
    return make_page(source)
