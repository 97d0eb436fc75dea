"""Every reader that opens archives: names that lead out of them are refused, and a file that unpacks to more than any
image is left out unread."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pydicom")
pytest.importorskip("nibabel")

from dicom_corpus import CT, HU, image, nifti, stored, with_pixels

from crossward.data import archives
from crossward.data.sources import settings_class
from crossward.errors import DataError

READERS = ("folder", "table", "table inside", "dicom", "nifti")


def content(reader: str, number: int) -> bytes:
    values = np.random.default_rng(number).integers(0, 255, (16, 16))
    if reader == "dicom":
        return stored(with_pixels(image(CT, "CT", PatientID=f"P{number}77"), values.astype(np.uint16), **HU))
    if reader == "nifti":
        return nifti(np.stack([values] * 2, -1).astype(np.int16))
    out = BytesIO()
    Image.fromarray(values.astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def packed(folder: Path, reader: str, *more: tuple[str, bytes]) -> dict[str, str]:
    """An archive of two classes with two images each and more files; the settings that read it."""
    suffix = {"dicom": ".dcm", "nifti": ".nii"}.get(reader, ".png")
    names = [f"{label}/{number}{suffix}" for label in "ab" for number in range(2)]
    table = "path,label\n" + "".join(f"{name},{name[0]}\n" for name in (*names, *(name for name, _ in more)))
    file = folder / "set.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, name in enumerate(names):
            archive.writestr(name, content(reader, number))
        for name, data in more:
            archive.writestr(name, data)
        archive.writestr("labels.csv", table)
    if reader == "table inside":
        return {"source": "table", "path": str(file / "labels.csv")}
    if reader == "table":
        (folder / "labels.csv").write_text(table)
        return {"source": "table", "path": str(folder / "labels.csv"), "root": str(file)}
    return {"source": reader, "path": str(file)}


@pytest.mark.parametrize("name", ["../out.png", "/etc/out.png", "C:/out.png"])
@pytest.mark.parametrize("reader", READERS)
def test_names_that_lead_out(reader, name, tmp_path):
    settings = packed(tmp_path, reader, (name, b"x"))
    with pytest.raises(DataError) as refusal:
        settings_class(settings["source"]).model_validate(settings).load()
    assert "cannot be used as it is" in str(refusal.value)
    assert name in str(refusal.value)
    assert not (tmp_path.parent / "out.png").exists()


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_unpacks_to_more_than_any_image(reader, tmp_path, monkeypatch):
    suffix = {"dicom": ".dcm", "nifti": ".nii"}.get(reader, ".png")
    bomb = content(reader, 9) + bytes(1 << 21)
    settings = packed(tmp_path, reader, (f"a/bomb{suffix}", bomb))
    assert Path(tmp_path / "set.zip").stat().st_size < 1 << 16
    monkeypatch.setattr(archives, "LARGEST", 1 << 20)
    loaded = settings_class(settings["source"]).model_validate(settings | {"bad_files": "quarantine"}).load()
    collection, [line] = loaded
    assert len(collection) == (8 if reader == "nifti" else 4)
    assert "claims 2 MiB inside the archive, more than any image" in line
