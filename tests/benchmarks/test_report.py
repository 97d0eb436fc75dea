"""The benchmark of the report runs from end to end, on next to no work."""

from __future__ import annotations

import shutil

import pytest


def test_it_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path))  # the benchmark sets its own, which must not stay
    pytest.importorskip("playwright", reason="pip install playwright")
    import report

    figures = report.main(["--smoke"])
    assert figures["runs"] == 4
    assert 0 < figures["megabytes"] < 2
    assert figures["first"]["process"] > 0
    if shutil.which("chromium"):
        assert 0 < figures["opened"]["load"] <= figures["opened"]["visible"] <= figures["opened"]["all"]
