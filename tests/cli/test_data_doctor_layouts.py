"""The doctor recognises what people really have: its configuration runs at the first try and reads what is there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "data"))
from public_layouts import picture, save
from wild_layouts import PICTURES
from wild_masks import MASKS
from wild_tables import TABLES

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
    "chest x-ray 14": {"task": "multi-label", "images": 40, "patients": 20, "classes": {"Effusion": 20, "Mass": 20}},
    "chexpert": {"task": "multi-label", "images": 40, "splits": {"train": 32, "val": 8}, "patients": 20},
    "isic 2018": {"classes": {"BCC": 12, "MEL": 13, "NV": 13}, "splits": {"train": 24, "val": 6, "test": 8}},
    "histopathologic cancer": {"classes": {"0": 12, "1": 12}},
    "ham10000 twice": {"classes": {"bkl": 8, "mel": 8, "nv": 8}, "patients": 12},
    "studies named after classes": {
        "classes": {"negative": 22, "positive": 22},
        "splits": {"train": 32, "val": 12},
        "patients": 22,
    },
    "boxes of several readers": {
        "task": "multi-label",
        "images": 36,
        "classes": {"Cardiomegaly": 18, "Fibrosis": 9, "Nodule/Mass": 9},
    },
    "boxes and folds": {"images": 36, "classes": {"0": 18, "1": 18}, "splits": {"train": 26, "test": 10}},
    "two tables of boxes": {"images": 24, "classes": {"Lung Opacity": 12, "Normal": 12}, "patients": 24},
    "few volumes": {"images": 24, "patients": 8},
    "export in german": {"classes": {"bösartig": 12, "gutartig": 12}},
    "lists of labels": {"task": "multi-label", "classes": {"cardiomegaly": 8, "effusion": 16, "normal": 8}},
    "zipped classes": {"classes": {"NORMAL": 22, "PNEUMONIA": 22}, "splits": {"test": 12, "train": 28, "val": 4}},
    "zipped table": {"classes": {"bkl": 10, "mel": 10, "nv": 10}, "patients": 15},
    "twelve bits": {"classes": {"fracture": 10, "intact": 10}},
    "montgomery": {"task": "segmentation", "images": 16},
    "shenzhen": {"classes": {"0": 8, "1": 8}},
    "isic 2018 masks": {"task": "segmentation", "images": 16, "splits": {"test": 4, "train": 12}},
    "nuclei": {"task": "segmentation", "images": 12},
    "covid radiography": {"classes": {"COVID": 8, "Normal": 8, "Viral Pneumonia": 8}},
    "slices of patients": {"task": "segmentation", "images": 18, "patients": 6},
    "colon and lung": {"classes": {"colon_aca": 10, "colon_n": 10, "lung_aca": 10, "lung_n": 10}},
    "bids": {"classes": {"control": 16, "patient": 16}, "patients": 8},
    "brats": {"task": "segmentation", "images": 12, "patients": 6},
    "kits": {"task": "segmentation", "images": 12, "patients": 6, "classes": ["background", "class 1", "class 2"]},
    "lits": {"task": "segmentation", "images": 12, "patients": 6},
    "acdc": {"task": "segmentation", "images": 24, "patients": 6},
    "clips": {"classes": {"sick": 15, "well": 15}, "patients": 10},
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
    "bids": 'rename = { Control = "control" }',
    "brats": 'only = "_t1\\\\.nii"',
    "covid radiography": 'masks = "ignore"',
    "chexpert": 'uncertain = "negative"',
    "export in german": 'prefix = "Z:/Radiologie"',
    "histopathologic cancer": 'columns = { path = "id" }',
    "one column per class": 'one_hot = ["MEL", "NV", "BCC", "UNK"]',
    "breastmnist of zenodo": 'duplicates = "drop"',
    "labels by file name": 'columns = { label = "diagnosis" }',
}


@pytest.mark.parametrize("name", [*PICTURES, *TABLES, *MASKS, *VOLUMES])
def test_what_people_have_runs_with_the_configuration_it_writes(cli, tmp_path, name):
    path = (PICTURES | TABLES | MASKS | VOLUMES)[name](tmp_path / "set")
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


def test_a_row_for_each_box_is_one_finding_and_other_tables_are_named(cli, tmp_path):
    pytest.importorskip("pydicom")
    output = cli("data", "doctor", VOLUMES["two tables of boxes"](tmp_path / "set"), "--size", "24", "--json")
    found = {one["what"]: one for one in json.loads(output.out)["findings"]}
    [again] = [what for what in found if "again" in what]
    assert again.startswith("24 row(s) of the table of labels name an image again")
    assert not any("are of no image here" in what for what in found)
    [other] = [what for what in found if "train_labels.csv gives the images labels, too" in what]
    assert "train_labels.csv" in found[other]["deal"]
    assert 'data.columns = { label = "Target" }' in found[other]["deal"]


def test_files_that_are_named_as_volumes_and_are_none_are_listed(cli, tmp_path):
    pytest.importorskip("nibabel")
    output = cli("data", "doctor", VOLUMES["few volumes"](tmp_path / "set"), "--size", "24", "--json")
    reasons = json.loads(output.out)["left_out"]
    assert len(reasons) == 2
    assert all("its content is not NIfTI" in reason for reason in reasons)


def test_all_images_of_one_patient_end_in_words(cli, tmp_path):
    pytest.importorskip("pydicom")
    from dicom_corpus import DX, image, with_pixels
    from wild_volumes import write

    for number in range(12):
        values = np.array(picture(number, number % 2)).astype(np.uint16)
        write(
            with_pixels(image(DX, "DX", PatientID="ANON-1"), values), tmp_path / "set" / "ab"[number % 2] / f"{number}"
        )
    output = cli("data", "doctor", tmp_path / "set", "--size", "24")
    assert output.code == 3
    assert "all images are of one patient" in output.err
    assert "partition.group_aware = false" in output.err


def test_what_is_found_is_said_once_and_what_is_set_is_said(cli, tmp_path):
    output = cli("data", "doctor", PICTURES["pictures named otherwise"](tmp_path / "set"), "--size", "24", "--json")
    found = [one["what"] for one in json.loads(output.out)["findings"]]
    assert sum("extension of another format" in what for what in found) == 1
    output = cli("data", "doctor", PICTURES["breastmnist of zenodo"](tmp_path / "npz"), "--json")
    deals = [one["deal"] for one in json.loads(output.out)["findings"]]
    assert any('data.duplicates = "drop"' in deal and deal.endswith("; it is set") for deal in deals)


def test_images_without_a_row_and_other_columns_of_labels_are_pointed_out(cli, tmp_path):
    folder = TABLES["histopathologic cancer"](tmp_path / "set")
    table = folder / "train_labels.csv"
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([f"{header},target", *(f"{row},{row[-1]}" for row in rows)]))
    document = json.loads(cli("data", "doctor", folder, "--size", "24", "--json").out)
    said = {finding["what"]: finding["deal"] for finding in document["findings"]}
    assert "4 of 28 images have no row in train_labels.csv: they are not read" in said
    what = "the labels are those of the column label; these may be labels, too: target"
    assert said[what] == 'data.columns = { label = "target" } if that is what is to be learnt'


def test_a_table_whose_labels_are_not_known_is_pointed_out(cli, tmp_path):
    folder = TABLES["export in german"](tmp_path / "set")
    table = folder / "liste.csv"
    table.write_bytes(table.read_bytes().replace(b"Befund", b"Ergebnis"))
    output = cli("data", "doctor", folder, "--size", "24")
    assert output.code == 3
    what = 'the table liste.csv names 24 images by its column "Dateipfad", but not which are the labels'
    assert what in " ".join(output.err.split())
    assert "columns of few values: Ergebnis (2 values), Fallnummer (12 values)" in " ".join(output.err.split())
    alone = cli("data", "doctor", table)
    assert alone.code == 3
    assert what in " ".join(alone.err.split())


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("patches/patient_{n:03d}_node_4/patch_{n}_{k}.png", "8 folders patient_000_node_4, patient_001_node_4"),
        ("LIDC-IDRI-{n:04d}/{k}.png", "are numbered as patients or cases are: they are no classes"),
    ],
)
def test_folders_of_patients_are_no_classes(cli, tmp_path, names, words):
    for number in range(8):
        for place in range(3):
            save(picture(10 * number + place), tmp_path / "set" / names.format(n=number, k=place))
    (tmp_path / "set/labels.xlsx").write_bytes(b"PK\3\4" + bytes(50))
    output = cli("data", "doctor", tmp_path / "set", "--size", "16")
    assert output.code == 3
    said = " ".join(output.err.split())
    assert words in said
    assert "1 .xlsx file(s) are not read: save what they say as a CSV of names and labels beside the images" in said
    assert "put the images of each class into a folder" in said


@pytest.mark.skipif(not VOLUMES, reason="needs the extra dicom")
def test_folders_of_volumes_that_are_patients_are_refused_without_their_names(cli, tmp_path):
    from wild_volumes import nifti

    for number in range(6):
        file = tmp_path / "set" / f"{['Wintergreen', 'Ormonde'][number % 2]}_{number}" / "scan.nii"
        file.parent.mkdir(parents=True)
        file.write_bytes(nifti(np.full((8, 8, 2), number, np.int16)))
    output = cli("data", "doctor", tmp_path / "set", "--size", "16")
    assert output.code == 3
    assert "6 folders hold 6 volumes: they are folders of patients, not of classes" in " ".join(output.err.split())
    assert "Wintergreen" not in output.out + output.err


def test_arrays_and_tables_of_other_programs_have_a_way_forward(cli, tmp_path):
    (tmp_path / "set").mkdir()
    for name in ("train_x.h5", "data.parquet"):
        (tmp_path / "set" / name).write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(50))
    output = cli("data", "doctor", tmp_path / "set")
    assert output.code == 3
    for suffix in (".h5", ".parquet"):
        assert f"1 {suffix} file(s) are not read: save their images as PNG" in output.err


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
