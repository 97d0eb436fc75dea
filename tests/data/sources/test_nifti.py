"""Volumes: their slices with masks beside them, in class folders or with a table; what is left out and why."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nibabel")
pytest.importorskip("pydicom")

from dicom_corpus import between, nifti

from crossward.data.collection import Collection
from crossward.data.site_key import site_key
from crossward.data.sources.nifti import NiftiSettings
from crossward.errors import ConfigError, DataError

V = np.random.default_rng(4).integers(-100, 200, (5, 8, 8, 6)).astype(np.int16)
MASK = np.zeros((8, 8, 6), np.uint8)
MASK[2:5, 3:6, 2:4] = 1


def save(file: Path, data: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(data) if file.name.endswith(".gz") else data)
    return file


@pytest.fixture
def load(tmp_path) -> Callable[..., tuple[Collection, list[str]]]:
    """load(axis="coronal") reads tmp_path/volumes."""
    settings = {"source": "nifti", "path": tmp_path / "volumes", "size": 8, "prepare": ["window:brain"]}
    settings["bad_files"] = "quarantine"
    return lambda **more: NiftiSettings.model_validate(settings | more).load()


def code(path: str) -> str:
    return site_key().code("file", path)


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("images/a.nii.gz", "masks/a.nii.gz"),
        ("imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz"),
        ("a.nii", "a_seg.nii"),
        ("p1/ct.nii", "p1/ct_mask.nii.gz"),
        ("images/x/a.nii", "labels/x/a.nii"),
    ],
)
def test_masks_beside_volumes(tmp_path, load, image, mask):
    save(tmp_path / "volumes" / image, nifti(V[0]))
    save(tmp_path / "volumes" / mask, nifti(MASK))
    collection, left_out = load()
    assert left_out == []
    assert collection.task == "segmentation"
    assert collection.classes == ("background", "foreground")
    assert collection.ids == tuple(f"{code(image)}/axial:{n}" for n in range(6))
    assert set(collection.groups) == {code(image)}
    assert collection.images[3, ..., 0].tolist() == between(V[0][::-1, ::-1, 3].T, 0, 80).tolist()
    assert collection.targets[3].tolist() == MASK[::-1, ::-1, 3].T.tolist()
    assert collection.targets[0].sum() == 0


def test_which_slices(tmp_path, load):
    save(tmp_path / "volumes/a.nii", nifti(V[0]))
    save(tmp_path / "volumes/a_mask.nii", nifti(MASK))
    parts = lambda **more: [name.split("/")[1] for name in load(**more)[0].ids]
    assert parts(slices="labelled") == ["axial:2", "axial:3"]
    assert parts(slices="every:4") == ["axial:0", "axial:4"]
    assert parts(slices="middle") == ["axial:3"]
    assert parts(slices="labelled", axis="coronal") == ["coronal:3", "coronal:4", "coronal:5"]
    assert parts(slices="labelled", axis="sagittal") == ["sagittal:2", "sagittal:3", "sagittal:4"]


def test_a_mask_that_is_stored_in_another_orientation(tmp_path, load):
    save(tmp_path / "volumes/a.nii", nifti(V[0]))
    turned = np.diag([-1.0, -1, 1, 1])
    turned[:2, 3] = 7  # the same place in the patient
    save(tmp_path / "volumes/a_mask.nii", nifti(MASK[::-1, ::-1].copy(), turned))
    collection, left_out = load()
    assert left_out == []
    assert collection.targets[3].tolist() == MASK[::-1, ::-1, 3].T.tolist()


def test_masks_that_do_not_fit(tmp_path, load):
    moved = np.eye(4)
    moved[0, 3] = 30
    masks: dict[str, Any] = {
        "small": nifti(MASK[:6]),
        "moved": nifti(MASK, moved),
        "classes": nifti(MASK * 3),
        "fine": nifti(MASK),
    }
    for number, (name, mask) in enumerate(masks.items()):
        save(tmp_path / f"volumes/images/{name}.nii", nifti(V[number]))
        save(tmp_path / f"volumes/masks/{name}.nii", mask)
    save(tmp_path / "volumes/images/alone.nii", nifti(V[4]))
    save(tmp_path / "volumes/masks/lonely.nii", nifti(MASK))
    collection, left_out = load(slices="middle")
    assert collection.ids == (f"{code('images/fine.nii')}/axial:3",)
    reasons = "\n".join(left_out)
    assert f"its mask {code('masks/small.nii')} is 6 x 8 pixels, but the image is 8 x 8 pixels" in reasons
    assert "lies elsewhere in the patient" in reasons
    assert "has values other than the whole numbers from 0 to 1" in reasons
    assert f"{code('images/alone.nii')}: has no mask" in reasons
    assert f"{code('masks/lonely.nii')}: is a mask without an image" in reasons
    assert len(left_out) == 5
    three = load(slices="middle", classes=("none", "a", "b", "c"))[0]
    assert len(three) == 2


def test_classes_by_folder_and_by_table(tmp_path, load):
    for number, name in enumerate(("sick/a", "sick/b", "well/c")):
        save(tmp_path / f"volumes/{name}.nii.gz", nifti(V[number]))
    collection, _ = load(slices="every:3")
    assert collection.task == "classification"
    assert collection.classes == ("sick", "well")
    assert collection.targets.tolist() == [0, 0, 0, 0, 1, 1]
    assert len(set(collection.groups)) == 3
    table = tmp_path / "labels.csv"
    table.write_text("file,label,split\na.nii.gz,x,train\nb,y,test\n")
    collection, left_out = load(slices="middle", labels=table)
    assert collection.classes == ("x", "y")
    assert collection.splits == ("train", "test")
    assert left_out == [f"{code('well/c.nii.gz')}: no row of the table of labels gives it a label"]
    with pytest.raises(ConfigError, match="needs masks"):
        load(slices="labelled")


def test_bad_volumes_are_left_out_and_nothing_is_nothing(tmp_path, load):
    save(tmp_path / "volumes/a/1.nii", nifti(V[0]))
    save(tmp_path / "volumes/b/2.nii", nifti(V[1]))
    broken = V[2].astype(np.float32)
    broken[0, 0, 0] = np.nan
    save(tmp_path / "volumes/b/3.nii", nifti(broken))
    collection, (line,) = load()
    assert len(collection) == 12
    assert line == f"{code('b/3.nii')}: has 1 of 384 voxels that are no numbers (NaN or infinite): replace them"
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no NIfTI file among the 0 files"):
        load(path=tmp_path / "empty")


def test_a_second_reading_reads_no_volume(tmp_path, load, monkeypatch):
    import os

    from crossward.data.sources import nifti as source

    for name in ("a/1.nii", "b/2.nii"):
        file = save(tmp_path / "volumes" / name, nifti(V[0 if name < "b" else 1]))
        os.utime(file, (1e9, 1e9))
    first, _ = load()
    monkeypatch.setattr(source, "open_volume", lambda data: pytest.fail("read again"))
    assert load()[0].hashes == first.hashes
