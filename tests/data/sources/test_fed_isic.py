"""Fed-ISIC2019 by name: the list, the images of all hospitals or of some, and what is refused."""

from __future__ import annotations

import shutil
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from crossward.data.archives import open_files
from crossward.data.federate import federate
from crossward.data.sources import fed_isic
from crossward.errors import ConfigError, DataError

PUBLISHED = {  # class counts; train and test
    "bcn": ([2857, 4206, 2809, 737, 1138, 124, 111, 431], (9930, 2483)),
    "vidir_molemax": ([24, 3720, 2, 0, 124, 30, 54, 0], (3163, 791)),
    "vidir_modern": ([680, 1832, 211, 21, 475, 51, 82, 11], (2691, 672)),
    "rosendahl": ([342, 803, 296, 109, 490, 30, 3, 186], (1807, 452)),
    "msk4": ([215, 415, 0, 0, 189, 0, 0, 0], (655, 164)),
    "vienna_dias": ([67, 350, 5, 0, 10, 4, 3, 0], (351, 88)),
}
HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"
TINY = (  # image, target, center, fold
    (7, 1, 0, "train"),
    (2, 0, 0, "test"),
    (3, 2, 1, "train"),
    (4, 3, 2, "train"),
    (5, 4, 3, "test"),
    (6, 7, 4, "train"),
    (1, 1, 5, "train"),
    (8, 1, 5, "test"),
)


def line(image: int, target: int, center: int, fold: str) -> str:
    marks = ",".join(str(float(place == target)) for place in range(9))
    return f"ISIC_{image},{marks},{target},{center},{fold},{fold}_{center}"


def text(*lines: str, header: str = HEADER) -> str:
    return "\n".join([header, *lines, ""])


