"""The benchmark of DP-SGD runs from end to end, on next to no work."""

from __future__ import annotations

import json


def test_both_nets_are_measured(tmp_path, capsys):
    import dp_sgd

    comparisons = dp_sgd.main(["--smoke", "--json", str(tmp_path / "figures.json")])
    assert len(comparisons) == 2
    assert all(comparison.ratio > 0 for comparison in comparisons)
    assert [row["bar"] for row in json.loads((tmp_path / "figures.json").read_text())] == [2.5, 2.5]
    assert "DP-SGD" in capsys.readouterr().out
