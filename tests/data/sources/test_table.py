"""Manifests: every problem of every row is found in one reading, with its row number."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crossward.data.bad_files import BadFile
from crossward.data.collection import Collection
from crossward.data.sources import table
from crossward.errors import ConfigError, DataError

Read = Callable[..., tuple[Collection, list[BadFile]]]


@pytest.fixture
def here(tmp_path):
    """Images 1.png to 5.png of value 10 to 50, and some files that are none."""
    (tmp_path / "x").mkdir()
    for value in range(1, 6):
        Image.new("L", (4, 4), 10 * value).save(tmp_path / f"x/{value}.png")
    (tmp_path / "x/empty.png").write_bytes(b"")
    (tmp_path / "x/text.jpg").write_text("hello")
    (tmp_path / "x/other.jpg").write_bytes(b"%PDF-1.7")
    (tmp_path / "x/cut.png").write_bytes((tmp_path / "x/1.png").read_bytes()[:-30])
    return tmp_path


@pytest.fixture
def read(here) -> Read:
    def of(text: str, **more: object) -> tuple[Collection, list[BadFile]]:
        (here / "set.csv").write_text(text)
        return table.read(here / "set.csv", cache=here / "cache", **{"size": 4, "channels": 1} | more)

    return of


def zipped(here: Path) -> Path:
    with zipfile.ZipFile(here / "x.zip", "w") as archive:
        for file in sorted((here / "x").iterdir()):
            archive.write(file, f"x/{file.name}")
    return here / "x.zip"


FULL = """path,label,site,group,split
x/2.png,nevus,Graz,p1,train
x/1.png,melanoma,Graz,p2,val
x/3.png,nevus,Wien,,test
x/4.png,nevus,,p1,
"""


@pytest.mark.parametrize("packed", [False, True])
def test_a_whole_table(here, read, packed):
    collection, left_out = read(FULL, root=zipped(here)) if packed else read(FULL)
    assert collection.name == "set"
    assert collection.task == "classification"
    assert collection.classes == ("melanoma", "nevus")
    assert collection.targets.tolist() == [1, 0, 1, 1]
    assert collection.images[:, 0, 0, 0].tolist() == [20, 10, 30, 40]
    assert collection.ids == ("x/2.png", "x/1.png", "x/3.png", "x/4.png")
    assert collection.sites == ("Graz", "Graz", "Wien", "")
    assert collection.groups == ("p1", "p2", "x/3.png", "p1")  # unknown patients are alone
    assert collection.splits == ("train", "val", "test", "")
    assert len(collection.hashes) == 4
    assert left_out == []


def test_optional_columns_may_be_absent(read):
    collection, _ = read("label,path\na,x/1.png\nb,x/2.png\n")
    assert collection.sites is None
    assert collection.groups is None
    assert collection.splits is None


def test_semicolons_blank_lines_and_a_byte_order_mark(here, read):
    collection, _ = read("\ufeffpath;label\r\nx/1.png;a, b\r\n\r\nx\\2.png; c \r\n")
    assert collection.classes == ("a, b", "c")
    assert collection.images[:, 0, 0, 0].tolist() == [10, 20]


def test_numbers_are_classes_in_their_order(read):
    rows = "path,label\nx/1.png,10\nx/2.png,9\nx/3.png,2\n"
    assert read(rows)[0].classes == ("2", "9", "10")
    assert read(rows, classes=("9", "10", "2", "7"))[0].targets.tolist() == [1, 0, 2]


BAD = """path,label,split
x/1.png,a,train
x/gone.png,a,train
x/empty.png,a,trained
x/text.jpg,b,test
x/other.jpg,b,test
x/cut.png,b,
x/2.png,,
x/1.png,a,
../x/3.png,a,
/x/3.png,a,
,a,
x/3.png,c,
x/4.png,b
x/5.png,b,
"""


@pytest.mark.parametrize("packed", [False, True])
def test_every_problem_at_once_with_its_row(here, read, packed):
    root = zipped(here) if packed else here
    with pytest.raises(DataError, match="13 problems") as error:
        read(BAD, root=root, classes=("a", "b"))
    assert error.value.details[:2] == (
        f"row 3: x/gone.png: no such file in {root}",
        "row 4: x/empty.png: is empty (0 bytes)",
    )
    assert error.value.details[2:] == (
        'row 4: x/empty.png: its split "trained" is none of train, val, test',
        "row 5: x/text.jpg: has the extension .jpg of JPEG, but its content is not an image",
        "row 6: x/other.jpg: has the extension .jpg of JPEG, but its content is not an image",
        "row 7: x/cut.png: is cut short: its end is missing",
        "row 8: x/2.png: its label is empty",
        "row 9: x/1.png: is already on row 2, with another split",
        "row 10: ../x/3.png: its path ../x/3.png leads out of its root by ..",
        "row 11: /x/3.png: its path /x/3.png is an absolute path: paths are relative to their root, or below "
        "data.root; data.prefix is what others begin with",
        "row 12: its path is empty",
        'row 13: x/3.png: its label "c" is not among the classes; the nearest is "b"',
        "row 14: has 2 cells for 3 columns",
    )


def test_quarantine_keeps_the_rest(here, read):
    collection, left_out = read(BAD, classes=("a", "b"), bad_files="quarantine")
    assert collection.ids == ("x/1.png", "x/5.png")
    assert collection.images[:, 0, 0, 0].tolist() == [10, 50]
    assert collection.targets.tolist() == [0, 1]
    assert [bad.row for bad in left_out] == list(range(3, 15))
    assert left_out[0] == BadFile("x/gone.png", 3, f"no such file in {here}")


def test_a_row_for_each_box_is_one_image(read):
    collection, left_out = read("path,label\nx/1.png,a\nx/2.png,b\nx/2.png,b\nx/2.png,b\n")
    assert collection.ids == ("x/1.png", "x/2.png")
    assert left_out == []
    assert [note for note in collection.notes if "again" in note] == [
        "2 row(s) name an image again, as tables with a row for each box do: each image is read once"
    ]


def test_rows_that_give_an_image_two_labels_are_both_left_out(read):
    rows = "path,label\nx/1.png,a\nx/2.png,b\nx/3.png,a\nx/1.png,b\n"
    collection, left_out = read(rows, bad_files="quarantine")
    assert collection.ids == ("x/2.png", "x/3.png")
    reason = 'rows 2, 5 give it different labels, "a" and "b"; data.labels = "multi" reads them all'
    assert left_out == [BadFile("x/1.png", 2, reason), BadFile("x/1.png", 5, reason)]
    with pytest.raises(DataError, match="2 problems"):
        read(rows)


def test_rows_of_several_labels_are_joined(read):
    rows = "path,label\nx/1.png,mass\nx/1.png,edema\nx/2.png,No finding\nx/2.png,edema\nx/3.png,No finding\n"
    collection, left_out = read(rows, several=True)
    assert collection.classes == ("edema", "mass")
    assert collection.targets.tolist() == [[1, 1], [1, 0], [0, 0]]
    assert left_out == []


@pytest.mark.parametrize("bad_files", ["auto", "quarantine"])
def test_a_long_table_of_mostly_absent_files_ends_in_one_line(read, bad_files):
    lines = [f"gone/{number}.png,{'ab'[number % 2]}" for number in range(2000)]
    lines[::40] = [f"x/{1 + place % 3}.png,a" for place in range(50)]
    table_text = "\n".join(["path,label", *lines, "x/4.png,b"])
    if bad_files == "auto":
        with pytest.raises(DataError, match=r"1,950 of 2,001 rows name files that are not in") as error:
            read(table_text, bad_files=bad_files)
        assert len(error.value.details) == 5
        return
    collection, left_out = read(table_text, bad_files=bad_files)
    assert collection.ids == ("x/1.png", "x/2.png", "x/3.png", "x/4.png")
    assert len(left_out) == 1950
    assert "no such file in" in left_out[0].reason


def test_quarantine_never_loses_a_class(read):
    with pytest.raises(DataError, match="no image is left of b"):
        read("path,label\nx/1.png,a\nx/empty.png,b\n", bad_files="quarantine")
    with pytest.raises(DataError, match="no usable image is left"):
        read("path,label\nx/empty.png,b\n", bad_files="quarantine")


def test_spellings_that_differ_between_sites(read):
    rows = """path,label,site
