"""The benchmark of methods runs from end to end, on next to no work."""

from __future__ import annotations

import json
from pathlib import Path


def test_every_pair_is_measured(tmp_path: Path, capsys):
    import methods

    methods.main(["--smoke", "--json", str(tmp_path / "methods.json")])
    measured = json.loads((tmp_path / "methods.json").read_text())
    assert [comparison["what"] for comparison in measured] == [
        p.what for group in methods.GROUPS.values() for p in group
    ]
    assert all(comparison["ratio"] > 0 for comparison in measured)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(measured) + 1  # and Sinkhorn


def test_one_group_is_measured(capsys, monkeypatch):
    import methods

    monkeypatch.setitem(methods.GROUPS, "fednpr", methods.FEDNPR[:1])  # all of them are measured above
    methods.main(["--smoke", "--only", "fednpr"])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + 1  # and Sinkhorn
