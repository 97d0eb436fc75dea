"""The command audit: what it prints, and what it refuses."""

from __future__ import annotations

import json

from typer.testing import CliRunner

import crossward
from crossward.audits.catalogue import ATTACKS
from crossward.cli.main import app
from crossward.errors import ConfigError


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["audit", *arguments])


def test_the_list_names_every_attack_with_its_cost():
    shown = invoke("--list").output
    for name, entry in ATTACKS.items():
        assert name in shown
        assert entry.title in shown
    assert shown.count("costs:") == len(ATTACKS)
    assert [each["attack"] for each in json.loads(invoke("--list", "--json").output)] == list(ATTACKS)


def test_what_it_refuses():
    assert isinstance(invoke().exception, ConfigError)
    assert "--canary-kind 'birds'" in str(invoke("x", "--canary-kind", "birds").exception)


def test_a_line_for_each_attack_and_a_file(tmp_path):
    result = crossward.run(
        {
            "run": {"rounds": 1, "out": str(tmp_path), "name": "toy"},
            "data": {"source": "phantom", "sites": 2, "train": 30, "val": 12, "test": 12, "size": 24},
            "net": {"name": "cnn"},
            "engine": {"device": "cpu"},
        }
    )
    shown = invoke(str(result.folder), "--attack", "membership", "--attack", "canary")
    assert shown.exit_code == 0
    text = " ".join(shown.output.split())
    assert "Was this image trained on? An attacker who has the network" in text
    assert "Canaries not measured: the run must be repeated for it" in text
    stored = json.loads((result.folder / "audit.json").read_text())
    assert [each["status"] for each in stored["attacks"]] == ["measured", "not measured"]
