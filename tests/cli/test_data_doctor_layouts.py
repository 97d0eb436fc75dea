"""The doctor recognises what people really have: its configuration runs at the first try and reads what is there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "data"))
from wild_layouts import PICTURES

try:
    from wild_volumes import VOLUMES
except ImportError:  # without the extra dicom
    VOLUMES = {}

HALVES = {"haemorrhage": 12, "none of these": 12}
FOUND: dict[str, dict[str, Any]] = {  # facts of the images that are usable
    "chest x-ray of kaggle": {
        "classes": {"NORMAL": 22, "PNEUMONIA": 22},
        "splits": {"test": 12, "train": 28, "val": 4},
    },
    "breastmnist of zenodo": {"classes": {"0": 29, "1": 55}, "splits": {"train": 60, "val": 8, "test": 16}},
    "kvasir-seg in splits": {"task": "segmentation", "images": 25, "splits": {"test": 5, "train": 16, "val": 4}},
    "masks below splits": {"task": "segmentation", "images": 19, "splits": {"test": 4, "train": 12, "val": 3}},
    "masks beside images": {"task": "segmentation", "images": 20},
    "pictures named otherwise": {"classes": {"akiec": 15, "nevus": 15}},
    "table of a registry": {"classes": {"Gesund": 18, "Krank": 18}, "patients": 12},
    "tables per split": {
        "classes": {"glaucoma": 17, "healthy": 17},
        "splits": {"train": 20, "val": 6, "test": 8},
    },
    "names without extension": {"classes": {"bkl": 10, "mel": 10, "nv": 10}, "patients": 15},
    "one column per class": {"classes": {"BCC": 10, "MEL": 10, "NV": 10}},
    "classes in file names": {"classes": {"CNV": 9, "DRUSEN": 9, "NORMAL": 9}},
    "classes in words": {"images": 40},
    "two spellings": {"classes": {"benign": 18, "malignant": 17}},
    "folders of hospitals": {
        "classes": {"benign": 24, "malignant": 24},
        "sites": {"Graz": 16, "Linz": 16, "Wien": 16},
    },
    "folders of patients": {"classes": {"0": 48, "1": 48}, "patients": 24},
    "classes before splits": {"classes": {"glioma": 18, "no tumour": 18}, "splits": {"test": 12, "train": 24}},
    "chest x-ray 14": {"task": "multi-label", "images": 40, "patients": 20},
    "zipped classes": {"classes": {"NORMAL": 22, "PNEUMONIA": 22}, "splits": {"test": 12, "train": 28, "val": 4}},
    "zipped table": {"classes": {"bkl": 10, "mel": 10, "nv": 10}, "patients": 15},
    "twelve bits": {"classes": {"fracture": 10, "intact": 10}},
    "patients, studies, series": {"classes": HALVES, "patients": 8},
    "labels by file name": {"classes": {"haemorrhage": 8, "none of these": 8}, "patients": 16},
    "dicom in class folders": {"classes": {"sick": 8, "well": 8}, "patients": 8},
    "zipped dicom": {"classes": {"sick": 8, "well": 8}, "patients": 8},
    "dicomdir": {"classes": {"SICK": 6, "WELL": 6}, "patients": 12},
    "medical decathlon": {"task": "segmentation", "images": 14, "patients": 7},
}
SETTINGS: dict[str, str] = {  # lines that the configuration must have
    "two spellings": 'rename = { Benign = "benign", "Malignant " = "malignant" }',
    "twelve bits": 'prepare = ["range:bits:12"]  # the files of 16 bits hold values up to 3808',
    "folders of hospitals": 'site = "folder"',
    "chest x-ray 14": 'labels = "multi"  # images have several labels each',
    "one column per class": 'one_hot = ["MEL", "NV", "BCC", "UNK"]',
    "breastmnist of zenodo": 'duplicates = "drop"',
    "labels by file name": 'columns = { label = "diagnosis" }',
}


@pytest.mark.parametrize("name", [*PICTURES, *VOLUMES])
def test_what_people_have_runs_with_the_configuration_it_writes(cli, tmp_path, name):
    path = (PICTURES | VOLUMES)[name](tmp_path / "set")
    written = tmp_path / "found.toml"
    output = cli("data", "doctor", path, "--size", "24", "--write", written, "--json")
    assert output.code == 0, output.err
    document = json.loads(output.out)
    facts = document["images"]
    assert {key: facts[key] for key in FOUND[name]} == FOUND[name]
    assert SETTINGS.get(name, "") in written.read_text()
    run = cli("run", written, "-q", "--set", "run.rounds=1", "--set", f"run.out={tmp_path / 'runs'}")
    assert run.code == 0, run.err
    [summary] = (tmp_path / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text())


def test_bad_files_are_listed_by_hospital(cli, tmp_path):
    folder = PICTURES["folders of hospitals"](tmp_path / "set")
    document = json.loads(cli("data", "doctor", folder, "--size", "24", "--json").out)
    [line] = document["left_out"]
    assert line.startswith("Linz/benign/broken.png: ")
    assert line.endswith(" (site Linz)")
    assert "1 of 49 files cannot be used (Linz 1)" in [finding["what"] for finding in document["findings"]]


def test_folders_that_may_be_hospitals_or_classes_are_pointed_out(cli, tmp_path):
    folder = PICTURES["folders of hospitals"](tmp_path / "set")
    for place in folder.iterdir():
        (place / "benign").rename(place / "40X")
        (place / "malignant").rename(place / "100X")
    document = json.loads(cli("data", "doctor", folder, "--size", "24", "--json").out)
    said = {finding["what"]: finding["deal"] for finding in document["findings"]}
    what = "the folders Graz, Linz, Wien each hold the folders 100X, 40X: the outer ones are read as classes"
    assert said[what] == 'data.site = "folder" if they are hospitals'


@pytest.mark.parametrize("names", [("IMG_{n:04d}.png",), ("{n}.png",)])
def test_images_without_classes_end_in_words(cli, tmp_path, names):
    from public_layouts import picture, save

    for number in range(12):
        save(picture(number), tmp_path / "set" / names[0].format(n=number))
    output = cli("data", "doctor", tmp_path / "set", "--size", "24")
    assert output.code == 3
    assert "is not in a class folder" in output.err
    assert "give a table of their names and labels" in output.err


def test_several_files_of_arrays_are_listed(cli, tmp_path):
    (tmp_path / "set").mkdir()
    for name in ("breastmnist", "pathmnist"):
        (tmp_path / "set" / f"{name}.npz").write_bytes(b"PK\5\6" + bytes(18))
    output = cli("data", "doctor", tmp_path / "set")
    assert output.code == 3
    assert "name one of them" in output.err
    assert str(tmp_path / "set" / "pathmnist.npz") in output.err