x/1.png,Benign nevi,Graz
x/2.png,Benign nevi,Graz
x/3.png,benign_Nevi,Wien
x/4.png,melanomas,Wien
x/5.png,melanoma,Graz
"""
    for policy in ("refuse", "quarantine"):
        with pytest.raises(DataError) as error:
            read(rows, bad_files=policy)
        assert error.value.details == (
            'site Wien: the label "benign_Nevi" (1 rows) looks like "Benign nevi" of site Graz',
            'site Graz: the label "melanoma" (1 rows) looks like "melanomas" of site Wien',
        )
    declared = ("Benign nevi", "benign_Nevi", "melanoma", "melanomas")
    assert read(rows, classes=declared)[0].classes == declared


@pytest.mark.parametrize(
    ("header", "problems"),
    [
        (
            "path,lable",
            ['the column "lable" is not known; the nearest is "label"',
             'neither of the columns "label" and "mask" is there'],
        ),
        ("Path,label", ['the column "Path" is not known; the nearest is "path"', 'the column "path" is missing']),
        ("path,label,mask", ['both of the columns "label" and "mask" are there']),
        ("path,label,label", ['the column "label" is there 2 times']),
        ("path,label,patient_group", ['the column "patient_group" is not known; the nearest is "group"']),
    ],
)  # fmt: skip
def test_wrong_headers(read, header, problems):
    with pytest.raises(DataError, match="header") as error:
        read(header + "\nx/1.png,a,b\n")
    assert error.value.details == tuple(f"row 1: {problem}" for problem in problems)


def test_tables_that_are_none(here, read):
    for text, words in (("", "header"), ("path,label\n\n", "no rows"), ('path,label\n"x,a\n', "not CSV")):
        with pytest.raises(DataError, match=words):
            read(text)
    (here / "latin.csv").write_bytes("path,label\nx/1.png,Kräfte\n".encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8"):
        table.read(here / "latin.csv", size=4, cache=here / "cache")
    with pytest.raises(DataError, match="cannot be read"):
        table.read(here / "gone.csv", size=4, cache=here / "cache")


@pytest.mark.parametrize("classes", [("a",), ("a", "a")])
def test_wrong_classes(read, classes):
    with pytest.raises(ConfigError, match="classes"):
        read(FULL, classes=classes)


@pytest.fixture
def masks(here):
    def save(name: str, rows: list[list[int]]) -> None:
        Image.fromarray(np.array(rows, dtype=np.uint8).repeat(4 // len(rows), 0).repeat(4 // len(rows[0]), 1)).save(
            here / "x" / name
        )

    save("m1.png", [[0, 255], [255, 0]])
    save("m2.png", [[0, 0], [1, 1]])
    save("m3.png", [[0, 1], [2, 2]])
    Image.new("L", (4, 5), 255).save(here / "x/tall.png")
    return here


@pytest.mark.parametrize("packed", [False, True])
def test_masks_make_it_segmentation(masks, read, packed):
    more = {"root": zipped(masks)} if packed else {}
    collection, _ = read("path,mask,site\nx/1.png,x/m1.png,A\nx/2.png,x/m2.png,B\n", size=2, **more)
    assert collection.task == "segmentation"
    assert collection.classes == ("background", "foreground")
    assert collection.targets.tolist() == [[[0, 1], [1, 0]], [[0, 0], [1, 1]]]
    assert collection.targets.dtype == torch.uint8
    assert collection.sites == ("A", "B")


def test_images_are_prepared_and_masks_are_not(masks, read):
    rows = "path,mask\nx/1.png,x/m1.png\nx/2.png,x/m2.png\n"
    plain, _ = read(rows, size=2)
    bright, _ = read(rows, size=2, prepare=("brightness:0.2",))
    assert plain.images.unique().tolist() == [10, 20]
    assert bright.images.unique().tolist() == [51]
    assert bright.targets.equal(plain.targets)


def test_class_maps(masks, read):
    classes = ("background", "tumour", "oedema")
    collection, _ = read("path,mask\nx/1.png,x/m3.png\nx/2.png,x/m2.png\n", size=2, classes=classes)
    assert collection.classes == classes
    assert collection.targets.tolist() == [[[0, 1], [2, 2]], [[0, 0], [1, 1]]]


def test_every_problem_of_masks(masks, read):
    rows = """path,mask
