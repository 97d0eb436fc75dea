"""The benchmark of study tables runs from end to end, on next to no work."""

from __future__ import annotations

import json


def test_the_status_and_the_table_of_a_study_are_measured(capsys):
    import study_table

    figures = study_table.main(
        ["--labels", "2", "--seeds", "2", "--images", "60", "--classes", "3", "--resamples", "100"]
    )
    assert json.loads(capsys.readouterr().out) == figures
    assert (figures["cells"], figures["same"]) == (4, True)
    for when in ("first", "again"):
        assert figures["status"][when]["process"] > 0
    assert figures["again"]["process"] < figures["first"]["process"]
