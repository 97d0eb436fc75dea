"""Several labels for each DICOM image: in a cell, in several rows, or in a column for each label."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydicom")

from dicom_corpus import DX, image, stored, with_pixels

import crossward
from crossward.data.collection import Collection
from crossward.data.site_key import site_key
from crossward.data.sources.dicom import DicomSettings
from crossward.errors import ConfigError, DataError

RNG = np.random.default_rng(8)


def radiographs(root: Path, count: int) -> list[str]:
    """The UIDs of so many images of a patient each."""
    uids = []
    root.mkdir()
    for number in range(count):
        values = RNG.integers(0, 255, (16, 16)).astype(np.uint8)
        dataset = with_pixels(image(DX, "DX", PatientID=f"P{number}", BurnedInAnnotation="NO"), values)
        (root / f"IM{number:02d}").write_bytes(stored(dataset))
        uids.append(str(dataset.SOPInstanceUID))
    return uids


@pytest.fixture
def load(tmp_path) -> Callable[..., tuple[Collection, list[str]]]:
    """load(header, rows) reads five images with a table of these rows, each of which begins with a UID."""
    uids = radiographs(tmp_path / "dicom", 5)
    table = tmp_path / "labels.csv"
    fixed = {"source": "dicom", "path": tmp_path / "dicom", "size": 16, "labels": table, "bad_files": "quarantine"}

    def read(header: str, rows: list[tuple[int, str]], **more: Any) -> tuple[Collection, list[str]]:
        table.write_text("\n".join([header, *(f"{uids[image]},{words}" for image, words in rows)]))
        return DicomSettings.model_validate(fixed | more).load()

    return read


def code(number: int) -> str:
    return site_key().code("file", f"IM{number:02d}")


def test_labels_in_one_cell(load):
    rows = [(0, "edema|mass"), (1, "No Finding"), (2, "mass"), (3, "?"), (4, "edema")]
    collection, left_out = load("SOPInstanceUID,label", rows, multi_label=True)
    assert (collection.task, collection.classes) == ("multi-label", ("edema", "mass"))
    assert collection.targets.tolist() == [[1, 1], [0, 0], [0, 1], [1, 0]]
    assert len({*collection.groups}) == 4
    assert left_out == [f'{code(3)}: row 5 of the table of labels: its label is "?", which says that there is none']


def test_labels_in_several_rows(load):
    rows = [
        (0, "edema,"),
        (0, "mass,"),
        (1, "mass,"),
        (2, "edema,train"),
        (2, "mass,test"),
        (3, "edema,"),
        (4, "mass,"),
    ]
    collection, left_out = load("SOPInstanceUID,label,split", rows, multi_label=True)
    assert collection.targets.tolist() == [[1, 1], [0, 1], [1, 0], [0, 1]]
    assert left_out == [f"{code(2)}: rows 5, 6 of the table of labels contradict each other on it"]
    _, refused = load("SOPInstanceUID,label,split", rows)  # of one label each, the first two contradict each other
    assert f"{code(0)}: rows 2, 3 of the table of labels contradict each other on it" in refused


def test_a_column_for_each_label(load):
    rows = [(0, "1,1,0"), (1, "0,0,0"), (2, "0,-1,1"), (3, "0,1,0"), (4, "1,0,yes")]
    header, columns = "SOPInstanceUID,edema,mass,nodule", {"one_hot": ("edema", "mass", "nodule"), "multi_label": True}
    collection, left_out = load(header, rows, **columns)
    assert collection.classes == ("edema", "mass", "nodule")
    assert collection.targets.tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 1]]
    assert "row 4 of the table of labels: it says -1, uncertain, of a class" in left_out[0]
    certain, none = load(header, rows, uncertain="positive", **columns)
    assert none == []
    assert certain.targets[2].tolist() == [0, 1, 1]


def test_a_column_for_each_class_of_which_an_image_has_one(load):
    rows = [(0, "1,0"), (1, "0,1"), (2, "0,1"), (3, "1,1"), (4, "1,0")]
    collection, left_out = load("SOPInstanceUID,benign,malignant", rows, one_hot=("benign", "malignant"))
    assert (collection.task, collection.targets.tolist()) == ("classification", [0, 1, 1, 0])
    assert "its label names 2 classes, benign and malignant" in left_out[0]
    assert "data.multi_label = true reads them all" in left_out[0]


def test_labels_are_renamed_and_held_against_the_classes(load):
    rows = [(0, "Edema"), (0, "mass"), (1, "edema"), (2, "mas"), (3, "mass"), (4, "mass")]
    named = {"multi_label": True, "classes": ("edema", "mass"), "rename": {"Edema": "edema"}}
    collection, left_out = load("SOPInstanceUID,label", rows, **named)
    assert collection.targets.tolist() == [[1, 1], [1, 0], [0, 1], [0, 1]]
    assert 'its label "mas" is not among the classes; the nearest is "mass"' in left_out[0]
    with pytest.raises(DataError, match="problem") as error:
        load("SOPInstanceUID,label", rows, multi_label=True)  # two spellings
    assert "Edema" in str(error.value)


def test_rows_that_do_not_fit_are_counted_as_they_were_written(load):
    """The column of labels that is made of others is not counted."""
    with pytest.raises(DataError) as error:
        load("SOPInstanceUID,edema,mass", [(0, "1,0"), (1, "1")], one_hot=("edema", "mass"))
    assert error.value.details == ("row 3: has 2 cells for 3 columns",)


@pytest.mark.parametrize("more", [{"multi_label": True}, {"one_hot": ("a", "b")}])
def test_several_labels_are_those_of_a_table(tmp_path, more):
    radiographs(tmp_path / "dicom", 1)
    settings = DicomSettings.model_validate({"source": "dicom", "path": tmp_path / "dicom"} | more)
    with pytest.raises(ConfigError, match=r"data\.labels"):
        settings.load()


def test_a_run_learns_several_labels(tmp_path, config):
    uids = radiographs(tmp_path / "dicom", 24)
    words = ["edema|mass", "No Finding", "mass", "edema"] * 6
    rows = ["SOPInstanceUID,label", *map(",".join, zip(uids, words, strict=True))]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    data = {"source": "dicom", "path": str(tmp_path / "dicom"), "labels": str(tmp_path / "labels.csv"), "size": 16}
    result = crossward.run(
        config(data=data | {"multi_label": True}, partition={"kind": "iid", "sites": 2}, run={"rounds": 1})
    )
    assert result.about["task"]["name"] == "multi-label"
    assert result.about["task"]["classes"] == ["edema", "mass"]
