"""The benchmark of many clients runs from end to end, on next to no work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def many_clients(monkeypatch):
    """The program, of whose runs only the last has a process of its own: to start one takes longer than to run."""
    import many_clients

    alone = many_clients.measure_alone

    def measure(clients, rounds, method, cache, *, hashed):
        if (clients, method) == (50, "scaffold"):
            return alone(clients, rounds, method, cache, hashed=hashed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CROSSWARD_CACHE", cache)
            return many_clients.measure(clients, rounds, method, hashed=hashed)

    monkeypatch.setattr(many_clients, "measure_alone", measure)
    return many_clients


def test_many_clients_are_measured(many_clients, tmp_path: Path, capsys):
    many_clients.main(["--smoke", "--json", str(tmp_path / "many.json")])
    measured = json.loads((tmp_path / "many.json").read_text())
    runs = [(cost["clients"], cost["method"], cost["hashed"]) for cost in measured["costs"]]
    each = [("fedavg", False), ("fedavg", True), ("scaffold", True)]
    assert runs == [(clients, *run) for clients in (25, 50) for run in each]
    assert all(cost["round"] > 0 for cost in measured["costs"])
    assert all(0 < cost["images"] < cost["peak"] for cost in measured["costs"])
    assert {*measured["met"]} == {"start", "memory", "round"}
    assert capsys.readouterr().out.startswith("25 clients, fedavg, first time: start ")
