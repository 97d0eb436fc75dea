"""The benchmark of the dashboard runs from end to end, on next to no work."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("fastapi")


def test_the_list_and_following_are_measured(capsys):
    import dashboard

    figures = dashboard.main(
        ["--runs", "3", "--running", "2", "--seconds", "3", "--every", "1", "--sites", "2", "--classes", "2"]
    )
    assert json.loads(capsys.readouterr().out) == figures
    assert figures["runs"] == 5
    assert figures["list"]["again"] > 0
    assert figures["following"]["received_bytes"] > 500
    assert 0 <= figures["following"]["share"] < 2  # the system counts in hundredths of a second: it may be none
