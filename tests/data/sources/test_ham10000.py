"""HAM10000 by name: where it is looked for, its layouts, and what is refused."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from crossward.data.archives import open_files
from crossward.data.federate import federate
from crossward.data.sources import ham10000
from crossward.errors import ConfigError, DataError

HEADER = "lesion_id,image_id,dx,dx_type,age,sex,localization,dataset"
ROWS = (  # not in the order of the images; L1 was imaged at two hospitals
    "L1,ISIC_2,nv,histo,80.0,male,scalp,vidir_modern",
    "L1,ISIC_1,nv,histo,80.0,male,scalp,vidir_molemax",
    "L2,ISIC_8,akiec,histo,,female,,rosendahl",
    "L3,ISIC_3,bcc,consensus,45.0,male,back,rosendahl",
    "L4,ISIC_4,bkl,histo,45.0,male,back,vienna_dias",
    "L5,ISIC_5,df,follow_up,45.0,male,back,vienna_dias",
    "L6,ISIC_6,mel,histo,45.0,male,back,rosendahl",
    "L7,ISIC_7,vasc,histo,45.0,male,back,vidir_modern",
)


def text(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows, ""])


def lay(top: Path, first: str, second: str, table: str = "HAM10000_metadata.csv", content: str = text(*ROWS)) -> Path:
    """The eight images, ISIC_n of grey 10 n, the first five in one folder and the others in another."""
    for number in range(1, 9):
        folder = top / (first if number < 6 else second)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 4), (10 * number,) * 3).save(folder / f"ISIC_{number}.jpg")
    (top / table).write_text(content)
    return top


@pytest.fixture
def tiny(tmp_path) -> Path:
    return lay(tmp_path / "HAM10000", "HAM10000_images_part_1", "HAM10000_images_part_2")


@pytest.fixture
def read(tmp_path):
    return lambda root, **more: ham10000.read(root, cache=tmp_path / "cache", **{"size": 4} | more)


# what is read --------------------------------------------------------------------------------------------------------
def test_classes_rows_lesions_and_hospitals(tiny, read):
    collection, left_out = read(tiny)
    assert collection.name == "ham10000"
    assert collection.task == "classification"
    assert left_out == []
    assert collection.classes == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    assert collection.ids == tuple(f"ISIC_{number}.jpg" for number in range(1, 9))
    assert collection.targets.tolist() == [5, 5, 1, 2, 3, 4, 6, 0]
    assert collection.groups == ("L1", "L1", "L3", "L4", "L5", "L6", "L7", "L2")
    assert collection.sites[:4] == ("vidir_molemax", "vidir_modern", "rosendahl", "vienna_dias")
    assert collection.splits is None
    assert collection.images.shape == (8, 4, 4, 3)
    assert collection.images.dtype == torch.uint8
    assert collection.images[:, 0, 0, 0].tolist() == [10, 20, 30, 40, 50, 60, 70, 80]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("wrap", "folders", "table"),
    [
        ("", ("HAM10000_images", "HAM10000_images"), "HAM10000_metadata"),
        ("", ("", ""), "HAM10000_metadata.tab"),
        ("HAM10000", ("HAM10000_images_part_1", "HAM10000_images_part_2"), "HAM10000_metadata.csv"),
    ],
)
def test_however_it_is_packed(tiny, read, tmp_path, wrap, folders, table, zipped, zip_folder):
    plain, _ = read(tiny)
    rows = text(*reversed(ROWS))  # nor does the order of the table matter
    if table.endswith(".tab"):
        rows = "\n".join("\t".join(f'"{cell}"' for cell in line.split(",")) for line in rows.splitlines())
    lay(tmp_path / "top" / wrap, *folders, table=table, content=rows)
    top = tmp_path / "top"
    collection, _ = read(zip_folder(top, tmp_path / "HAM") if zipped else top)
    for part in ("name", "ids", "hashes", "groups", "sites", "splits", "classes"):
        assert getattr(collection, part) == getattr(plain, part)
    assert collection.targets.equal(plain.targets)


def test_a_table_without_hospitals_is_read_without_them(tiny, read):
    lines = text(*ROWS).splitlines()
    (tiny / "HAM10000_metadata.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines))
    collection, _ = read(tiny)
    assert collection.sites is None
    assert len(collection.groups) == 8


def test_options_reach_the_images(tiny, read):
    assert read(tiny, channels=1, size=5, fit="crop")[0].images.shape == (8, 5, 5, 1)
    assert read(tiny, prepare=("brightness",))[0].images.float().std() < read(tiny)[0].images.float().std()
    with pytest.raises(ConfigError, match="bad_files"):
        read(tiny, bad_files="ignore")


def test_copies_outside_of_the_official_folders_do_not_matter(tiny, read):
    shutil.copytree(tiny / "HAM10000_images_part_1", tiny / "ham10000_images_part_1")
    assert read(tiny)[0].images[:, 0, 0, 0].tolist() == [10, 20, 30, 40, 50, 60, 70, 80]


def test_a_lesion_at_two_hospitals_is_trained_on_at_both(tiny, read):
    federation = federate(read(tiny)[0], partition="site")
    trained = {site.name: [federation.collection.groups[row] for row in site.train] for site in federation.sites}
    assert list(trained) == ["rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias"]
    assert "L1" in trained["vidir_modern"]
    assert trained["vidir_molemax"] == ["L1"]


# where it is ---------------------------------------------------------------------------------------------------------
def test_the_archive_is_found_before_the_folder_and_the_folder_before_loose_files(tmp_path):
    (tmp_path / "HAM10000_metadata").touch()
    assert ham10000.locate(tmp_path) == tmp_path
    (tmp_path / "HAM10000").mkdir()
    assert ham10000.locate(tmp_path) == tmp_path / "HAM10000"
    (tmp_path / "HAM10000.zip").touch()
    assert ham10000.locate(tmp_path) == tmp_path / "HAM10000.zip"


def test_a_set_that_is_nowhere(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path is not set, nor is CROSSWARD_DATA"):
        ham10000.locate(None)
    with pytest.raises(ConfigError) as error:
        ham10000.locate(tmp_path)
    assert error.value.what == f"HAM10000 is not in {tmp_path}."
    assert f"{tmp_path / 'HAM10000'}.zip" in error.value.hint


# what is refused -----------------------------------------------------------------------------------------------------
def test_no_table_and_two_tables(tiny, read, tmp_path):
    shutil.copy(tiny / "HAM10000_metadata.csv", tiny / "HAM10000_metadata")
    with pytest.raises(DataError, match="holds 2 tables HAM10000_metadata") as error:
        read(tiny)
    assert error.value.details == ("HAM10000_metadata", "HAM10000_metadata.csv")
    (tiny / "HAM10000_metadata").unlink()
    (tiny / "HAM10000_metadata.csv").rename(tiny / "labels.csv")
    with pytest.raises(DataError, match="holds no table HAM10000_metadata") as error:
        read(tiny)
    assert ham10000.WHERE in error.value.hint
    assert not (tmp_path / "cache").exists()


def test_a_header_that_is_wrong(tiny, read):
    header = HEADER.replace("lesion_id", "lesion").replace("dataset", "Dataset")
    (tiny / "HAM10000_metadata.csv").write_text(text(*ROWS, header=header))
    with pytest.raises(DataError, match=r"The header of .*HAM10000_metadata\.csv is wrong") as error:
        read(tiny, bad_files="quarantine")
    assert error.value.details == (
        'row 1: the column "lesion_id" is missing; the nearest is "lesion"',
        'row 1: the column "dataset" is missing; the nearest is "Dataset"',
    )
    (tiny / "HAM10000_metadata.csv").write_text(text(*ROWS, header=HEADER.replace("dx_type", "dx")))
    with pytest.raises(DataError) as error:
        read(tiny)
    assert error.value.details == ('row 1: the column "dx" is there 2 times',)


def test_a_table_that_is_none(tiny, read):
    table = tiny / "HAM10000_metadata.csv"
    table.write_text(text(ROWS[0], "L9,ISIC_9,nv", "", "L9"))
    with pytest.raises(DataError, match=r"has 2 row\(s\) that do not fit") as error:
        read(tiny)
    assert error.value.details == ("row 3: has 3 cells for 8 columns", "row 5: has 1 cells for 8 columns")
    table.write_text(text())
    with pytest.raises(DataError, match="has no rows"):
        read(tiny)
    for content in (b"\xff\xfe\x00", b'lesion_id,"image_id'):
        table.write_bytes(content)
        with pytest.raises(DataError, match="is not a table in UTF-8 text"):
            read(tiny)
    table.write_bytes(b"")
    with pytest.raises(DataError, match="header"):
        read(tiny)


def test_rows_that_are_wrong_are_told_together_or_set_aside(tiny, read):
    wrong = ("L9,ISIC_9,nevus,,,,,rosendahl", ",ISIC_10,nv,,,,,graz")
    (tiny / "HAM10000_metadata.csv").write_text(text(*ROWS, *wrong))
    (tiny / "HAM10000_images_part_1" / "ISIC_1.jpg").write_bytes(b"")
    known = ", ".join(ham10000.CLASSES)
    hospitals = ", ".join(ham10000.HOSPITALS)
    lines = (
        "row 3: ISIC_1: is empty (0 bytes)",
        f'row 10: ISIC_9: its dx "nevus" is none of {known}',
        f'row 11: ISIC_10: its dataset "graz" is none of {hospitals}',
        "row 11: ISIC_10: its lesion_id is empty",
    )
    with pytest.raises(DataError, match="4 problems") as error:
        read(tiny)
    assert error.value.details == lines
    collection, left_out = read(tiny, bad_files="quarantine")
    assert tuple(map(str, left_out)) == lines
    assert collection.ids == tuple(f"ISIC_{number}.jpg" for number in range(2, 9))


def test_absent_images_are_counted_and_named_or_set_aside(tiny, read):
    more = [f"M{number},ISIC_{number},nv,,,,,rosendahl" for number in range(11, 23)]
    (tiny / "HAM10000_metadata.csv").write_text(text(*ROWS, *more))
    with pytest.raises(DataError, match="12 of the 20 images that the metadata names are not there") as error:
        read(tiny)
    assert error.value.details[0] == "row 10: ISIC_11: its image is not there"
    assert error.value.details[9:] == ("row 19: ISIC_20: its image is not there", "… and 2 more images")
    assert 'data.bad_files = "quarantine"' in error.value.hint
    collection, left_out = read(tiny, bad_files="quarantine")
    assert len(collection) == 8
    assert len(left_out) == 12


def test_images_that_were_not_unpacked(tiny, read, zip_folder):
    zip_folder(tiny / "HAM10000_images_part_2", tiny / "HAM10000_images_part_2")
    shutil.rmtree(tiny / "HAM10000_images_part_2")
    with pytest.raises(DataError, match="3 of the 8 images") as error:
        read(tiny)
    assert error.value.hint.startswith("Unpack HAM10000_images_part_2.zip, or leave them out")
    with pytest.raises(DataError, match="no image is left of akiec, mel, vasc"):
        read(tiny, bad_files="quarantine")
    shutil.rmtree(tiny / "HAM10000_images_part_1")
    with pytest.raises(DataError, match="8 of the 8 images"):
        read(tiny, bad_files="quarantine")


@pytest.mark.parametrize("bad_files", ["refuse", "quarantine"])
def test_a_table_that_contradicts_itself(tiny, read, bad_files):
    twice = "L9,ISIC_3,bcc,,,,,rosendahl"
    other = "L4,ISIC_9,mel,,,,,vienna_dias"
    (tiny / "HAM10000_metadata.csv").write_text(text(*ROWS, twice, other))
    with pytest.raises(DataError, match=r"contradicts itself: 2 problem\(s\)") as error:
        read(tiny, bad_files=bad_files)
    assert error.value.details == ("rows 5, 10: all name ISIC_3", "lesion L4: bkl (row 6), mel (row 11)")


def test_two_files_of_one_image(tiny, read):
    shutil.copy(tiny / "HAM10000_images_part_1" / "ISIC_1.jpg", tiny / "HAM10000_images_part_2" / "ISIC_1.jpeg")
    with pytest.raises(DataError, match=r"holds 1 image\(s\) more than once") as error:
        read(tiny)
    both = "HAM10000_images_part_1/ISIC_1.jpg, HAM10000_images_part_2/ISIC_1.jpeg"
    assert error.value.details == (f"ISIC_1: {both}",)


# the real one --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def real(tmp_path_factory, real_file):
    archive = real_file(f"{ham10000.NAME}.zip")
    return ham10000.read(archive, size=8, cache=tmp_path_factory.mktemp("cache"))


def test_the_real_table(real_file):
    archive = real_file(f"{ham10000.NAME}.zip")
    with open_files(archive) as files:
        entries, problems = ham10000.read_metadata(files, files.listing())
    assert len(entries) == 10015
    assert problems == []
    at = {entry.lesion: set() for entry in entries}
    for entry in entries:
        at[entry.lesion].add(entry.hospital)
    assert Counter(len(hospitals) for hospitals in at.values()) == {1: 7461, 2: 9}


def test_the_real_set(real):
    collection, left_out = real
    assert collection.images.shape == (10015, 8, 8, 3)
    assert left_out == []
    assert collection.images[::100].float().std() > 20
    assert collection.targets.bincount().tolist() == [327, 514, 1099, 115, 1113, 6705, 142]
    assert len(set(collection.groups)) == 7470
    hospitals = {"rosendahl": 2259, "vidir_modern": 3363, "vidir_molemax": 3954, "vienna_dias": 439}
    assert Counter(collection.sites) == hospitals


def test_the_real_set_is_shared_out_with_each_lesion_on_one_side(real):
    collection, _ = real
    for options in ({"partition": "site"}, {"partition": "dirichlet", "sites": 5}):
        federation = federate(collection, **options)
        sides = [
            {collection.groups[row] for site in federation.sites for row in getattr(site, side).tolist()}
            for side in ("train", "test")
        ]
        assert sides[0]
        assert sides[1]
        assert not sides[0] & sides[1]
