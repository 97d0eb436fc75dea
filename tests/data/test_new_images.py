"""What `crossward predict` reads of a folder: what a run with the same [data] section reads of it, by the same rule."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("nibabel")
pytest.importorskip("pydicom")

from dicom_corpus import AXIAL, CAPTURE, CT, DX, HU, image, nifti, stored, with_pixels

import crossward
from crossward.config.reading import config_from
from crossward.data.site_key import site_key
from crossward.runs.result import Result

RNG = np.random.default_rng(3)


def code(path: str) -> str:
    return site_key().code("file", path)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def slice_of(patient: int, **tags: Any) -> bytes:
    values = RNG.integers(900, 1200, (16, 16)).astype(np.uint16)
    return stored(with_pixels(image(CT, "CT", **AXIAL, PatientID=f"P{patient}", **tags), values, **HU))


def clip_of(patient: int, frames: int) -> bytes:
    values = RNG.integers(0, 255, (frames, 16, 16)).astype(np.uint8)
    return stored(with_pixels(image(DX, "DX", PatientID=f"P{patient}", BurnedInAnnotation="NO"), values, frames=frames))


def export(root: Path) -> Path:
    """Two classes of twelve patients as a PACS exports them: without extensions, and called by their UIDs."""
    for patient in range(12):
        for name in (f"IM{patient:06d}", f"1.2.840.113619.2.{patient}"):
            file = root / "ab"[patient % 2] / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(slice_of(patient))
    return root


def volumes(root: Path) -> Path:
    for number in range(8):
        voxels = RNG.integers(0, 300, (6, 8, 10)).astype(np.int16)
        for folder, content in (("images", voxels), ("masks", (voxels > 150).astype(np.uint8))):
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / f"{number}.nii").write_bytes(nifti(content))
    return root


@pytest.fixture
def trained(config) -> Callable[..., Result]:
    def run(data: dict[str, Any], **sections: Any) -> Result:
        settings = config(data=data, partition={"kind": "iid", "sites": 2}, run={"rounds": 1}, **sections)
        return crossward.run(settings)

    return run


def dicom_run(trained, root: Path, **more: Any) -> Result:
    return trained({"source": "dicom", "path": str(root), "size": 16, **more})


def nifti_run(trained, root: Path, **more: Any) -> Result:
    data = {"source": "nifti", "path": str(root), "size": 8, "prepare": ["range:0:300"], **more}
    return trained(data, net={"name": "unet", "base": 4, "levels": 2})


def assert_predicts_what_was_trained_on(result: Result, output: Any) -> None:
    """The rows are the images of the run's own collection, with what the network says of them."""
    collection, _ = config_from(result.config).data.load()
    rows = rows_of(output.out)
    assert [row["image"] for row in rows] == list(collection.ids)
    values = torch.tensor([[float(row[name]) for name in collection.classes] for row in rows])
    torch.testing.assert_close(values, result.deployed().predict(collection.images), atol=2e-6, rtol=0)


def test_dicom_files_without_an_extension(trained, tmp_path, cli):
    root = export(tmp_path / "export")
    (root / "a" / "CLIP").write_bytes(clip_of(20, 3))
    result = dicom_run(trained, root)
    output = cli("predict", result.folder, root)
    assert output.code == 0, output.err
    assert len(rows_of(output.out)) == 27
    assert_predicts_what_was_trained_on(result, output)


def test_the_slices_that_the_run_chose_are_predicted(trained, tmp_path, cli):
    root = export(tmp_path / "export")
    (root / "a" / "CLIP").write_bytes(clip_of(20, 9))
    result = dicom_run(trained, root, slices="every:4")
    output = cli("predict", result.folder, root)
    assert_predicts_what_was_trained_on(result, output)
    assert [row["image"] for row in rows_of(output.out) if row["image"].startswith(code("a/CLIP"))] == [
        f"{code('a/CLIP')}/{frame}" for frame in (0, 4, 8)
    ]


def test_pictures_beside_dicom_are_not_predicted_and_this_is_said(trained, tmp_path, cli):
    root = export(tmp_path / "export")
    result = dicom_run(trained, root)
    (root / "viewer").mkdir()
    Image.fromarray(np.zeros((16, 16), np.uint8)).save(root / "viewer" / "icon.png")
    output = cli("predict", result.folder, root)
    assert (output.code, len(rows_of(output.out))) == (0, 24)
    assert "1 file(s) are not DICOM and were not read" in output.err
    alone = cli("predict", result.folder, root / "viewer")
    assert [row["image"] for row in rows_of(alone.out)] == [f"{root}/viewer/icon.png"]


def test_dicom_files_that_cannot_be_used_are_listed_and_the_others_predicted(trained, tmp_path, cli):
    root = export(tmp_path / "export")
    result = dicom_run(trained, root)
    (root / "a" / "IM000000").write_bytes((root / "a" / "IM000000").read_bytes()[:-50])
    (root / "a" / "empty.dcm").write_bytes(b"")
    output = cli("predict", result.folder, root)
    assert (output.code, len(rows_of(output.out))) == (3, 23)
    assert "2 of 25 images cannot be read; the other 23 are predicted" in output.err
    assert f"{code('a/empty.dcm')}: is named as DICOM files are, but is empty" in output.err


