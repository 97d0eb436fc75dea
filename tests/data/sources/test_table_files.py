"""Tables as people keep them: one for each split, inside of an archive, with a column for each class, with accents as
macOS stores them, and with patients, who are called by codes."""

from __future__ import annotations

import unicodedata
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crossward.data.site_key import patient_code, site_key
from crossward.data.sources import table
from crossward.errors import DataError


@pytest.fixture
def read(cache):
    return lambda file, **more: table.read(file, cache=cache / "images", **{"size": 8, "channels": 1} | more)


def draw(root: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng([number, len(name)]).integers(0, 255, (8, 8)).astype(np.uint8)
        Image.fromarray(pixels).save(root / name)


def write(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def labels(collection) -> dict[str, int]:
    return dict(Counter(collection.classes[number] for number in collection.targets.tolist()))


def test_a_table_for_each_split(tmp_path, read):
    draw(tmp_path, *(f"{n}.png" for n in range(6)))
    train = write(tmp_path / "train.csv", "path,label", "0.png,a", "1.png,b")
    val = write(tmp_path / "val.csv", "path,label", "2.png,a", "3.png,b")
    test = write(tmp_path / "test.csv", "path,label", "4.png,a", "5.png,b")
    collection, left_out = read(train, others={"val": val, "test": test})
    assert collection.splits == ("train", "train", "val", "val", "test", "test")
    assert labels(collection) == {"a": 3, "b": 3}
    assert left_out == []


def test_problems_say_which_table_they_are_of(tmp_path, read):
    draw(tmp_path, "0.png", "1.png")
    train = write(tmp_path / "train.csv", "path,label", "0.png,a", "1.png,b")
    test = write(tmp_path / "test.csv", "path,label", "0.png,a", "9.png,b", "too,many,cells")
    with pytest.raises(DataError) as refusal:
        read(train, others={"test": test})
    assert refusal.value.details == (
        "row 2 of test.csv: 0.png: is already on row 2 of train.csv, with another split",
        f"row 3 of test.csv: 9.png: no such file in {tmp_path}",
        "row 4 of test.csv: has 3 cells for 2 columns",
    )


def test_tables_of_splits_that_do_not_fit_together(tmp_path, read):
    draw(tmp_path, "0.png", "1.png")
    train = write(tmp_path / "train.csv", "path,label", "0.png,a")
    other = write(tmp_path / "test.csv", "path,label,group", "1.png,b,7")
    with pytest.raises(DataError, match="the same columns"):
        read(train, others={"test": other})
    both = write(tmp_path / "both.csv", "path,label,split", "0.png,a,train")
    with pytest.raises(DataError, match="none of splits"):
        read(both, others={"test": both})


@pytest.mark.parametrize("folder", ["", "inner/"])
def test_a_table_inside_of_an_archive(tmp_path, read, folder):
    draw(tmp_path / "plain", "pictures/0.png", "pictures/1.png")
    write(tmp_path / "plain/labels.csv", "path,label", "pictures/0.png,a", r"pictures\1.png,b")
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for file in sorted((tmp_path / "plain").rglob("*.*")):
            archive.write(file, f"{folder}{file.relative_to(tmp_path / 'plain')}")
    collection, _ = read(tmp_path / "set.zip" / f"{folder}labels.csv")
    assert collection.ids == (f"{folder}pictures/0.png", f"{folder}pictures/1.png")
    assert labels(collection) == {"a": 1, "b": 1}
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "set.zip" / "labls.csv")


def test_a_path_of_a_table_in_an_archive_does_not_lead_out_of_it(tmp_path, read):
    draw(tmp_path, "secret.png", "plain/a.png")
    write(tmp_path / "plain/labels.csv", "path,label", "a.png,a", "../secret.png,b")
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.write(tmp_path / "plain/a.png", "in/a.png")
        archive.write(tmp_path / "plain/labels.csv", "in/labels.csv")
    with pytest.raises(DataError) as refusal:
        read(tmp_path / "set.zip/in/labels.csv")
    assert refusal.value.details == ("row 3: ../secret.png: its path ../secret.png leads out of its root by ..",)


def test_a_column_for_each_class(tmp_path, read):
    draw(tmp_path, *(f"{n}.png" for n in range(5)))
    lines = ("image,MEL,NV,age", "0,1.0,0.0,40", "1,0,1,41", "2,1,1,42", "3,0,0,43", "4,0.3,0.7,44")
    file = write(tmp_path / "truth.csv", *lines)
    collection, left_out = read(file, columns={"path": "image"}, one_hot=("MEL", "NV"), bad_files="quarantine")
    assert labels(collection) == {"MEL": 1, "NV": 1}
    assert [str(bad) for bad in left_out] == [
        "row 4: 2.png: its label names 2 classes, MEL and NV, and one class for each image is read here; "
        'data.labels = "multi" reads them all',
        "row 5: 3.png: its label is empty",
        'row 6: 4.png: its label is "?", which says that there is none',
    ]
    assert collection.notes == ("columns that are not used: age",)
    with pytest.raises(DataError) as refusal:
        read(file, columns={"path": "image"}, one_hot=("MEL", "NVA"))
    assert "NV" in refusal.value.details[0]


def test_accents_as_mac_os_stores_them(tmp_path, read):
    composed = "l\u00e9sion.png"
    draw(tmp_path, unicodedata.normalize("NFD", composed), "b.png")
    collection, _ = read(write(tmp_path / "t.csv", "path,label", f"{composed},a", "b.png,b"))
    assert labels(collection) == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("column", "coded"), [("PatientID", True), ("subject", True), ("MRN", True), ("lesion", False)]
)
def test_patients_have_codes_and_lesions_their_names(tmp_path, read, column, coded):
    draw(tmp_path, "0.png", "1.png", "2.png")
    file = write(tmp_path / "t.csv", f"path,label,{column}", "0.png,a,777-12", "1.png,b,777-12", "2.png,b,778-13")
    collection, _ = read(file, columns={"group": column})
    assert collection.groups[0] == collection.groups[1] != collection.groups[2]
    assert collection.groups[0] == (patient_code(site_key(), "777-12") if coded else "777-12")


def test_a_row_that_does_not_fit_shows_none_of_its_cells(tmp_path, read):
    draw(tmp_path, "0.png", "1.png")
    file = write(tmp_path / "t.csv", "path,label", "0.png,a", "1.png,b", "2.png,Wintergreen,Rosalind")
    with pytest.raises(DataError) as refusal:
        read(file)
    assert refusal.value.details == ("row 4: has 3 cells for 2 columns",)


def test_capitals_that_the_files_have_not(tmp_path, read):
    draw(tmp_path, "img/0.PNG", "img/1.PNG", "img/2.png", "img/2.PNG")
    file = write(tmp_path / "t.csv", "path,label", "IMG/0.png,a", "img/1.png,b", "img/2.png,b")
    collection, _ = read(file)
    assert collection.ids == ("img/0.PNG", "img/1.PNG", "img/2.png")