def draw(folder: Path, *numbers: int) -> Path:
    """Images ISIC_n of grey 10 n."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        Image.new("RGB", (6, 4), (10 * number,) * 3).save(folder / f"ISIC_{number}.jpg")
    return folder


@pytest.fixture
def listing(tmp_path) -> Path:
    (tmp_path / "train_test_split").write_text(text(*(line(*row) for row in TINY)))
    return tmp_path / "train_test_split"


@pytest.fixture
def images(tmp_path) -> Path:
    return draw(tmp_path / "ISIC_2019_Training_Input", *range(1, 9))


@pytest.fixture
def read(tmp_path, listing):
    return lambda root, **more: fed_isic.read(root, listing=listing, cache=tmp_path / "cache", **{"size": 4} | more)


# what is read --------------------------------------------------------------------------------------------------------
def test_classes_rows_hospitals_and_split(images, read):
    collection, left_out = read(images)
    assert collection.name == "fed-isic2019"
    assert collection.task == "classification"
    assert left_out == []
    assert collection.classes == ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    assert collection.ids == tuple(f"ISIC_{number}.jpg" for number in range(1, 9))
    assert collection.targets.tolist() == [1, 0, 2, 3, 4, 7, 1, 1]
    hospitals = ("vienna_dias", "bcn", "vidir_molemax", "vidir_modern", "rosendahl", "msk4", "bcn", "vienna_dias")
    assert collection.sites == hospitals
    assert collection.splits == ("train", "test", "train", "train", "test", "train", "train", "test")
    assert collection.groups is None
    assert collection.images.shape == (8, 4, 4, 3)
    assert collection.images.dtype == torch.uint8
    assert collection.images[:, 0, 0, 0].tolist() == [10, 20, 30, 40, 50, 60, 70, 80]


def test_each_hospital_trains_and_tests_as_published(images, read):
    federation = federate(read(images)[0])
    held = {site.name: (site.train.tolist(), site.test.tolist()) for site in federation.sites}
    assert held["bcn"] == ([6], [1])
    assert held["rosendahl"] == ([], [4])
    assert list(held) == sorted(fed_isic.CENTRES)


def test_an_archive_is_read_as_the_folder_is(images, read, tmp_path):
    plain, _ = read(images)
    packed, _ = read(Path(shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, images.name)))
    assert packed.ids == plain.ids
    assert packed.hashes == plain.hashes
    assert packed.splits == plain.splits


def test_options_reach_the_images(images, read):
    assert read(images, channels=1, size=5, fit="crop")[0].images.shape == (8, 5, 5, 1)
    assert read(images, prepare=("brightness",))[0].images.float().std() < read(images)[0].images.float().std()
    with pytest.raises(ConfigError, match="bad_files"):
        read(images, bad_files="ignore")


@pytest.mark.parametrize("bad_files", ["refuse", "quarantine"])
def test_a_copy_of_a_test_image_is_left_out_of_training(images, read, bad_files):
    shutil.copy(images / "ISIC_8.jpg", images / "ISIC_1.jpg")
    shutil.copy(images / "ISIC_3.jpg", images / "ISIC_4.jpg")  # both are trained on, which does no harm
    collection, left_out = read(images, bad_files=bad_files)
    assert [str(bad) for bad in left_out] == ["row 8: ISIC_1: is the picture of ISIC_8, which is tested on"]
    assert collection.ids == tuple(f"ISIC_{number}.jpg" for number in range(2, 9))
    assert collection.images[:, 0, 0, 0].tolist() == [20, 30, 30, 50, 60, 70, 80]
    assert len(federate(collection).sites) == 6


# images that are not there -------------------------------------------------------------------------------------------
def test_absent_images_are_counted_by_hospital_and_named(images, read):
    for number in (7, 2, 3):
        (images / f"ISIC_{number}.jpg").unlink()
    with pytest.raises(DataError, match="3 of the 8 images of the list are not there") as error:
        read(images)
    assert error.value.details == (
        "bcn: 2 of 2",
        "vidir_molemax: 1 of 1",
        "row 3: ISIC_2: its image is not there (bcn)",
        "row 4: ISIC_3: its image is not there (vidir_molemax)",
        "row 2: ISIC_7: its image is not there (bcn)",
    )
    assert 'data.bad_files = "quarantine"' in error.value.hint


def test_a_hospital_without_images_disappears(images, read):
    for number in (7, 2, 3):
        (images / f"ISIC_{number}.jpg").unlink()
    (images / "ISIC_5.jpg").write_bytes(b"")
    collection, left_out = read(images, bad_files="quarantine")
    assert [bad.row for bad in left_out] == [2, 3, 4, 6]
    assert str(left_out[3]) == "row 6: ISIC_5: is empty (0 bytes)"
    assert sorted({*collection.sites}) == ["msk4", "vidir_modern", "vienna_dias"]
    assert collection.classes == fed_isic.CLASSES  # BCC, of which nothing is left, keeps its place
    assert [site.name for site in federate(collection).sites] == ["msk4", "vidir_modern", "vienna_dias"]


@pytest.mark.parametrize("bad_files", ["refuse", "quarantine"])
def test_no_image_at_all_is_refused(read, tmp_path, bad_files):
    with pytest.raises(DataError, match="8 of the 8 images") as error:
        read(draw(tmp_path / "others", 20), bad_files=bad_files)
    assert "quarantine" not in error.value.hint


def test_bad_files_are_refused(images, read):
    (images / "ISIC_5.jpg").write_bytes(b"")
    with pytest.raises(DataError) as error:
        read(images)
    assert error.value.details == ("row 6: ISIC_5: is empty (0 bytes)",)


def test_two_files_of_one_image(images, read, tmp_path):
    draw(tmp_path / "ISIC_2019_Training_Input_preprocessed", 3)
    with pytest.raises(DataError, match=r"holds 1 image\(s\) more than once") as error:
        read(tmp_path)
    assert error.value.details == (
        "ISIC_3: ISIC_2019_Training_Input/ISIC_3.jpg, ISIC_2019_Training_Input_preprocessed/ISIC_3.jpg",
    )


# where it is ---------------------------------------------------------------------------------------------------------
def test_the_images_of_all_hospitals_go_before_those_of_some(listing, tmp_path):
    (tmp_path / "HAM10000_images").mkdir()
    assert fed_isic.locate(tmp_path) == (listing, tmp_path)
    for name in (
        "HAM10000",
        "HAM10000.zip",
        "ISIC_2019_Training_Input_preprocessed",
        "ISIC_2019_Training_Input",
        "ISIC_2019_Training_Input.zip",
    ):
        (tmp_path / name).touch()
        assert fed_isic.locate(tmp_path) == (listing, tmp_path / name)


@pytest.mark.parametrize("name", fed_isic.LISTS)
def test_names_of_the_list(name, tmp_path):
    (tmp_path / "HAM10000.zip").touch()
    (tmp_path / name).touch()
    assert fed_isic.locate(tmp_path) == (tmp_path / name, tmp_path / "HAM10000.zip")


def test_what_is_given_is_not_looked_for(images, listing, tmp_path):
    elsewhere = draw(tmp_path / "elsewhere", 1)
    assert fed_isic.locate(tmp_path, images=elsewhere) == (listing, elsewhere)
    assert fed_isic.locate(None, images=elsewhere) == (listing, elsewhere)  # which is beside it
    assert fed_isic.locate(None, images=tmp_path) == (listing, images)
    assert fed_isic.locate(tmp_path, listing=tmp_path / "mine.csv") == (tmp_path / "mine.csv", images)
    assert fed_isic.locate(None, listing=listing, images=elsewhere) == (listing, elsewhere)


def test_a_set_that_is_nowhere(tmp_path, listing):
    with pytest.raises(ConfigError, match=r"data\.path is not set, nor is CROSSWARD_DATA"):
        fed_isic.locate(None)
    with pytest.raises(ConfigError, match="Fed-ISIC2019 is not in") as error:
        fed_isic.locate(tmp_path)
    assert [detail.partition(":")[0] for detail in error.value.details] == ["the images"]
    listing.unlink()
    with pytest.raises(ConfigError) as error:
        fed_isic.locate(tmp_path)
    assert [detail.partition(":")[0] for detail in error.value.details] == ["the list", "the images"]
    with pytest.raises(DataError, match=r"The list .* cannot be read"):
        fed_isic.read_list(listing)


# the list ------------------------------------------------------------------------------------------------------------
def test_every_row_that_is_wrong_is_told(listing):
    rows = [line(*row) for row in TINY]
    rows[0] = line(7, 1, 6, "train")
    rows[1] = line(2, 0, 0, "val")
    rows[2] = rows[2].replace(",2,1,train", ",3,1,train")
    rows[3] = line(4, 8, 2, "train")
    rows[4] = rows[4].replace("1.0", "0.0")
    rows[5] = rows[5].replace("1.0", "0.5")
    rows[6] = rows[6].replace("0.0", "1.0", 1)
    rows.append(line(8, 1, 5, "test"))
    listing.write_text(text(*rows))
    with pytest.raises(DataError, match=r"is wrong: 8 problem\(s\)") as error:
        fed_isic.read_list(listing)
    assert error.value.details == (
        'row 2: ISIC_7: its center "6" is none of 0 to 5',
        'row 3: ISIC_2: its fold "val" is neither train nor test',
        "row 4: ISIC_3: its target is 3, AK, but the classes marked are BCC",
        'row 5: ISIC_4: its target "8" is none of 0 to 7',
        "row 6: ISIC_5: its target is 4, BKL, but the classes marked are none",
        "row 7: ISIC_6: SCC = '0.5' where 0 or 1 belongs",
        "row 8: ISIC_1: its target is 1, NV, but the classes marked are MEL, NV",
        "rows 9, 10: all name ISIC_8",
    )


def test_a_header_that_is_wrong(listing):
    listing.write_text(text(line(*TINY[0]), header=HEADER.replace("center", "centre")))
    with pytest.raises(DataError, match="The header of") as error:
        fed_isic.read_list(listing)
    assert error.value.details == ('row 1: the column "center" is missing; the nearest is "centre"',)


# the real one --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def real(real_file) -> Path:
    return real_file("fed_isic2019_train_test_split.csv")


def test_the_real_list(real):
    entries = fed_isic.read_list(real)
    assert len(entries) == 23247
    for centre, (classes, sides) in PUBLISHED.items():
        mine = [entry for entry in entries if entry.centre == centre]
        held = Counter(entry.label for entry in mine)
        assert [held[label] for label in range(8)] == classes
        assert Counter(entry.side for entry in mine) == dict(zip(fed_isic.SIDES, sides, strict=True))


@pytest.fixture(scope="module")
def ham(real_file) -> Path:
    return real_file("HAM10000.zip")


def test_ham10000_holds_every_image_of_four_hospitals(real, ham, tmp_path):
    with pytest.raises(DataError, match="13232 of the 23247 images") as error:
        fed_isic.read(ham, listing=real, cache=tmp_path)
    assert error.value.details[:2] == ("bcn: 12413 of 12413", "msk4: 819 of 819")
    assert error.value.details[2].endswith("(msk4)")
    assert error.value.details[12:] == ("… and 13222 more images",)


def test_real_images_of_four_hospitals(real, ham, tmp_path):
    mine = [entry for entry in fed_isic.read_list(real) if entry.centre not in ("bcn", "msk4")]
    some = [entry for entry in mine if entry.centre == "vienna_dias"] + mine[:200]
    with zipfile.ZipFile(ham) as whole, zipfile.ZipFile(tmp_path / "some.zip", "w") as part:
        for path in {f"HAM10000_images/{entry.image}.jpg" for entry in some}:
            part.writestr(path, whole.read(path))
    options = {"listing": real, "size": 8, "bad_files": "quarantine", "cache": tmp_path / "cache"}
    collection, left_out = fed_isic.read(tmp_path / "some.zip", **options)
    assert len(collection) + len(left_out) == 23247
    assert left_out[-1].where == "ISIC_0029938"
    assert left_out[-1].reason == "is the picture of ISIC_0024777, which is tested on"
    assert collection.images.float().std() > 20
    federation = federate(collection)
    held = {site.name: (len(site.train), len(site.test)) for site in federation.sites}
    assert list(held) == ["rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias"]
    assert held["vienna_dias"] == (350, 88)  # 351 were published


def test_the_published_split_has_696_lesions_on_both_sides(real, ham):
    with open_files(ham) as files:
        lesions = fed_isic.read_lesions(files, real.parent)
    entries = fed_isic.read_list(real)
    assert len(fed_isic.shared_lesions(entries, lesions)) == 696


def test_tested_lesions_are_left_out_of_training_unless_the_published_split_is_asked_for(real, ham, tmp_path):
    with open_files(ham) as files:
        lesions = fed_isic.read_lesions(files, real.parent)
    there = [entry for entry in fed_isic.read_list(real) if entry.image in lesions]
    shared = sorted(fed_isic.shared_lesions(there, lesions))[:10]
    some = [entry for entry in there if lesions[entry.image] in shared] + there[:60]
    with zipfile.ZipFile(ham) as whole, zipfile.ZipFile(tmp_path / "some.zip", "w") as part:
        table = next(name for name in whole.namelist() if name.endswith(fed_isic.ham10000.TABLES))
        for path in {table, *(f"HAM10000_images/{entry.image}.jpg" for entry in some)}:
            part.writestr(path, whole.read(path))
    options = {"listing": real, "size": 8, "bad_files": "quarantine", "cache": tmp_path / "cache"}
    repaired, left_out = fed_isic.read(tmp_path / "some.zip", **options)
    published, _ = fed_isic.read(tmp_path / "some.zip", **options, split="published")
    lesion_of = dict(zip(repaired.ids, repaired.groups, strict=True))
    sides = {
        side: {lesion_of[i] for i, s in zip(repaired.ids, repaired.splits, strict=True) if s == side}
        for side in ("train", "test")
    }
    assert not sides["train"] & sides["test"]
    dropped = [bad for bad in left_out if "lesion that is tested on" in bad.reason]
    assert len(dropped) == len(published) - len(repaired) >= 10
    assert {*published.ids} > {*repaired.ids}
    assert published.groups is None
    assert any(note.startswith('split = "published": ') for note in published.notes)
    federate(repaired)
