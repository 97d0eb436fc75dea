"""What the doctor makes of files: how many bits of a pixel are worth keeping, and files without an extension."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("nibabel")
pytest.importorskip("pydicom")

sys.path.append(str(Path(__file__).parents[1] / "data"))
from dicom_corpus import AXIAL, CT, HU, image, nifti, stored, with_pixels

from crossward.config.reading import read_config

RNG = np.random.default_rng(5)
PROPOSAL = "data.depth = 16"


def pictures(root: Path, draw: Callable[[], np.ndarray]) -> Path:
    for number in range(24):
        file = root / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw()).save(file)
    return root


def slices(root: Path, names: str, **window: int) -> Path:
    for number in range(24):
        values = RNG.integers(0, 3000, (32, 32)).astype(np.uint16)
        file = root / "ab"[number % 2] / names.format(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        tags = AXIAL | {"PatientID": f"P{number}"} | window
        file.write_bytes(stored(with_pixels(image(CT, "CT", **tags), values, **HU)))
    return root


def volumes(root: Path, levels: int) -> Path:
    for number in range(12):
        voxels = RNG.integers(0, levels, (32, 32, 4)).astype(np.int16)
        for folder, content in (("images", voxels), ("masks", (voxels > levels // 2).astype(np.uint8))):
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / f"{number}.nii").write_bytes(nifti(content))
    return root


def twelve_bits() -> np.ndarray:
    return RNG.integers(0, 4096, (32, 32)).astype(np.uint16)


FINE = {
    "pictures of 16 bits": lambda root: pictures(root, lambda: RNG.integers(0, 65536, (32, 32)).astype(np.uint16)),
    "pictures of 12 bits": lambda root: pictures(root, twelve_bits),
    "CT with a wide window": lambda root: slices(root, "{}.dcm", WindowCenter=500, WindowWidth=3000),
    "volumes": lambda root: volumes(root, 3000),
}
COARSE = {
    "8 bits stored in 16": lambda root: pictures(root, lambda: RNG.integers(0, 256, (32, 32)).astype(np.uint16) * 257),
    "pictures of 8 bits": lambda root: pictures(root, lambda: RNG.integers(0, 256, (32, 32)).astype(np.uint8)),
    "colour": lambda root: pictures(root, lambda: RNG.integers(0, 256, (32, 32, 3)).astype(np.uint8)),
    "CT with a window of 80 values": lambda root: slices(root, "{}.dcm", WindowCenter=40, WindowWidth=80),
    "volumes of few values": lambda root: volumes(root, 200),
}


@pytest.mark.parametrize("kind", FINE)
def test_sixteen_bits_are_proposed_where_they_keep_more_than_eight(cli, tmp_path, kind):
    written = tmp_path / "found.toml"
    root = FINE[kind](tmp_path / "set")
    document = json.loads(cli("data", "doctor", root, "--size", "32", "--json", "--write", written).out)
    (finding,) = [one for one in document["findings"] if PROPOSAL in one["deal"]]
    assert "have more than 256 grey levels" in finding["what"]
    kept, _ = read_config(written, ["data.depth=16"]).data.load()  # what is proposed can be read
    assert max(len(np.unique(one.numpy())) for one in kept.images) > 256


@pytest.mark.parametrize("kind", COARSE)
def test_sixteen_bits_are_not_proposed_where_eight_keep_as_much(cli, tmp_path, kind):
    document = json.loads(cli("data", "doctor", COARSE[kind](tmp_path / "set"), "--json").out)
    assert document["works"] is True
    assert not [one for one in document["findings"] if PROPOSAL in one["deal"]]


def test_one_picture_in_colour_and_the_others_in_sixteen_bits(cli, tmp_path):
    """Pillow reads colours with 8 bits: those of 16 would be left out."""
    root = pictures(tmp_path / "set", twelve_bits)
    Image.fromarray(RNG.integers(0, 256, (32, 32, 3)).astype(np.uint8)).save(root / "a" / "photo.png")
    document = json.loads(cli("data", "doctor", root, "--json").out)
    assert not [one for one in document["findings"] if PROPOSAL in one["deal"]]


@pytest.mark.parametrize("names", ["IM{:06d}", "1.2.840.113619.2.{}"])
def test_dicom_without_an_extension(cli, tmp_path, names):
    output = cli("data", "doctor", slices(tmp_path / "export", names), "--json")
    assert output.code == 0, output.err
    document = json.loads(output.out)
    assert document["files"]["formats"] == {"DICOM": 24}
    assert document["images"]["classes"] == {"a": 12, "b": 12}


@pytest.mark.parametrize("name", ["masks/notes.nii", "dataset.json"])
def test_a_link_that_leads_out_of_a_folder_of_volumes_ends_nothing(cli, tmp_path, name):
    root = volumes(tmp_path / "set", 3000)
    for number in range(12):
        voxels = RNG.integers(0, 3, (32, 32, 4)).astype(np.uint8)
        (root / "masks" / f"{number}.nii").write_bytes(nifti(voxels))
    (tmp_path / "elsewhere").write_text("{}")
    (root / name).symlink_to(tmp_path / "elsewhere")
    output = cli("data", "doctor", root, "--json")
    assert output.code == 0, output.err
    assert json.loads(output.out)["images"]["classes"] == ["background", "class 1", "class 2"]
