"""BreaKHis by name: its layout, patients and magnifications, and what is refused."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from crossward.data.archives import open_files
from crossward.data.audit import warnings
from crossward.data.federate import federate
from crossward.data.sources import breakhis
from crossward.errors import ConfigError, DataError

torch.set_num_threads(1)
SLIDES = {  # slide -> where it lies
    "SOB_B_A_14-22549AB": "benign/SOB/adenosis",
    "SOB_B_A_14-22549G": "benign/SOB/adenosis",
    "SOB_B_F_14-9133": "benign/SOB/fibroadenoma",
    "SOB_B_PT_14-21998AB": "benign/SOB/phyllodes_tumor",
    "SOB_B_TA_14-3411F": "benign/SOB/tubular_adenoma",
    "SOB_M_DC_14-13412": "malignant/SOB/ductal_carcinoma",
    "SOB_M_LC_14-13412": "malignant/SOB/lobular_carcinoma",
    "SOB_M_MC_14-13418DE": "malignant/SOB/mucinous_carcinoma",
    "SOB_M_PC_15-190EF": "malignant/SOB/papillary_carcinoma",
}
HOME = "histology_slides/breast"


def file_of(slide: str, power: str, number: int = 1) -> str:
    stem = "-".join(slide.rsplit("_", 1))
    return f"{HOME}/{SLIDES[slide]}/{slide}/{power}X/{stem}-{power}-{number:03d}.png"


def paint(file: Path, *colour: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (7, 5), colour).save(file)
    return file


@pytest.fixture
def tiny(tmp_path) -> Path:
    """Two images of each slide at each magnification, all different but the first of slide 14-13412."""
    top = tmp_path / breakhis.NAME
    for kind, slide in enumerate(SLIDES):
        for power in breakhis.MAGNIFICATIONS:
            for number in (1, 2):
                shared = slide.endswith("13412") and number == 1
                paint(top / file_of(slide, power, number), 0 if shared else 20 * (kind + 1), int(power) // 2, number)
    return top


@pytest.fixture
def read(tmp_path):
    return lambda place, **more: breakhis.read(place, cache=tmp_path / "cache", **{"size": 4} | more)


# what is read --------------------------------------------------------------------------------------------------------
def test_classes_patients_and_magnifications(tiny, read):
    collection, left_out = read(tiny)
    assert collection.name == "breakhis"
    assert collection.task == "classification"
    assert left_out == []
    assert collection.classes == ("benign", "malignant")
    assert collection.images.shape == (72, 4, 4, 3)
    assert collection.targets.bincount().tolist() == [40, 32]
    assert collection.ids[0] == "SOB_B_A-14-22549AB-100-001.png"
    assert collection.sites is None
    assert collection.splits is None
    assert collection.notes == ()
    patients = Counter(collection.groups)
    assert patients == {
        "14-22549": 16,
        "14-9133": 8,
        "14-21998": 8,
        "14-3411": 8,
        "14-13412": 16,
        "14-13418": 8,
        "15-190": 8,
    }


@pytest.mark.parametrize("power", breakhis.MAGNIFICATIONS)
def test_one_magnification(tiny, read, power):
    collection, _ = read(tiny, magnification=power)
    assert len(collection) == 18
    assert all(f"-{power}-" in name for name in collection.ids)
    assert collection.images[:, 0, 0, 1].unique().tolist() == [int(power) // 2]


def test_subtypes_and_pictures_under_two_of_them(tiny, read):
    collection, _ = read(tiny, classes="subtypes", magnification="400")
    assert collection.classes == tuple(breakhis.CODES)
    assert collection.targets.bincount().tolist() == [4, 2, 2, 2, 2, 2, 2, 2]
    pair = "SOB_M_DC-14-13412-400-001.png = SOB_M_LC-14-13412-400-001.png"
    note = f"1 image(s) are there under two classes; first: {pair}"
    assert collection.notes == (note,)
    assert note in warnings(federate(collection, partition="iid", sites=1))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{"partition": "group", "sites": 2}, {"partition": "iid", "sites": 1}])
def test_no_patient_is_on_two_sides(tiny, read, options, seed):
    collection, _ = read(tiny, classes="subtypes")
    federation = federate(collection, seed=seed, **options)
    sides = [
        {collection.groups[row] for site in federation.sites for row in getattr(site, side).tolist()}
        for side in ("train", "val", "test")
    ]
    assert sum(map(len, sides)) == len(set().union(*sides)) == 7


@pytest.mark.parametrize("wrap", ["", "BreaKHis_v1", "a/b"])
@pytest.mark.parametrize("zipped", [False, True])
def test_however_it_is_packed(tiny, read, tmp_path, wrap, zipped, zip_folder):
    plain, _ = read(tiny)
    shutil.copytree(tiny, tmp_path / "top" / wrap, dirs_exist_ok=True)
    top = tmp_path / "top"
    collection, _ = read(zip_folder(top, tmp_path / "packed") if zipped else top)
    for part in ("ids", "hashes", "groups", "classes"):
        assert getattr(collection, part) == getattr(plain, part)
    assert collection.targets.equal(plain.targets)


@pytest.mark.parametrize("change", [str.lower, str.upper, str.title])
@pytest.mark.parametrize("classes", ["binary", "subtypes"])
def test_names_in_any_case(tiny, read, tmp_path, change, classes):
    plain, _ = read(tiny, classes=classes)
    for file in tiny.rglob("*.png"):
        place = tmp_path / "other" / change(file.relative_to(tiny).as_posix())
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    collection, left_out = read(tmp_path / "other", classes=classes)
    assert collection.classes == plain.classes
    assert collection.hashes == plain.hashes
    assert collection.groups == plain.groups
    assert left_out == []
    assert collection.targets.equal(plain.targets)


def test_options_reach_the_images(tiny, read):
    grey, _ = read(tiny, magnification="40", channels=1, size=5, fit="crop")
    assert grey.images.shape == (18, 5, 5, 1)
    for wrong in ({"magnification": "50"}, {"classes": "three"}, {"bad_files": "ignore"}):
        with pytest.raises(ConfigError):
            read(tiny, **wrong)


# what is refused -----------------------------------------------------------------------------------------------------
def test_paths_that_contradict_themselves_are_told_together_or_set_aside(tiny, read):
    benign = f"{HOME}/benign/SOB/adenosis"
    nowhere = f"{HOME}/benign/SOB/cyst/SOB_B_C_14-4/40X/d.png"
    paths = {
        f"{HOME}/malignant/SOB/adenosis/SOB_B_A_14-1/40X/a.png": "adenosis is not malignant",
        f"{benign}/SOB_B_F_14-2/40X/b.png": "its slide SOB_B_F_14-2 is not named SOB_B_A_<year>-<number>",
        f"{benign}/SOB_B_A_14-3/40X/SOB_B_A-14-3-100-001.png": "its name is not of SOB_B_A_14-3 at 40X",
        nowhere: "is not at <benign or malignant>/SOB/<sub-type>/<slide>/<magnification>X",
    }
    for path in paths:
        paint(tiny / path, 1, 2, 3)
    (tiny / file_of("SOB_B_F_14-9133", "40")).write_bytes(b"")
    paths[file_of("SOB_B_F_14-9133", "40")] = "is empty (0 bytes)"
    with pytest.raises(DataError, match="5 problems") as error:
        read(tiny)
    assert error.value.details == tuple(sorted(f"{path}: {reason}" for path, reason in paths.items()))
    collection, left_out = read(tiny, bad_files="quarantine")
    assert len(collection) == 71
    assert len(left_out) == 5


def test_an_image_in_folders_of_two_cases(tiny, read):
    named = file_of("SOB_B_F_14-9133", "40")
    other = paint(tiny / named.replace("benign/", "Benign/").replace("40X/SOB", "40x/sob"), 1, 2, 3)
    if other.parent.samefile((tiny / named).parent):
        pytest.skip("the disk does not tell cases apart")
    with pytest.raises(DataError, match="holds images more than once") as error:
        read(tiny)
    assert {tiny / path for path in error.value.details} == {tiny / named, other}


def test_classes_that_are_missing_are_told_before_anything_is_decoded(tiny, read, tmp_path):
    shutil.rmtree(tiny / HOME / SLIDES["SOB_B_F_14-9133"])
    shutil.rmtree(tiny / HOME / SLIDES["SOB_M_PC_15-190EF"] / "SOB_M_PC_15-190EF" / "40X")
    assert len(read(tiny)[0]) == 62
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(DataError, match="holds no image of fibroadenoma, papillary_carcinoma at 40X") as error:
        read(tiny, classes="subtypes", magnification="40", bad_files="quarantine")
    assert error.value.details == (
        "found: 16 image(s) at 100X",
        "found: 16 image(s) at 200X",
        "found: 14 image(s) at 40X",
        "found: 16 image(s) at 400X",
    )
    assert not (tmp_path / "cache").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no image of benign, malignant\."):
        read(tmp_path / "empty")


def test_two_copies_are_refused(tiny, read, tmp_path):
    shutil.copytree(tiny, tiny / "copy" / breakhis.NAME)
    with pytest.raises(DataError, match="holds images more than once") as error:
        read(tiny)
    assert len(error.value.details) == 144


# where it is ---------------------------------------------------------------------------------------------------------
def test_the_archive_is_found_before_the_folder(tmp_path):
    (tmp_path / breakhis.NAME).mkdir()
    assert breakhis.locate(tmp_path) == tmp_path / breakhis.NAME
    (tmp_path / f"{breakhis.NAME}.zip").touch()
    assert breakhis.locate(tmp_path) == tmp_path / f"{breakhis.NAME}.zip"


def test_a_set_that_is_nowhere(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path is not set, nor is CROSSWARD_DATA"):
        breakhis.locate(None)
    with pytest.raises(ConfigError) as error:
        breakhis.locate(tmp_path)
    assert error.value.what == f"BreaKHis is not in {tmp_path}."
    assert f"{tmp_path / breakhis.NAME}.zip" in error.value.hint


# the real one --------------------------------------------------------------------------------------------------------
def test_the_real_set_is_listed(real_file):
    archive = real_file(f"{breakhis.NAME}.zip")
    with open_files(archive) as files:
        entries, problems = breakhis.list_images(archive, files.listing(), "400", "subtypes")
    assert len(entries) == 1693
    assert problems == []
    assert Counter(entry.side for entry in entries) == {"benign": 547, "malignant": 1146}
    assert len({entry.slide for entry in entries}) == 82
    assert len({entry.patient for entry in entries}) == 70
    under = {entry.patient: set() for entry in entries}
    for entry in entries:
        under[entry.patient].add(entry.subtype)
    assert {patient: len(kinds) for patient, kinds in under.items() if len(kinds) > 1} == {
        "14-13412": 2,
        "14-21998": 2,
        "14-29960": 2,
    }


def test_some_real_images(tmp_path, read, real_file):
    archive = real_file(f"{breakhis.NAME}.zip")
    with open_files(archive) as files:
        first = {path.split("/")[5]: path for path in reversed(files.listing())}
        for path in first.values():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(files.read(path))
    collection, left_out = read(tmp_path / breakhis.NAME, classes="subtypes", size=16)
    assert sorted(collection.targets.tolist()) == list(range(8))
    assert left_out == []
    assert collection.images.float().std() > 20
