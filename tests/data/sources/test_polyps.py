"""Polyps by name: the layouts of five sets, their hospitals and sequences, their masks, and what is refused."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crossward.data.archives import open_files
from crossward.data.audit import warnings
from crossward.data.federate import federate
from crossward.data.sources import polyps
from crossward.errors import ConfigError, DataError

torch.set_num_threads(1)
UNTOLD = "the names of {} of {} frames tell no patient: the same may be trained and tested on"
GEN = {  # name of an image -> of its mask
    "data_C1/images_C1/176OLCV1_100H0012.jpg": "data_C1/masks_C1/176OLCV1_100H0012_mask.png",
    "data_C1/images_C1/176OLCV1_100H0002.jpg": "data_C1/masks_C1/176OLCV1_100H0002_mask.png",
    "data_C1/images_C1/100H0050.jpg": "data_C1/masks_C1/100H0050_mask.png",
    "data_C2/images_C2/EndoCV2021_001000.jpg": "data_C2/masks_C2/EndoCV2021_001000_mask.png",
    "data_C3/images_C3/C3_EndoCV2021_00489_.jpg": "data_C3/masks_C3/C3_EndoCV2021_00489_mask.png",
    "data_C4/images_C4/10_endocv2021_positive_499.jpg": "data_C4/masks_C4/10_endocv2021_positive_499_mask.png",
    "data_C4/images_C4/10_endocv2021_negative_7.jpg": "data_C4/masks_C4/10_endocv2021_negative_7_mask.png",
    "data_C5/images_C5/EndoCV2021_C5_50000003.jpg": "data_C5/masks_C5/EndoCV2021_C5_50000003_mask.png",
    "data_C6/images_C6/EndoCV2021_C6_0100001.jpg": "data_C6/masks_C6/EndoCV2021_C6_0100001_mask.png",
}


def lay(top: Path, pairs: dict[str, str]) -> Path:
    """Images of grey 10, 20, …, each with a mask whose right half is white."""
    half = np.zeros((8, 8), dtype=np.uint8)
    half[:, 4:] = 255
    for value, (image, mask) in enumerate(pairs.items(), start=1):
        for path, picture in ((image, Image.new("RGB", (8, 8), (10 * value,) * 3)), (mask, Image.fromarray(half))):
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            picture.save(top / path)
    return top


def numbered(numbers, image: str, mask: str) -> dict[str, str]:
    return {image.format(n): mask.format(n) for n in numbers}


@pytest.fixture
def gen(tmp_path) -> Path:
    return lay(tmp_path / "PolypGen", GEN)


@pytest.fixture
def kvasir(tmp_path) -> Path:
    return lay(tmp_path / "Kvasir-SEG", numbered("abcde", "images/cju{}.jpg", "masks/cju{}.png"))


@pytest.fixture
def read(tmp_path):
    return lambda place, name, **more: polyps.read(place, name=name, cache=tmp_path / "cache", **{"size": 4} | more)


# what is read --------------------------------------------------------------------------------------------------------
def test_polypgen_hospitals_and_what_names_tell_of_patients(gen, read):
    collection, left_out = read(gen, "polypgen")
    assert collection.name == "polypgen"
    assert collection.task == "segmentation"
    assert left_out == []
    assert collection.classes == ("background", "polyp")
    assert collection.ids == (
        "C1/100H0050.jpg",
        "C1/176OLCV1_100H0002.jpg",
        "C1/176OLCV1_100H0012.jpg",
        "C2/EndoCV2021_001000.jpg",
        "C3/C3_EndoCV2021_00489_.jpg",
        "C4/10_endocv2021_negative_7.jpg",
        "C4/10_endocv2021_positive_499.jpg",
        "C5/EndoCV2021_C5_50000003.jpg",
        "C6/EndoCV2021_C6_0100001.jpg",
    )
    assert collection.sites == ("C1", "C1", "C1", "C2", "C3", "C4", "C4", "C5", "C6")
    alone = [collection.ids[row] for row in (0, 3, 4, 7, 8)]
    assert collection.groups == (alone[0], "C1/176OLCV1", "C1/176OLCV1", *alone[1:3], "C4/10", "C4/10", *alone[3:])
    assert collection.targets.tolist() == [[[0, 0, 1, 1]] * 4] * 9
    assert collection.images.shape == (9, 4, 4, 3)
    assert collection.targets.dtype == torch.uint8
    assert collection.images[:, 0, 0, 0].tolist() == [30, 20, 10, 40, 50, 70, 60, 80, 90]
    assert collection.notes == (UNTOLD.format(5, 9),)
    assert UNTOLD.format(5, 9) in warnings(federate(collection, local_split=(1.0, 0.0, 0.0)))
    assert [site.name for site in federate(collection, partition="site").sites] == ["C1", "C2", "C3", "C4", "C5", "C6"]


def test_polypgen_as_it_is_published(gen, read, tmp_path, zip_folder):
    plain, _ = read(gen, "polypgen")
    top = tmp_path / "top" / "PolypGen2021_MultiCenterData_v3"
    shutil.copytree(gen, top)
    extra = ("data_C1/bbox_image_C1/1.jpg", "imagesAll_positive/1.jpg", "sequenceData/positive/seq1/images_seq1/1.jpg")
    for path in extra:
        lay(top, {path: "data_C6/bbox_images_C6/1.png"})
    packed = zip_folder(tmp_path / "top", tmp_path / "packed")
    for place in (top.parent, packed):
        collection, _ = read(place, "polypgen")
        assert collection.ids == plain.ids
        assert collection.groups == plain.groups
        assert collection.hashes == plain.hashes
        assert collection.targets.equal(plain.targets)


@pytest.mark.parametrize(
    ("name", "image", "mask"),
    [
        ("kvasir-seg", "Kvasir-SEG/images/{}.jpg", "Kvasir-SEG/masks/{}.png"),
        ("cvc-clinicdb", "Original/{}.tif", "Ground Truth/{}.tif"),
        ("cvc-clinicdb", "PNG/original/{}.PNG", "PNG/GroundTruth/{}.png"),
        ("cvc-clinicdb", "images/{}.png", "masks/{}.png"),
        ("etis", "ETIS-LaribPolypDB/ETIS-LaribPolypDB/{}.tif", "ETIS-LaribPolypDB/Ground Truth/p{}.tif"),
        ("etis", "ETIS-LaribPolypDB/{}.tif", "GroundTruth/P{}.bmp"),
        ("etis", "images/{}.png", "masks/{}.png"),
        ("etis", "Images/{}.jpg", "Masks/P{}.tif"),
        ("cvc-colondb", "CVC-ColonDB/images/{}.png", "CVC-ColonDB/masks/{}.tif"),
        ("cvc-colondb", "CVC-ColonDB/{}.bmp", "CVC-ColonDB/p{}.bmp"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_every_layout(tmp_path, read, name, image, mask, zipped, zip_folder):
    top = lay(tmp_path / "top", numbered((10, 9, 26), image, mask))
    if image.endswith("B/{}.bmp"):
        lay(top, numbered((9, 10), "CVC-ColonDB/s{}.bmp", "CVC-ColonDB/c{}.bmp"))
    place = zip_folder(top, tmp_path / "set") if zipped else top
    collection, left_out = read(place, name)
    suffix = Path(image).suffix
    assert collection.ids == (f"9{suffix}", f"10{suffix}", f"26{suffix}")
    assert left_out == []
    assert collection.images[:, 0, 0, 0].tolist() == [20, 10, 30]
    assert collection.targets.tolist() == [[[0, 0, 1, 1]] * 4] * 3
    sequences = ("sequence-01", "sequence-01", "sequence-02")
    assert collection.sites is None
    assert collection.groups == (sequences if name == "cvc-clinicdb" else None)
    assert collection.notes == (() if name == "cvc-clinicdb" else (UNTOLD.format(3, 3),))


def test_the_sequences_of_clinicdb():
    listing = [f"{folder}/{n}.png" for n in range(1, 613) for folder in ("Original", "Ground Truth")]
    pairs, alone = polyps.pair_masks(Path("x"), listing, "cvc-clinicdb")
    sizes = Counter(pair.group for pair in pairs)
    assert len(pairs) == 612
    assert alone == []
    assert len(sizes) == 29
    assert [sizes[f"sequence-{n:02d}"] for n in (1, 3, 4, 8, 10, 23, 29)] == [25, 17, 11, 26, 6, 12, 21]
    firsts = [number for number, pair in enumerate(pairs, 1) if number == 1 or pair.group != pairs[number - 2].group]
    assert firsts[:10] == [1, 26, 51, 68, 79, 104, 127, 152, 178, 200]
    assert firsts[-5:] == [504, 529, 547, 572, 592]


def test_options_reach_the_images(kvasir, read):
    assert read(kvasir, "kvasir-seg", channels=1, size=5, fit="crop")[0].images.shape == (5, 5, 5, 1)
    bright, _ = read(kvasir, "kvasir-seg", prepare=("brightness:0.2",))
    assert bright.images.unique().tolist() == [51]
    for wrong in ({"bad_files": "ignore"}, {"name": "kvasir"}):
        with pytest.raises(ConfigError):
            polyps.read(kvasir, **{"name": "kvasir-seg", "cache": kvasir / "cache"} | wrong)


# masks ---------------------------------------------------------------------------------------------------------------
def test_noisy_jpeg_masks_are_told_also_from_the_cache(kvasir, read):
    half = np.zeros((8, 8), dtype=np.uint8)
    half[:, 3:] = 255  # an edge inside of a block of JPEG
    for name in ("cjub", "cjue"):
        (kvasir / "masks" / f"{name}.png").unlink()
        Image.fromarray(half).save(kvasir / "masks" / f"{name}.jpg", quality=50)
    grey = "2 mask(s) hold grey values, as JPEG makes them: thresholded at half of the maximum; "
    expected = (f"{grey}first: masks/cjub.jpg, masks/cjue.jpg", UNTOLD.format(5, 5))
    for _ in range(2):
        collection, _ = read(kvasir, "kvasir-seg", size=8)
        assert collection.notes == expected
        assert collection.targets[1].tolist() == (half // 255).tolist()
    lines = warnings(federate(collection, partition="iid", sites=1, local_split=(1.0, 0.0, 0.0)))
    assert [line for line in lines if line in expected] == list(expected)


def test_a_mask_of_three_classes_is_refused_or_set_aside(kvasir, read):
    three = np.repeat(np.array([0, 128, 255], dtype=np.uint8), 4)[None].repeat(12, 0)
    Image.fromarray(three).save(kvasir / "masks" / "cjub.png")
    Image.new("RGB", (12, 12)).save(kvasir / "images" / "cjub.jpg")
    with pytest.raises(DataError, match="one problem") as error:
        read(kvasir, "kvasir-seg")
    assert error.value.details[0].startswith("images/cjub.jpg: mask masks/cjub.png: has ")
    collection, left_out = read(kvasir, "kvasir-seg", bad_files="quarantine")
    assert len(collection) == 4
    assert len(left_out) == 1


# what is refused -----------------------------------------------------------------------------------------------------
def test_images_and_masks_without_the_other_are_counted_and_named_or_set_aside(kvasir, read, tmp_path):
    for number in range(12):
        shutil.copy(kvasir / "images" / "cjua.jpg", kvasir / "images" / f"lone{number}.jpg")
    (kvasir / "images" / "cjue.jpg").unlink()
    with pytest.raises(DataError, match=r"12 image\(s\) without a mask, 1 mask\(s\) without an image") as error:
        read(kvasir, "kvasir-seg")
    assert error.value.details[0] == "images/lone0.jpg: has no mask"
    assert error.value.details[9:] == ("images/lone9.jpg: has no mask", "… and 3 more images")
    assert not (tmp_path / "cache").exists()
    collection, left_out = read(kvasir, "kvasir-seg", bad_files="quarantine")
    assert len(collection) == 4
    assert len(left_out) == 13
    assert "masks/cjue.png: is a mask without an image" in map(str, left_out)


def test_nothing_fits_together(tmp_path, read):
    with pytest.raises(DataError, match=r"1 image\(s\) without a mask, 1 mask\(s\) without an image"):
        read(lay(tmp_path / "set", {"images/a.png": "masks/b.png"}), "kvasir-seg", bad_files="quarantine")


def test_a_hospital_that_is_not_there(gen, read):
    shutil.rmtree(gen / "data_C3")
    with pytest.raises(DataError, match=r"1 hospital\(s\) without images") as error:
        read(gen, "polypgen")
    assert error.value.details == ("data_C3: is not there",)
    collection, left_out = read(gen, "polypgen", bad_files="quarantine")
    assert sorted(set(collection.sites)) == ["C1", "C2", "C4", "C5", "C6"]
    assert [str(bad) for bad in left_out] == ["data_C3: is not there"]


def test_files_that_cannot_be_used_are_told_together(kvasir, read):
    (kvasir / "images" / "cjua.jpg").write_bytes(b"")
    Image.new("L", (8, 9)).save(kvasir / "masks" / "cjub.png")
    with pytest.raises(DataError, match="2 problems") as error:
        read(kvasir, "kvasir-seg")
    assert error.value.details == (
        "images/cjua.jpg: is empty (0 bytes)",
        "images/cjub.jpg: its mask masks/cjub.png is 8 x 9 pixels, but the image is 8 x 8 pixels",
    )


def test_frames_of_no_known_sequence(tmp_path, read):
    top = lay(tmp_path / "set", numbered(("7", "613", "x"), "Original/{}.png", "Ground Truth/{}.png"))
    reason = "is no frame from 1 to 612, so that its sequence is not known"
    with pytest.raises(DataError) as error:
        read(top, "cvc-clinicdb")
    assert error.value.details == (f"Original/613.png: {reason}", f"Original/x.png: {reason}")
    assert read(top, "cvc-clinicdb", bad_files="quarantine")[0].ids == ("7.png",)


def test_another_layout_and_two_copies_are_refused(kvasir, read, tmp_path):
    with pytest.raises(DataError, match=r"not laid out as PolypGen, with data_C1/images_C1/1\.jpg") as error:
        read(kvasir, "polypgen")
    assert error.value.details == ("found: images/ (5 image(s))", "found: masks/ (5 image(s))")
    shutil.copytree(kvasir, tmp_path / "two" / "old")
    shutil.copytree(kvasir, tmp_path / "two" / "new")
    with pytest.raises(DataError, match="holds Kvasir-SEG, or frames of it, more than once") as error:
        read(tmp_path / "two", "kvasir-seg")
    assert error.value.details == ("in: new/", "in: old/")
    shutil.copy(kvasir / "masks" / "cjua.png", kvasir / "masks" / "CJUA.tif")
    with pytest.raises(DataError, match="more than once") as error:
        read(kvasir, "kvasir-seg")
    assert error.value.details == ("masks/CJUA.tif, masks/cjua.png",)


# where it is ---------------------------------------------------------------------------------------------------------
def test_the_archive_is_found_before_the_folder_in_any_case(tmp_path):
    (tmp_path / "kvasir-seg").mkdir()
    assert polyps.locate(tmp_path, "kvasir-seg") == tmp_path / "kvasir-seg"
    (tmp_path / "Kvasir-SEG.zip").touch()
    assert polyps.locate(tmp_path, "kvasir-seg") == tmp_path / "Kvasir-SEG.zip"
    (tmp_path / "PolypGen2021_MultiCenterData_v3").mkdir()
    assert polyps.locate(tmp_path, "polypgen") == tmp_path / "PolypGen2021_MultiCenterData_v3"


@pytest.mark.parametrize("name", polyps.POLYP_SETS)
def test_a_set_that_is_nowhere(tmp_path, name):
    with pytest.raises(ConfigError, match=r"data\.path is not set, nor is CROSSWARD_DATA"):
        polyps.locate(None, name)
    with pytest.raises(ConfigError) as error:
        polyps.locate(tmp_path, name)
    assert error.value.what == f"{polyps.POLYP_SETS[name].title} is not in {tmp_path}."
    assert f"{tmp_path / polyps.POLYP_SETS[name].title}.zip" in error.value.hint


# the real ones -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["polypgen", "cvc-clinicdb"])
def test_the_real_sets_are_listed(name, real_file):
    archive = real_file(f"{polyps.POLYP_SETS[name].title}.zip")
    with open_files(archive) as files:
        pairs, alone = polyps.pair_masks(archive, files.listing(), name)
    assert alone == []
    if name == "polypgen":
        hospitals = {"C1": 256, "C2": 301, "C3": 457, "C4": 227, "C5": 208, "C6": 88}
        assert Counter(pair.site for pair in pairs) == hospitals
        groups = {site: len({p.group for p in pairs if p.site == site} - {""}) for site in hospitals}
        assert groups == {"C1": 158, "C2": 0, "C3": 0, "C4": 31, "C5": 0, "C6": 0}
    else:
        assert len(pairs) == 612
        assert len({pair.group for pair in pairs}) == 29


def test_some_real_frames(tmp_path, read, real_file):
    archive = real_file("CVC-ClinicDB.zip")
    with open_files(archive) as files:
        for path in [path for path in files.listing() if path.endswith(("/7.png", "/77.png", "/600.png"))]:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(files.read(path))
    collection, left_out = read(tmp_path / "CVC-ClinicDB", "cvc-clinicdb", size=32)
    assert collection.groups == ("sequence-01", "sequence-04", "sequence-29")
    assert left_out == []
    assert 0.01 < collection.targets.float().mean() < 0.5
