"""The doctor before what is no set of images, or a hostile one: it ends in words, or goes around what is bad."""

from __future__ import annotations

import io
import json
import struct
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "data"))
from public_layouts import picture, save
from wild_layouts import masked


def classes(root: Path) -> Path:
    for label, name in enumerate("ab"):
        for number in range(8):
            save(picture(100 * label + number, label), root / name / f"{number}.png")
    return root


def examined(cli, path: Path) -> dict:
    output = cli("data", "doctor", path, "--size", "16", "--json")
    assert output.code == 0, output.err
    return json.loads(output.out)


def run(cli, tmp_path: Path, path: Path, *settings: str) -> None:
    """The configuration that it writes works."""
    assert cli("data", "doctor", path, "--size", "16", "--write", tmp_path / "found.toml").code == 0
    short = ("run.rounds=1", f"run.out={tmp_path / 'runs'}", *settings)
    ran = cli("run", tmp_path / "found.toml", "-q", *(word for one in short for word in ("--set", one)))
    assert ran.code == 0, ran.err


def test_masks_of_several_classes(cli, tmp_path):
    for number in range(12):
        image, mask = masked(number)
        ids = np.array(mask) // 255
        ids[30:40, 5:20] = 2
        save(image, tmp_path / "set/images" / f"{number}.png")
        save(Image.fromarray(ids.astype(np.uint8)), tmp_path / "set/masks" / f"{number}.png")
    document = examined(cli, tmp_path / "set")
    assert document["images"]["images"] == 12
    assert 'classes = ["background", "class 1", "class 2"]' in document["configuration"]
    run(cli, tmp_path, tmp_path / "set", "net.name=unet", "net.base=4", "net.levels=2")


@pytest.mark.parametrize("labels", [{"0": "air", "1": "liver", "2": "tumour"}, {"air": 0, "liver": 1, "tumour": 2}])
def test_volumes_of_several_classes_are_called_as_their_json_says(cli, tmp_path, labels):
    pytest.importorskip("nibabel")
    from dicom_corpus import nifti

    rng = np.random.default_rng(0)
    for number in range(5):
        voxels = rng.integers(0, 300, (16, 16, 2)).astype(np.int16)
        for folder, content in (("imagesTr", voxels), ("labelsTr", (voxels // 110).astype(np.uint8))):
            (tmp_path / "set" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "set" / folder / f"case{number}.nii").write_bytes(nifti(content))
    (tmp_path / "set/dataset.json").write_text(json.dumps({"labels": labels}))
    assert 'classes = ["air", "liver", "tumour"]' in examined(cli, tmp_path / "set")["configuration"]


def test_arrays_that_claim_more_than_they_are(cli, tmp_path):
    head = io.BytesIO()
    claim = {"descr": "|u1", "fortran_order": False, "shape": (10**6, 1000, 1000)}
    np.lib.format.write_array_header_1_0(head, claim)
    labels = io.BytesIO()
    np.save(labels, np.zeros((4, 1), np.uint8))
    with zipfile.ZipFile(tmp_path / "claim.npz", "w") as archive:
        for split in ("train", "val", "test"):
            archive.writestr(f"{split}_images.npy", head.getvalue() + bytes(1000))
            archive.writestr(f"{split}_labels.npy", labels.getvalue())
    output = cli("data", "doctor", tmp_path / "claim.npz")
    assert output.code == 3
    assert "(1000000, 1000, 1000), which is not what the archive holds" in output.err


def test_names_that_would_take_over_the_terminal(cli, tmp_path):
    folder = classes(tmp_path / "set")
    (folder / "a").rename(folder / "a\x1b[2J\nb[red]")
    output = cli("data", "doctor", folder, "--size", "16", "--write", tmp_path / "found.toml")
    assert output.code == 0, output.err
    assert "\x1b[2J" not in output.out + output.err
    assert r"a\x1b[2J | b[red]" in output.out
    run(cli, tmp_path, folder)


def test_twenty_thousand_by_twenty_thousand_pixels(cli, tmp_path):
    folder = classes(tmp_path / "set")

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    squeezer = zlib.compressobj(9)
    rows = b"".join(squeezer.compress(bytes(2501)) for _ in range(20_000)) + squeezer.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0))
    (folder / "a/huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    document = examined(cli, folder)
    assert document["left_out"] == [
        "a/huge.png: has more pixels than data.max_pixels = 100000000 allows; raise it if the memory allows"
    ]
    assert document["images"]["images"] == 16


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("one.png", None, "is one file, of the format PNG"),
        ("set.tar.gz", b"\x1f\x8b\x08\0", "Unpack it into a folder"),
        ("cut.zip", b"PK\3\4 no", "neither a folder nor a readable .zip archive"),
        ("empty.csv", b"", "has no column that names images"),
        ("binary.csv", b"\0\1\2\xff\xfe" * 50, "has no column that names images"),
        ("rows.csv", b"path,label\n", "has no rows"),
        ("xlsx.csv", b"PK\3\4" + bytes(100), "is a spreadsheet, not text"),
    ],
)
def test_what_is_no_set_of_images(cli, tmp_path, name, content, words):
    if content is None:
        save(picture(1), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content)
    output = cli("data", "doctor", tmp_path / name)
    assert output.code == 3
    assert words in output.err
    assert all(character.isprintable() or character == "\n" for character in output.err)
