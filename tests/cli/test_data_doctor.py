"""The command data doctor: each public layout runs at the first try with the configuration that it writes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "data"))
from public_layouts import LAYOUTS, other_columns, picture, save


@pytest.mark.parametrize("name", LAYOUTS)
def test_public_layouts_run_with_the_configuration_it_writes(cli, tmp_path, name):
    path = LAYOUTS[name](tmp_path / name)
    written = tmp_path / "found.toml"
    output = cli("data", "doctor", path, "--size", "32", "--write", written)
    assert output.code == 0, output.err
    assert written.read_text() in output.out
    short = ("--set", "run.rounds=1", "--set", f"run.out={tmp_path / 'runs'}")
    run = cli("run", written, "-q", *short)
    assert run.code == 0, run.err
    assert len([*(tmp_path / "runs").glob("*/summary.json")]) == 1


def test_what_it_says_of_copies(cli, tmp_path):
    document = json.loads(cli("data", "doctor", LAYOUTS["duplicates"](tmp_path), "--json").out)
    assert document["works"] is True
    assert document["images"]["splits"] == {"train": 40, "val": 8, "test": 14}
    said = {finding["what"]: finding for finding in document["findings"]}
    copies = said["1 image(s) are copies of others, to the pixel, 2 image(s) on both sides of the split"]
    assert copies["examples"] == ["train/2"]
    assert 'data.duplicates = "drop"' in copies["deal"]
    contradiction = said["2 image(s) are there with two different labels"]
    assert contradiction["examples"] == ["train/0", "test/1"]
    assert 'duplicates = "drop"' in document["configuration"]


def test_the_page_holds_what_was_found_and_no_image(cli, tmp_path):
    page = tmp_path / "doctor.html"
    output = cli("data", "doctor", LAYOUTS["splits"](tmp_path / "set"), "--html", page)
    assert output.code == 0
    text = page.read_text()
    assert "are copies of others, to the pixel" in text
    assert "duplicates = &#34;drop&#34;" in text
    assert "data:image/png" not in text
    assert re.search(r"colours</t[dh]>\s*<td[^>]*>(grey|colour): \d+<", text)  # not a mode of Pillow


def test_many_bad_files_labels_in_two_spellings_and_images_elsewhere(cli, tmp_path):
    table = other_columns(tmp_path / "set")
    rows = table.read_bytes().decode("latin-1").splitlines()
    rows = [row.replace("pictures\\", "D:\\export\\") for row in rows]
    rows[1:4] = [row.replace("benign", "Benign").replace("malignant", "Malignant") for row in rows[1:4]]
    table.write_bytes("\n".join(rows).encode("latin-1"))
    for number in (30, 31, 32):
        (table.parent / "pictures" / f"{number}.png").write_bytes(b"")
    written = tmp_path / "found.toml"
    output = cli("data", "doctor", table, "--size", "16", "--write", written)
    assert output.code == 0, output.err
    text = written.read_text()
    assert f'root = "{table.parent / "pictures"}"' in text
    assert 'prefix = "D:/export"' in text
    assert 'rename = { Benign = "benign", Malignant = "malignant" }' in text
    assert 'bad_files = "quarantine"  # 3 of 40 files cannot be used' in text
    run = cli("run", written, "-q", "--set", "run.rounds=1", "--set", f"run.out={tmp_path / 'runs'}")
    assert run.code == 0, run.err


def test_outliers_of_colour_and_orientation_and_links_are_found(cli, tmp_path):
    lines = ["path,label,site"]
    for number in range(40):
        site = "ab"[number // 20]
        pixels = np.array(picture(number, number % 2)) // 2 + (120 if site == "b" else 0)
        image = Image.fromarray(pixels.astype(np.uint8)).resize((40, 30) if number else (30, 40))
        save(image, tmp_path / "set" / f"{number}.png")
        lines.append(f"{number}.png,{number % 2},{site}")
    save(picture(99, 1), tmp_path / "elsewhere.png")
    (tmp_path / "set/39.png").unlink()
    (tmp_path / "set/39.png").symlink_to(tmp_path / "elsewhere.png")
    (tmp_path / "set/set.csv").write_text("\n".join(lines))
    document = json.loads(cli("data", "doctor", tmp_path / "set", "--json", "--size", "16").out)
    said = [finding["what"] for finding in document["findings"]]
    assert "the colours of site b are far from those of the others" in said
    assert "1 image(s) are portrait, unlike the others" in said
    assert "1 file(s) are links that lead out of the folder: they are not read" in said


@pytest.mark.parametrize("name", ["missing", "empty", "text"])
def test_nothing_to_read_is_said_in_words(cli, tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text/notes.md").write_text("hello")
    output = cli("data", "doctor", tmp_path / name)
    assert output.code == 3
    assert "Traceback" not in output.err
    assert ("There is no" if name == "missing" else "holds no image") in output.err


def test_tables_say_what_was_done_about_copies(cli, tmp_path):
    written = tmp_path / "found.toml"
    assert cli("data", "doctor", LAYOUTS["duplicates"](tmp_path), "--write", written).code == 0
    for method in ("fedavg", "local"):
        short = ("--set", "run.rounds=1", "--set", f"run.out={tmp_path / 'runs'}", "--set", f"method.name={method}")
        assert cli("run", written, "-q", *short).code == 0
    output = cli("compare", *sorted((tmp_path / "runs").iterdir()), "--json")
    assert output.code == 0, output.err
    assert 'data.duplicates = "drop": fedavg, local' in json.loads(output.out)["notes"]


def test_near_leaks_are_noted_kept_and_shown_only_with_images(cli, tmp_path):
    root = LAYOUTS["splits"](tmp_path / "set")
    Image.open(root / "chest_xray/train/NORMAL/IM-0003-0002.jpeg").save(
        root / "chest_xray/test/NORMAL/again.jpeg", quality=30
    )
    written = tmp_path / "found.toml"
    assert cli("data", "doctor", root, "--size", "32", "--write", written).code == 0
    short = ("--set", "run.rounds=1", "--set", f"run.out={tmp_path / 'runs'}")
    assert cli("run", written, "-q", *short).code == 0
    [run] = (tmp_path / "runs").iterdir()
    [pair] = json.loads((run / "near_leaks.json").read_text())["pairs"]
    assert Path(pair["trained"]).name == "IM-0003-0002.jpeg"
    assert (Path(pair["held_out"]).name, pair["part"]) == ("again.jpeg", "test")
    words = "1 pair(s) of almost the same image"
    assert any(words in line for line in json.loads((run / "run.json").read_text())["warnings"])
    pages = {}
    for name, options in (("with", ("--images",)), ("without", ())):
        assert cli("report", run, "-o", tmp_path / f"{name}.html", *options).code == 0
        pages[name] = (tmp_path / f"{name}.html").read_text()
    assert 'id="near-leaks"' in pages["with"]
    assert 'id="near-leaks"' not in pages["without"]
