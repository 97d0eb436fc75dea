"""The command data codes: copies of images at other sites."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "data"))
from public_layouts import picture, save


@pytest.fixture
def sites(tmp_path):
    for name, numbers in (("north", range(10)), ("south", range(7, 17))):
        for number in numbers:
            save(picture(number, number % 2), tmp_path / name / "ab"[number % 2] / f"{name}-{number}.png")
    (tmp_path / "key").write_bytes(bytes(range(32)))
    return tmp_path


def test_copies_at_another_site_are_found_by_codes_that_say_nothing_else(cli, sites):
    out = sites / "north.json"
    assert cli("data", "codes", sites / "north", "--key", sites / "key", "-o", out).code == 0
    document = json.loads(out.read_text())
    assert len(document["codes"]) == 10
    assert document["codes"] == sorted(document["codes"])
    assert "north-" not in out.read_text()
    output = cli("data", "codes", sites / "south", "--key", sites / "key", "--compare", out)
    assert "3 of 10 images here are there as well" in output.out
    (sites / "other").write_bytes(bytes(32))
    output = cli("data", "codes", sites / "south", "--key", sites / "other", "--compare", out)
    assert "0 of 10 images" in output.out


def test_keys_and_files_that_are_none(cli, sites):
    (sites / "short").write_bytes(b"abc")
    output = cli("data", "codes", sites / "north", "--key", sites / "short")
    assert output.code == 2
    assert "fewer than 32" in output.err
    for text in ("{", "[]", json.dumps({"format": 1, "images": {}, "codes": ["../x"]})):
        (sites / "theirs.json").write_text(text)
        output = cli("data", "codes", sites / "north", "--key", sites / "key", "--compare", sites / "theirs.json")
        assert output.code == 3
        assert "theirs.json" in output.err.replace("\n", "")


def test_images_that_were_read_otherwise_are_not_compared(cli, sites):
    out = sites / "north.json"
    cli("data", "codes", sites / "north", "--key", sites / "key", "-o", out, "--size", "32")
    output = cli("data", "codes", sites / "south", "--key", sites / "key", "--compare", out)
    assert output.code == 3
    assert "read otherwise" in output.err
