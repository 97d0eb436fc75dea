"""crossward nets --table: what every net and the shared bypass cost, as a paper prints it and for programs."""

from __future__ import annotations

import json

import pytest
import torch

from crossward.nets import NETS

torch.set_num_threads(1)
BYPASS = "bypass (mh-pflgb)"


@pytest.fixture
def two(monkeypatch):
    """As if there were two nets, for speed."""
    monkeypatch.setattr("crossward.cli.catalogues.NETS", {name: NETS[name] for name in ("unet", "cnn")})


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_every_net_has_its_price(cli):
    said = cli("nets", "--table", "--size", "32", "--json")
    told = json.loads(said.out)
    assert [(row["task"], row["name"]) for row in told] == [
        (task, name)
        for task in ("classification", "segmentation")
        for name in [*(n for n, entry in NETS.items() if entry.task == task), BYPASS]
    ]
    assert [row["name"] for row in told if row["refused"] or not (row["parameters"] > 0 and row["flops"] > 0)] == []


def test_numbers_by_hand(cli, two):
    told = {(row["task"], row["name"]): row for row in json.loads(cli("nets", "--table", "--size", "28", "--json").out)}
    cnn = told["classification", "cnn"]
    assert cnn["parameters"] == 44556
    # multiply and add: 24*24*6*75 + 8*8*16*150 + 256*120 + 120*84 + 84*8
    assert cnn["flops"] == 2 * (259200 + 153600 + 30720 + 10080 + 672)
    assert [row["classes"] for row in told.values()] == [8, 8, 2, 2]
    shown = words(cli("nets", "--table", "--size", "28").out)
    assert ["cnn", "0.045", "0.001"] in shown
    for (_, name), row in told.items():
        assert [*name.split(), f"{row['parameters'] / 1e6:.3f}", f"{row['flops'] / 1e9:.3f}"] in shown


def test_two_sections_each_ends_with_the_bypass(cli, two):
    shown = words(cli("nets", "--table", "--size", "32", "--channels", "1", "--classes", "4").out)
    told = [
        line[0] for line in shown if line and line[0] in ("Classification,", "Segmentation,", "cnn", "unet", "bypass")
    ]
    assert told == ["Classification,", "cnn", "bypass", "Segmentation,", "unet", "bypass"]
    assert ["Segmentation,", "32", "px,", "1", "channels,", "4", "classes"] in shown
    # 3x3 convolutions 1 -> 16 -> 32 -> 64 with BatchNorm, then 64 -> 128 -> 4
    count = 9 * (16 + 16 * 32 + 32 * 64) + 2 * (16 + 32 + 64) + 64 * 128 + 128 + 128 * 4 + 4
    assert next(line[2] for line in shown if line[:1] == ["bypass"]) == f"{count / 1e6:.3f}"


def test_a_net_that_refuses_the_size_has_a_dash_and_a_footnote(cli, two):
    reason = "The net 'unet' needs images of at least 16 x 16 pixels; these have 15."
    said = cli("nets", "--table", "--size", "15")
    assert said.code == 0
    assert ["unet", "–", "–"] in words(said.out)
    assert f"unet: {reason}" in " ".join(said.out.split())
    told = {row["name"]: row for row in json.loads(cli("nets", "--table", "--size", "15", "--json").out)}
    assert [told["unet"][key] for key in ("parameters", "flops", "refused")] == [None, None, reason]
    assert told[BYPASS]["parameters"] > 0


def test_without_table_nothing_is_counted(cli):
    assert {key for row in json.loads(cli("nets", "--json").out) for key in row} == {
        "name", "task", "description", "options",
    }  # fmt: skip
