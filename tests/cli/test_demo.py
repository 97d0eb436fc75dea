"""The command demo, with fewer methods and images."""

from __future__ import annotations

import json
from dataclasses import replace

import crossward
from crossward.cli import demo


def test_the_demo_compares_the_methods(cli, tmp_path, monkeypatch):
    small = {"train": 16, "val": 4, "test": 4, "global_test": 8}
    reduced = [
        replace(
            comparison,
            methods=comparison.methods[:2],
            config=comparison.config | {"data": comparison.config["data"] | small},
        )
        for comparison in demo.COMPARISONS
    ]
    monkeypatch.setattr(demo, "COMPARISONS", reduced)
    output = cli("demo", "--rounds", "1", "--out", tmp_path, "--json")
    *lines, last = map(json.loads, output.out.splitlines())
    assert [line["run"] for line in lines] == ["local", "fedavg", "local", "fedavg", "local", "mh-pflgb"]
    assert {line["round"] for line in lines} == {1}
    assert {name: [row["method"] for row in rows] for name, rows in last["results"].items()} == {
        "blood": ["local", "fedavg"],
        "polyp": ["local", "fedavg"],
        "mixed": ["local", "mh-pflgb"],
    }
    assert last["folder"] == str(tmp_path / "demo-1")
    assert crossward.load(tmp_path / "demo-1" / "polyp" / "local").about["status"] == "finished"
