"""The commands methods and nets; and nets --table: what every net and the shared bypass cost."""

from __future__ import annotations

import json

import pytest
import torch

from crossward.comparison.net_costs import BYPASS
from crossward.core.disclosure import covered, uncovered
from crossward.methods import METHODS, method_class
from crossward.nets import NETS
from crossward.plugins import PLUGINS

torch.set_num_threads(1)


@pytest.fixture
def two_nets(monkeypatch):
    """As if there were two nets, for speed."""
    monkeypatch.setattr("crossward.comparison.net_costs.NETS", {name: NETS[name] for name in ("unet", "cnn")})


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_methods(cli):
    output = cli("methods")
    assert output.code == 0
    assert all(name in output.out for name in (*METHODS, *PLUGINS))
    rows = json.loads(cli("methods", "--json").out)
    assert [row["name"] for row in rows] == [*METHODS, *PLUGINS]
    assert [row["kind"] for row in rows] == ["method"] * len(METHODS) + ["plugin"] * len(PLUGINS)


@pytest.mark.parametrize("name", [*METHODS, *PLUGINS])
def test_one_method(cli, name):
    output = cli("methods", name)
    assert output.code == 0
    assert "Options" in output.out
    document = json.loads(cli("methods", name, "--json").out)
    assert document["name"] == name
    assert document["docstring"].splitlines()[0] in output.out.replace("\n", " ") or len(document["title"]) > 70
    assert all(set(option) == {"name", "kind", "default", "meaning"} for option in document["options"])


def test_an_unknown_method_names_the_nearest(cli):
    output = cli("methods", "scafold")
    assert output.code == 2
    assert "Did you mean 'scaffold'?" in output.err


def test_nets(cli):
    rows = {row["name"]: row for row in json.loads(cli("nets", "--json").out)}
    assert set(rows) == set(NETS)
    assert rows["unet"]["options"] == {"base": 16, "levels": 4, "up": "bilinear"}
    assert all(name in cli("nets").out for name in NETS)


def test_without_table_nothing_is_counted(cli):
    for row in json.loads(cli("nets", "--json").out):
        assert set(row) == {"name", "task", "description", "options"}


def test_every_net_has_its_cost(cli):
    rows = json.loads(cli("nets", "--table", "--size", "32", "--json").out)
    expected = [
        (task, name)
        for task in ("classification", "segmentation")
        for name in [*(name for name, net in NETS.items() if net.task == task), BYPASS]
    ]
    assert [(row["task"], row["name"]) for row in rows] == expected
    assert [row["name"] for row in rows if row["refused"]] == []
    assert all(row["parameters"] > 0 for row in rows)
    assert all(row["flops"] > 0 for row in rows)


def test_costs_by_hand(cli, two_nets):
    document = json.loads(cli("nets", "--table", "--size", "28", "--json").out)
    rows = {(row["task"], row["name"]): row for row in document}
    cnn = rows["classification", "cnn"]
    assert cnn["parameters"] == 44556
    # multiply and add: 24*24*6*75 + 8*8*16*150 + 256*120 + 120*84 + 84*8
    assert cnn["flops"] == 2 * (259200 + 153600 + 30720 + 10080 + 672)
    assert [row["classes"] for row in document] == [8, 8, 2, 2]
    lines = words(cli("nets", "--table", "--size", "28").out)
    assert ["cnn", "0.045", "0.001"] in lines
    for (_, name), row in rows.items():
        assert [*name.split(), f"{row['parameters'] / 1e6:.3f}", f"{row['flops'] / 1e9:.3f}"] in lines


def test_each_of_two_sections_ends_with_the_bypass(cli, two_nets):
    lines = words(cli("nets", "--table", "--size", "32", "--channels", "1", "--classes", "4").out)
    expected = ["Classification,", "cnn", "bypass", "Segmentation,", "unet", "bypass"]
    assert [line[0] for line in lines if line and line[0] in expected] == expected
    assert ["Segmentation,", "32", "px,", "1", "channels,", "4", "classes"] in lines
    # 3x3 convolutions 1 -> 16 -> 32 -> 64 with BatchNorm, then 64 -> 128 -> 4
    count = 9 * (16 + 16 * 32 + 32 * 64) + 2 * (16 + 32 + 64) + 64 * 128 + 128 + 128 * 4 + 4
    assert next(line[2] for line in lines if line[:1] == ["bypass"]) == f"{count / 1e6:.3f}"


def test_a_net_that_refuses_the_size_has_a_dash_and_a_footnote(cli, two_nets):
    reason = "The net 'unet' needs images of at least 16 x 16 pixels; these have 15."
    output = cli("nets", "--table", "--size", "15")
    assert output.code == 0
    assert ["unet", "–", "–"] in words(output.out)
    assert f"unet: {reason}" in " ".join(output.out.split())
    rows = {row["name"]: row for row in json.loads(cli("nets", "--table", "--size", "15", "--json").out)}
    assert rows["unet"]["parameters"] is None
    assert rows["unet"]["flops"] is None
    assert rows["unet"]["refused"] == reason
    assert rows[BYPASS]["parameters"] > 0


@pytest.mark.parametrize("name", METHODS)
def test_what_no_robust_rule_protects_is_said_of_every_method(cli, name):
    """From the source, without importing torch; the same as the class declares."""
    method = method_class(name)
    protection = json.loads(cli("methods", name, "--json").out)["protection"]
    assert protection["covered"] == covered(method.discloses)
    assert protection["uncovered"] == list(uncovered(method.discloses))
    words = " ".join(protection["words"])
    assert all(item in words for item in protection["uncovered"] if not method.pooled)


def test_protection_in_words(cli):
    def words(name):
        return " ".join(cli("methods", name).out.split())

    assert "a rule protects model from a minority of hostile ones" in words("fedavg")
    assert "No rule protects prototypes: a class may be known to one site alone" in words("fedproto")
    assert "a rule protects" not in words("fedmd")
    assert "Nothing that one site sends reaches another" in words("local")
    assert "It does not run across hospitals" in words("central")