x/1.png,x/tall.png
x/2.png,
x/3.png,x/gone.png
x/empty.png,x/text.jpg
x/4.png,x/m3.png
x/5.png,x/m1.png
"""
    with pytest.raises(DataError, match="6 problems") as error:
        read(rows)
    assert error.value.details == (
        "row 2: x/1.png: its mask x/tall.png is 4 x 5 pixels, but the image is 4 x 4 pixels",
        "row 3: x/2.png: its mask is empty",
        f"row 4: x/3.png: mask x/gone.png: no such file in {masks}",
        "row 5: x/empty.png: is empty (0 bytes)",
        "row 5: x/empty.png: mask x/text.jpg: has the extension .jpg of JPEG, but its content is not an image",
        "row 6: x/4.png: mask x/m3.png: has the values 0, 1, 2: name the classes to read it as a class map",
    )
    collection, left_out = read(rows, bad_files="quarantine")
    assert collection.ids == ("x/5.png",)
    assert len(left_out) == 6


def test_real_polyps(tmp_path, real_file):
    archive = real_file("PolypGen.zip")
    with zipfile.ZipFile(archive) as content:
        images = [name for name in content.namelist() if "/images_" in name][::30]
    lines = [
        f"{name},{name.replace('/images_', '/masks_').replace('.jpg', '_mask.png')},{name.split('/')[1]}"
        for name in images
    ]
    (tmp_path / "p.csv").write_text("\n".join(["path,mask,site", *lines]))
    collection, left_out = table.read(tmp_path / "p.csv", size=32, root=archive, cache=tmp_path / "cache")
    assert len(collection) == 52
    assert left_out == []
    assert collection.targets.unique().tolist() == [0, 1]
    assert set(collection.sites) == {f"data_C{site}" for site in range(1, 7)}
    assert 0.02 < collection.targets.float().mean() < 0.3


def test_real_skin(tmp_path, real_file):
    archive = real_file("HAM10000.zip")
    with zipfile.ZipFile(archive) as content:
        _, *lines = content.read("HAM10000_metadata.csv").decode().splitlines()
    cells = [
        line.split(",") for line in lines[::150]
    ]  # lesion_id, image_id, dx, dx_type, age, sex, localization, dataset
    rows = [f"HAM10000_images/{image}.jpg,{dx},{lesion},{site}" for lesion, image, dx, *_, site in cells]
    (tmp_path / "h.csv").write_text("\n".join(["path,label,group,site", *rows]))
    collection, _ = table.read(tmp_path / "h.csv", size=28, fit="crop", root=archive, cache=tmp_path / "cache")
    assert collection.images.shape == (67, 28, 28, 3)
    assert set(collection.classes) <= {"akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"}
    assert all(group.startswith("HAM_") for group in collection.groups)


def test_columns_with_other_names_are_suggested_and_mapped(read):
    text = "filename,Diagnosis,patient_id,hospital,age\nx/1.png,a,p1,Graz,40\nx/2.png,b,p2,Wien,50\n"
    with pytest.raises(DataError, match="header") as error:
        read(text)
    mapping = '{ path = "filename", label = "Diagnosis", site = "hospital", group = "patient_id" }'
    assert f"Set data.columns = {mapping}" in error.value.hint
    assert 'row 1: the column "patient_id" is not known; the nearest is "group"' in error.value.details
    columns = {"path": "filename", "label": "Diagnosis", "site": "hospital", "group": "patient_id"}
    collection, _ = read(text, columns=columns)
    assert collection.ids == ("x/1.png", "x/2.png")
    assert len({*collection.groups}) == 2
    assert not {"p1", "p2"} & {*collection.groups}
    assert collection.sites == ("Graz", "Wien")
    assert collection.notes == ("columns that are not used: age",)


def test_a_patient_that_is_not_used_is_told_or_left_out_on_purpose(read):
    text = "path,label,patient_id\nx/1.png,a,p1\nx/2.png,b,p2\n"
    with pytest.raises(DataError, match="header") as error:
        read(text)
    assert error.value.hint.startswith('Set data.columns = { group = "patient_id" }; "" for a column')
    collection, _ = read(text, columns={"group": ""})
    assert collection.groups is None
    assert any("seems to name patients" in note for note in collection.notes)


def test_a_mapped_column_that_is_not_there(read):
    with pytest.raises(DataError, match="header") as error:
        read("path,label\nx/1.png,a\n", columns={"group": "patiant"})
    assert error.value.details[0].startswith('row 1: the column "patiant" for group is not there.')


def test_columns_that_are_like_none_of_ours_are_not_used(read):
    collection, _ = read("path,label,age\nx/1.png,a,3\nx/2.png,b,4\n")
    assert collection.notes == ("columns that are not used: age",)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
def test_tables_in_other_encodings(here, encoding):
    (here / "set.csv").write_bytes("path;label;site\nx\\1.png;a;K\u00f6ln\nx/2.png;b;K\u00f6ln\n".encode(encoding))
    options = {"size": 4, "channels": 1, "cache": here / "cache"}
    with pytest.raises(DataError, match="is not UTF-8 text") as error:
        table.read(here / "set.csv", **options)
    assert 'data.encoding = "latin-1"' in error.value.hint
    collection, _ = table.read(here / "set.csv", **options, encoding=encoding)
    assert collection.sites == ("K\u00f6ln", "K\u00f6ln")
    assert collection.ids == ("x/1.png", "x/2.png")


@pytest.mark.parametrize("label", ["NaN", "nan", "N/A", "None", "?", "unlabelled"])
def test_a_label_that_says_there_is_none_is_no_class(read, label):
    text = f"path,label\nx/1.png,a\nx/2.png,b\nx/3.png,{label}\n"
    with pytest.raises(DataError) as error:
        read(text)
    assert error.value.details == (f'row 4: x/3.png: its label is "{label}", which says that there is none',)
    assert read(text, bad_files="quarantine")[0].classes == ("a", "b")
    assert read(text, classes=("a", "b", label))[0].targets.tolist() == [0, 1, 2]


def test_several_labels_in_one_cell_are_no_class(read):
    text = "path,label\nx/1.png,N\nx/2.png,P\nx/3.png,N|P\n"
    with pytest.raises(DataError) as error:
        read(text)
    assert "its label names 2 classes, N and P" in error.value.details[0]
    assert error.value.details[0].endswith('data.labels = "multi" reads them all')
    assert read(text, bad_files="quarantine")[0].classes == ("N", "P")


def test_several_labels_for_each_image(read):
    text = "path,label\nx/1.png,edema | mass\nx/2.png,No Finding\nx/3.png,mass\n"
    collection, _ = read(text, several=True)
    assert collection.task == "multi-label"
    assert collection.classes == ("edema", "mass")
    assert collection.targets.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert collection.targets.dtype == torch.uint8
    named, _ = read(text, several=True, classes=("mass", "hernia", "edema"), rename={})
    assert named.targets.tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 0]]
    renamed, _ = read(text, several=True, rename={"mass": "nodule"})
    assert renamed.classes == ("edema", "nodule")


def test_several_labels_that_cannot_be_read(read):
    text = "path,label\nx/1.png,edema|masss\nx/2.png,\nx/3.png,?\n"
    with pytest.raises(DataError) as error:
        read(text, several=True, classes=("edema", "mass"))
    assert error.value.details == (
        'row 2: x/1.png: its label "masss" is not among the classes; the nearest is "mass"',
        "row 3: x/2.png: its label is empty",
        'row 4: x/3.png: its label is "?", which says that there is none',
    )
    with pytest.raises(DataError, match=r"names 1 label\(s\) in all: edema"):
        read("path,label\nx/1.png,edema\nx/2.png,none\n", several=True)
    with pytest.raises(DataError) as error:
        read("path,label\nx/1.png,Edema|mass\nx/2.png,edema\nx/3.png,edema\n", several=True)
    assert 'the label "Edema" (1 rows) looks like "edema"' in error.value.details[0]


def test_columns_of_several_labels(read):
    text = "path,mass,edema\nx/1.png,1,1\nx/2.png,0,0\nx/3.png,0,1\n"
    collection, _ = read(text, several=True, one_hot=("mass", "edema"))
    assert collection.classes == ("mass", "edema")  # as the columns are named, also those without an image
    assert collection.targets.tolist() == [[1, 1], [0, 0], [0, 1]]


def test_absolute_paths_below_the_root_or_another_prefix(here, read):
    text = f"path,label\n{here}/x/1.png,a\n{here / 'x' / '2.png'},b\n"
    assert read(text)[0].ids == ("x/1.png", "x/2.png")
    windows = "path,label\nD:\\export\\x\\1.png,a\nD:\\export\\x\\2.png,b\n"
    with pytest.raises(DataError, match="2 problems") as error:
        read(windows)
    assert "data.prefix" in error.value.details[0]
    assert read(windows, prefix="D:\\export\\")[0].ids == ("x/1.png", "x/2.png")
    with pytest.raises(DataError, match="one problem"):
        read("path,label\nx/1.png,a\nD:\\export\\..\\..\\2.png,b\n", prefix="D:/export")


def test_names_without_extension_are_looked_up(here, read):
    (here / "y").mkdir()
    shutil.copy(here / "x/3.png", here / "y/3.png")
    text = "path,label\n1,a\n2,b\n"
    assert read(text)[0].ids == ("x/1.png", "x/2.png")
    with pytest.raises(DataError) as error:
        read(text + "3,a\n9,b\n")
    assert error.value.details == (
        "row 4: 3: 2 images have this name: x/3.png, y/3.png; data.root names the folder that is meant",
        "row 5: 9: no image has this name",
    )


def many_rows(here, bad):
    for number in range(40):
        Image.new("L", (4, 4), number).save(here / f"x/n{number}.png")
    for number in range(bad):
        (here / f"x/n{number * 20}.png").write_bytes(b"")
    return "path,label,site\n" + "".join(f"x/n{n}.png,{'ab'[n % 2]},{('Graz', 'Wien')[n // 20]}\n" for n in range(40))


def test_few_bad_files_are_left_out_by_default_and_more_are_refused(here, read):
    collection, left_out = read(many_rows(here, 2), bad_files="auto")
    assert len(collection) == 38
    assert [bad.site for bad in left_out] == ["Graz", "Wien"]
    assert str(left_out[0]) == "row 2: x/n0.png: is empty (0 bytes) (site Graz)"
    (here / "x/n21.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"3 problems \(Graz 1, Wien 2\)") as error:
        read((here / "set.csv").read_text(), bad_files="auto")
    assert "Up to 5% of the files would be left out" in error.value.hint


def test_a_long_table_whose_files_are_elsewhere_is_refused_at_once(tmp_path, monkeypatch):
    from crossward.data.sources import table
    from crossward.data.sources.table_rows import MANY

    lines = [f"/old/place/{n:04d}.png,{'ab'[n % 2]}" for n in range(MANY)]
    (tmp_path / "long.csv").write_text("\n".join(["path,label", *lines]))
    monkeypatch.setattr(table, "decode_files", lambda *_: pytest.fail("files were looked for, one by one"))
    with pytest.raises(DataError) as refusal:
        table.read(tmp_path / "long.csv", size=8, cache=tmp_path / "cache", prefix="/old/place")
    assert "none of 50 rows that were looked at, of 1,000, has its file in" in refusal.value.what
    assert refusal.value.details[0] == "row 2: 0000.png"
    assert "data.root" in refusal.value.hint


def test_rows_that_do_not_fit_a_header_of_classes_are_counted_as_they_were_written(gallery, tmp_path):
    gallery.rows()
    file = gallery.root / "classes.csv"
    file.write_text("path,dog,cat\n0/train-0.png,1,0\n0/train-1.png,0,1\n0/train-2.png,1\n0/train-3.png,0,1,0\n")
    with pytest.raises(DataError) as error:
        table.TableSettings.model_validate(
            {"source": "table", "path": file, "one_hot": ("dog", "cat"), "size": 8}
        ).load()
    assert error.value.details == ("row 4: has 2 cells for 3 columns", "row 5: has 4 cells for 3 columns")
