"""The benchmark of studies runs from end to end, on next to no work."""

from __future__ import annotations

import json


def test_the_cost_of_the_scheduler_is_measured(capsys):
    import studies

    studies.main(["--cells", "2", "--workers", "1", "--rounds", "1", "--json"])
    measured = json.loads(capsys.readouterr().out)
    assert (measured["cells"], measured["workers"]) == (2, 1)
    assert 0 < measured["own"] < measured["study"]
    assert measured["ratio"] > measured["ratio_without_imports"] > 0
