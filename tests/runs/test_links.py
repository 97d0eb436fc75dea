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


def test_a_class_of_nothing_but_links_ends_with_the_links_and_what_to_do(linked, config, toml_file, cli):
    """Other bad files once filled the lines that an error has, and the advice was to remove the class."""
    for file in sorted((linked / "a").iterdir())[:25]:
        file.write_bytes(b"")
    for file in sorted((linked / "b").iterdir()):
        if not file.is_symlink():
            file.rename(linked.parent / f"elsewhere-{file.name}")
            file.symlink_to(linked.parent / f"elsewhere-{file.name}")
    output = cli("run", toml_file(settings(linked, config, bad_files="quarantine")), "-q")
    assert output.code == 3
    said = " ".join(output.err.split())
    assert f"{linked}: no image is left of b." in said
    assert "b/1.png: is a link that leads out of its root" in said
    assert f"30 of them are links that lead out of {linked}, and are refused" in said
    assert "copy the files there (cp -rL), or set CROSSWARD_DATA to a folder that holds both" in said
    doctor = " ".join(cli("data", "doctor", linked).err.split())
    assert "b/11.png: is a link that leads out of its root" in doctor
    assert f"30 of them are links that lead out of {linked}, and are refused" in doctor
