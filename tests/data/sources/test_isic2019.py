"""ISIC 2019 by name: classes, lesions, sites and the test set of the challenge; what is refused."""

from __future__ import annotations

from collections import Counter

import pytest
from named_sets import HEADER, lay_isic2019, table

from crossward.data.sources import isic2019
from crossward.data.sources.isic2019 import Isic2019Settings
from crossward.errors import DataError


def load(path, **more):
    return Isic2019Settings.model_validate({"source": "isic2019", "path": path, "size": 8, **more}).load()


def test_classes_lesions_and_sites(tmp_path):
    collection, left_out = load(lay_isic2019(tmp_path))
    assert (collection.name, left_out) == ("isic2019", [])
    assert collection.classes == ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    assert collection.targets.bincount().tolist() == [2] * 8
    assert collection.groups[:5] == ("BCN_0000000", "BCN_0000000", "HAM_0000002", "MSK4_0000003", "ISIC_0000004")
    assert Counter(collection.sites) == {"bcn": 2, "ham": 1, "msk4": 1, "unnamed": 12}
    assert collection.splits is None
    assert "ISIC_0000014_downsampled.jpg" in collection.ids


def test_the_test_set_of_the_challenge_without_its_unknown_class(tmp_path):
    collection, _ = load(lay_isic2019(tmp_path, test=True), split="official")
    assert Counter(collection.splits) == {"train": 16, "test": 2}
    assert {site for site, side in zip(collection.sites, collection.splits, strict=True) if side == "test"} == {""}
    assert f"1 images of {isic2019.TEST_TRUTH} are of the class UNK, which is not read" in collection.notes


def test_without_metadata_there_are_no_lesions(tmp_path):
    home = lay_isic2019(tmp_path)
    (home / isic2019.METADATA).unlink()
    collection, _ = load(home)
    assert collection.groups is None
    assert collection.sites is None


def test_a_test_set_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=f"holds no {isic2019.TEST_TRUTH}"):
        load(lay_isic2019(tmp_path), split="official")


def test_rows_with_no_class_or_two_are_refused(tmp_path):
    home = lay_isic2019(tmp_path)
    rows = [
        ["ISIC_0000000", *[0] * 9],
        ["ISIC_0000001", 1, 1, *[0] * 7],
        ["ISIC_0000002", "x", *[0] * 8],
        ["ISIC_0000002", 1, *[0] * 8],
    ]
    table(home / isic2019.TRUTH, HEADER, rows)
    with pytest.raises(DataError, match="4 problem") as error:
        load(home)
    assert error.value.details == (
        "row 2: ISIC_0000000: the classes marked are none, not one",
        "row 3: ISIC_0000001: the classes marked are MEL, NV, not one",
        "row 4: ISIC_0000002: MEL = 'x' where 0 or 1 belongs",
        "rows 4, 5: all name ISIC_0000002",
    )


def test_absent_images_are_named(tmp_path):
    home = lay_isic2019(tmp_path)
    next(home.rglob("ISIC_0000005.jpg")).unlink()
    with pytest.raises(DataError, match="1 of the 16 images") as error:
        load(home)
    assert error.value.details == ("row 7: ISIC_0000005: its image is not there",)
    collection, left_out = load(home, bad_files="quarantine")
    assert (len(collection), left_out) == (15, ["row 7: ISIC_0000005: its image is not there"])
