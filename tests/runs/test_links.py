"""Links that lead out of the folder of a run's images: left out with the reason, or refused, as the doctor says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def linked(tmp_path):
    """A folder of two classes whose last image is a link to a file elsewhere."""
    rng = np.random.default_rng(0)
    for number in range(60):
        file = tmp_path / "set" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file)
    (tmp_path / "set/b/59.png").rename(tmp_path / "elsewhere.png")
    (tmp_path / "set/b/59.png").symlink_to(tmp_path / "elsewhere.png")
    return tmp_path / "set"


def settings(linked, config, **more):
    document = config(partition={"kind": "iid", "sites": 2}, run={"rounds": 1})
    return document | {"data": {"source": "folder", "path": str(linked), "size": 16, **more}}


def test_a_few_links_are_left_out_with_the_reason(linked, config, toml_file, cli):
    output = cli("run", toml_file(settings(linked, config, bad_files="auto")), "-q")
    assert output.code == 0, output.err
    (line,) = json.loads((Path(output.out.strip()) / "quarantine.json").read_text())["left_out"]
    assert line.startswith("b/59.png: is a link that leads out of its root")


def test_links_are_refused_where_bad_files_are(linked, config, toml_file, cli):
    output = cli("run", toml_file(settings(linked, config, bad_files="refuse")), "-q")
    assert output.code == 3
    assert "b/59.png: is a link that leads out of its root: copy the file there" in output.err


def test_the_doctor_says_the_same(linked, tmp_path, cli):
    written = tmp_path / "found.toml"
    output = cli("data", "doctor", linked, "--size", "16", "--write", written, "--json")
    document = json.loads(output.out)
    assert "1 file(s) are links that lead out of the folder: they are not read" in [
        finding["what"] for finding in document["findings"]
    ]
    assert any("b/59.png: is a link that leads out" in line for line in document["left_out"])
    assert cli("data", "inspect", written).code == 0
