"""Nothing that identifies a patient leaves the source folder: a run from DICOM and one from volumes, and a search of
everything that they wrote or said for every identifying value of the files."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydicom")
pytest.importorskip("nibabel")

from dicom_corpus import AXIAL, CT, HU, PATIENT, UNITS, image, nifti, stored, with_pixels

FAMILIES = (
    "Wintergreen",
    "Haverstock",
    "Pemberley",
    "Quillfeather",
    "Ashgrove",
    "Thistlewood",
    "Marchbanks",
    "Ormonde",
)


def patient(number: int) -> dict[str, str]:
    own = {
        key: f"{value}{number}{number}7" for key, value in PATIENT.items() if key not in ("StudyTime", "PatientName")
    }
    dates = {"PatientBirthDate": f"1947032{number}", "StudyDate": f"2019081{number}"}
    return own | dates | {"PatientName": f"{FAMILIES[number]}^Rosalind", "StudyTime": f"23591{number}.0042"}


def dicom_folder(root: Path) -> tuple[Path, list[str]]:
    """Eight patients, in folders and files that are named after them, and every word that must not be found."""
    secrets: set[str] = set()
    rows = ["SOPInstanceUID,label"]
    noise = np.random.default_rng(0)
    for number, family in enumerate(FAMILIES):
        for frame in range(4):
            values = noise.integers(900, 1200, (16, 16)).astype(np.uint16)
            dataset = with_pixels(image(CT, "CT", **AXIAL | patient(number)), values, **HU)
            dataset.add_new((0x0009, 0x0010), "LO", f"PRIVATE OF {family}")
            file = root / "dicom" / f"{family.upper()}_ROSALIND" / f"{family}-{frame}.dcm"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(stored(dataset))
            rows.append(f"{dataset.SOPInstanceUID},{'ab'[number % 2]}")
            secrets |= {
                str(dataset[name].value) for name in ("SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")
            }
        secrets |= {*patient(number).values(), family}
    damaged = root / "dicom" / "WINTERGREEN_ROSALIND" / "Wintergreen-broken.dcm"
    damaged.write_bytes(stored(with_pixels(image(CT, "CT", **AXIAL | patient(0)), UNITS, **HU))[:-50])
    (root / "labels.csv").write_text("\n".join(rows))
    return root / "dicom", sorted({*secrets, "Rosalind"})


def nifti_folder(root: Path) -> tuple[Path, list[str]]:
    noise = np.random.default_rng(0)
    for number, family in enumerate(FAMILIES):
        voxels = noise.integers(0, 300, (12, 12, 3)).astype(np.int16)
        for folder, content in (("images", voxels), ("masks", (voxels > 150).astype(np.uint8))):
            file = root / "nifti" / folder / f"{family}_Rosalind.nii"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(nifti(content))
        if number == 0:
            broken = np.full((12, 12, 3), np.nan, np.float32)
            (root / "nifti" / "images" / "Wintergreen_broken.nii").write_bytes(nifti(broken))
            (root / "nifti" / "masks" / "Wintergreen_broken.nii").write_bytes(nifti(broken))
    return root / "nifti", [*FAMILIES, "Rosalind"]


def found(secrets: Iterable[str], folders: Iterable[Path], said: str) -> list[str]:
    """Each secret that is in a file, in a name of a file, or was said."""
    places = {
        str(file): file.read_bytes().lower() for folder in folders for file in folder.rglob("*") if file.is_file()
    }
    assert places
    words = [
        (secret, form.lower())
        for secret in secrets
        for form in {secret, secret.replace("^", " "), secret.replace("^", "_")}
    ]
    hits = [f"{word} in {name}" for word, form in words for name, content in places.items() if form.encode() in content]
    hits += [f"{word} in the name {name}" for word, form in words for name in places if form in Path(name).name.lower()]
    return hits + [f"{word} was said" for word, form in words if form in said.lower()]


@pytest.fixture
def everything(tmp_path, monkeypatch) -> list[Path]:
    """The folders that a run writes to."""
    monkeypatch.setenv("CROSSWARD_CACHE", str(tmp_path / "cache"))
    return [tmp_path / "cache", tmp_path / "runs"]


def settings_of(source: str, tmp_path: Path) -> tuple[dict[str, Any], list[str]]:
    if source == "dicom":
        folder, secrets = dicom_folder(tmp_path / "source")
        own = {"labels": str(tmp_path / "source" / "labels.csv"), "prepare": ["window:brain"], "site": "institution"}
    else:
        folder, secrets = nifti_folder(tmp_path / "source")
        own = {}
    return {"source": source, "path": str(folder), "size": 16} | own, secrets


@pytest.mark.parametrize("source", ["dicom", "nifti"])
def test_no_identifying_value_leaves_the_source(source, tmp_path, config, toml_file, cli, caplog, capfd, everything):
    caplog.set_level(logging.DEBUG)
    data, secrets = settings_of(source, tmp_path)
    net = {"name": "unet", "base": 4, "levels": 2} if source == "nifti" else {}
    sections = {"data": data, "partition": {"kind": "iid", "sites": 2}, "run": {"rounds": 1}, "net": net}
    file = toml_file(config(**sections))
    said = [cli("run", str(file)), cli("data", "inspect", str(file), "--json"), cli("run", str(file))]
    assert [one.code for one in said] == [0, 0, 0], said
    folder = next((tmp_path / "runs").iterdir())
    assert (folder / "quarantine.json").exists()
    pages = tmp_path / "pages"
    pages.mkdir()
    said.append(cli("data", "inspect", str(file), "--picture", pages / "data.html"))
    said += [
        cli("report", folder, "-o", pages / f"{n}.html", *options) for n, options in enumerate(((), ("--images",)))
    ]
    said.append(cli("data", "split", str(file), "-o", pages / "manifest.csv"))
    masks = ["--masks", pages / "masks"] if source == "nifti" else []
    new = [cli("predict", folder, data["path"], *options, *masks) for options in (("-o", pages / "new.csv"), ())]
    assert [one.code for one in said] == [0] * len(said), said
    everything.append(pages)
    heard = "".join(one.out + one.err for one in (*said, *new)) + caplog.text + "".join(capfd.readouterr())
    assert found(secrets, everything, heard) == []


def test_errors_name_no_patient_either(tmp_path, config, toml_file, cli, everything):
    data, secrets = settings_of("dicom", tmp_path)
    for change in (
        {"bad_files": "refuse"},
        {"labels": None, "label": "folder"},
        {"label": "tag:PatientID", "labels": None},
    ):
        section = {key: value for key, value in (data | change).items() if value is not None}
        answer = cli("data", "inspect", str(toml_file(config(data=section))))
        assert answer.code in (2, 3), answer
        assert found(secrets, everything[:1], answer.out + answer.err) == []


@pytest.mark.parametrize("source", ["dicom", "nifti"])
def test_the_doctor_names_no_patient(source, tmp_path, cli, everything):
    data, secrets = settings_of(source, tmp_path)
    folder = Path(data["path"])
    for file in sorted(folder.rglob("*-2.dcm")):
        file.rename(file.with_suffix(".png"))  # named after another format
    for file in sorted(folder.rglob("*-3.dcm")):
        outside = tmp_path / "elsewhere" / file.name
        outside.parent.mkdir(exist_ok=True)
        file.rename(outside)
        file.symlink_to(outside)
    pages = tmp_path / "pages"
    pages.mkdir()
    said = [cli("data", "doctor", folder, "--html", pages / "doctor.html", "--write", pages / "doctor.toml")]
    said.append(cli("data", "doctor", folder, "--json"))
    assert found(secrets, [everything[0], pages], "".join(one.out + one.err for one in said)) == []


def test_folders_of_volumes_that_are_named_after_patients_are_not_repeated(
    tmp_path, config, toml_file, cli, everything
):
    _, secrets = settings_of("nifti", tmp_path)
    for number, family in enumerate(FAMILIES):
        scan = tmp_path / "scans" / f"{family} Rosalind" / f"{number}.nii"
        scan.parent.mkdir(parents=True)
        scan.write_bytes(nifti(np.full((8, 8, 2), number, np.int16)))
    data = {"source": "nifti", "path": str(tmp_path / "scans"), "size": 8}
    page = tmp_path / "pages" / "doctor.html"
    page.parent.mkdir()
    said = [cli("data", "inspect", str(toml_file(config(data=data))))]
    said += [
        cli("data", "doctor", tmp_path / "scans", "--html", page),
        cli("data", "doctor", tmp_path / "scans", "--json"),
    ]
    assert [one.code for one in said] == [3, 3, 3]
    assert found(secrets, [page.parent], "".join(one.out + one.err for one in said)) == []


def test_the_search_finds_what_is_there(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.json").write_text('{"id": "wintergreen rosalind"}')
    (tmp_path / "a" / "Ormonde.txt").write_text("")
    hits = found(["Wintergreen^Rosalind", "Ormonde", "Haverstock"], [tmp_path / "a"], "said Haverstock")
    assert len(hits) == 3
