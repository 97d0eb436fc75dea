"""The benchmark of many clients runs from end to end, on next to no work."""

from __future__ import annotations

import json
from pathlib import Path


def test_many_clients_are_measured(tmp_path: Path, capsys):
    import many_clients

    many_clients.main(["--smoke", "--json", str(tmp_path / "many.json")])
    measured = json.loads((tmp_path / "many.json").read_text())
    runs = [(cost["clients"], cost["method"], cost["hashed"]) for cost in measured["costs"]]
    each = [("fedavg", False), ("fedavg", True), ("scaffold", True)]
    assert runs == [(clients, *run) for clients in (25, 50) for run in each]
    assert all(cost["round"] > 0 for cost in measured["costs"])
    assert all(0 < cost["images"] < cost["peak"] for cost in measured["costs"])
    assert {*measured["met"]} == {"start", "memory", "round"}
    assert capsys.readouterr().out.startswith("25 clients, fedavg, first time: start ")