def test_dicom_that_the_run_kept_is_predicted(trained, tmp_path, cli):
    root = tmp_path / "captures"
    for number in range(12):
        file = root / "ab"[number % 2] / f"{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = RNG.integers(0, 255, (16, 16)).astype(np.uint8)
        file.write_bytes(stored(with_pixels(image(CAPTURE, "OT", PatientID=f"P{number}"), pixels)))
    result = dicom_run(trained, root, burned_in="keep")
    output = cli("predict", result.folder, root)
    assert output.code == 0, output.err
    assert_predicts_what_was_trained_on(result, output)


def test_a_dicomdir_names_what_is_predicted(trained, tmp_path, cli):
    from pydicom.dataset import Dataset
    from pydicom.sequence import Sequence
    from pydicom.uid import MediaStorageDirectoryStorage

    root = export(tmp_path / "export")
    result = dicom_run(trained, root)
    record = Dataset()
    record.ReferencedFileID = ["B", "IM000003"]
    index = image(MediaStorageDirectoryStorage)
    index.DirectoryRecordSequence = Sequence([record])
    (root / "DICOMDIR").write_bytes(stored(index))
    output = cli("predict", result.folder, root / "DICOMDIR")
    assert [row["image"] for row in rows_of(output.out)] == [code("b/IM000003")]


def test_files_that_are_named_are_predicted_whatever_the_run_chose_of_a_folder(trained, tmp_path, cli):
    root = export(tmp_path / "export")
    result = dicom_run(trained, root, slices="middle")
    named = [root / "b" / "IM000003", root / "a" / "IM000002"]
    (root / "CLIP").write_bytes(clip_of(20, 9))
    output = cli("predict", result.folder, *named, root / "CLIP")
    assert [row["image"] for row in rows_of(output.out)] == [code("IM000003"), code("IM000002"), f"{code('CLIP')}/4"]


def test_slices_of_volumes_but_not_of_their_masks(trained, tmp_path, cli):
    root = volumes(tmp_path / "volumes")
    result = nifti_run(trained, root, axis="coronal", slices="every:2")
    collection, _ = config_from(result.config).data.load()
    output = cli("predict", result.folder, root, "--masks", tmp_path / "masks")
    assert output.code == 0, output.err
    rows = rows_of(output.out)
    assert [row["image"] for row in rows] == list(collection.ids)
    assert {(row["width"], row["height"]) for row in rows} == {("6", "10")}
    assert len({row["mask"] for row in rows}) == len(rows)
    assert Path(rows[1]["mask"]).name == f"{code('images/0.nii')}-coronal_2.png"
    assert sum(int(row["pixels of foreground"]) for row in rows[:1]) == int(
        (np.asarray(Image.open(rows[0]["mask"])) == 255).sum()
    )
    assert "8 mask(s) beside images were not read" in output.err


def test_of_new_volumes_nobody_knows_which_slices_are_labelled(trained, tmp_path, cli):
    root = volumes(tmp_path / "volumes")
    result = nifti_run(trained, root, slices="labelled")
    named = root / "masks" / "0.nii"
    output = cli("predict", result.folder, named, "--masks", tmp_path / "masks")
    assert [row["image"] for row in rows_of(output.out)] == [f"{code('0.nii')}/axial:{n}" for n in range(10)]


def test_a_network_of_pictures_predicts_dicom_without_an_extension(trained, gallery, tmp_path, cli):
    gallery.rows()
    result = trained({"source": "folder", "path": str(gallery.root), "label": "(train|val|test)", "size": 20})
    new = tmp_path / "new"
    new.mkdir()
    (new / "IM000001").write_bytes(slice_of(1))
    (new / "1.2.840.5").write_bytes(slice_of(2))
    (new / "notes").write_text("no image")
    gallery.image("../new/3.png")
    output = cli("predict", result.folder, new)
    assert output.code == 0, output.err
    assert [row["image"] for row in rows_of(output.out)] == [code("1.2.840.5"), f"{new}/3.png", code("IM000001")]


def test_masks_beside_pictures_are_not_predicted(trained, gallery, tmp_path, cli):
    for number in range(12):
        gallery.image(f"images/{number}.png")
        gallery.mask(f"masks/{number}.png")
    data = {"source": "folder", "path": str(gallery.root), "size": 20}
    result = trained(data, net={"name": "unet", "base": 4, "levels": 2})
    output = cli("predict", result.folder, gallery.root, "--masks", tmp_path / "found")
    assert output.code == 0, output.err
    assert len(rows_of(output.out)) == 12
    assert "12 mask(s) beside images were not read" in output.err


@pytest.mark.parametrize("name", ["x.png", "a\\b.png"])
def test_links_that_lead_out_of_the_folder_are_refused_as_in_a_run(trained, gallery, tmp_path, cli, name):
    gallery.rows()
    result = trained({"source": "folder", "path": str(gallery.root), "label": "(train|val|test)", "size": 20})
    gallery.image("../new/1.png")
    gallery.image("../elsewhere.png")
    (tmp_path / "new" / name).symlink_to(tmp_path / "elsewhere.png")
    output = cli("predict", result.folder, tmp_path / "new")
    assert (output.code, len(rows_of(output.out))) == (3, 1)
    assert "is a link that leads out of its root: copy the file there" in output.err
    assert cli("predict", result.folder, tmp_path / "new" / name).code == 0  # it was named itself
