"""The benchmark of DICOM runs from end to end, on a few small slices."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pydicom")
pytest.importorskip("gdcm")


def test_slices_are_read_and_found_again(capsys, monkeypatch, cache):
    import dicom

    monkeypatch.setenv("CROSSWARD_CACHE", str(cache))  # main sets them for its own folder: put back after the test
    monkeypatch.setenv("CROSSWARD_KEYS", str(cache / "keys"))
    figures = dicom.main(["--slices", "40", "--side", "32", "--size", "16"])
    assert json.loads(capsys.readouterr().out) == figures
    assert figures["images"] == 40
    assert figures["left_out"] == 0
    assert figures["first"]["processor_seconds"] > 0
