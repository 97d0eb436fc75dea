"""RSNA-ICH by name: the selection of slices, the window, patients, and tables that contradict themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pydicom")

import numpy as np
from named_sets import SLICES, lay_rsna_ich

from crossward.data.federate import federate
from crossward.data.sources.rsna_ich import CLASSES, RsnaIchSettings
from crossward.errors import DataError


def load(path: Path, **more):
    return RsnaIchSettings.model_validate({"source": "rsna-ich", "path": path, "size": 8, **more}).load()


def altered(home: Path, old: str, new: str) -> Path:
    file = home / "stage_2_train.csv"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return home


def test_slices_with_one_kind_of_bleeding(tmp_path):
    collection, left_out = load(lay_rsna_ich(tmp_path))
    assert (collection.name, collection.classes, left_out) == ("rsna-ich", CLASSES, [])
    assert collection.ids == tuple(name for name, _, kinds in SLICES if len(kinds) == 1)
    assert collection.targets.tolist() == [0, 1, 2, 3, 4] * 2
    assert collection.images.shape == (10, 8, 8, 1)


def test_the_window_of_the_brain(tmp_path):
    collection, _ = load(lay_rsna_ich(tmp_path))
    stored = np.random.default_rng(0).integers(1000, 1100, (8, 8)).astype(float)
    expected = np.clip((stored - 1024 - 0) / 80 * 255, 0, 255)  # 40:80 shows 0 to 80 HU
    assert np.abs(collection.images[0, :, :, 0].numpy() - expected).max() <= 1


def test_a_patient_is_on_one_side_unless_slices_are_split(tmp_path):
    collection, _ = load(lay_rsna_ich(tmp_path))
    patients = [patient for _, patient, kinds in SLICES if len(kinds) == 1]
    assert len(set(collection.groups)) == len(set(patients)) == 3
    assert not {*collection.groups} & {*patients}  # by codes
    federation = federate(collection, partition="iid", sites=1, split=(0.6, 0.0, 0.4), seed=0)
    site = federation.sites[0]
    trained, tested = ({collection.groups[row] for row in rows} for rows in (site.train, site.test))
    assert tested
    assert not trained & tested


def test_rows_that_the_official_table_repeats_are_read_and_others_refused(tmp_path):
    home = lay_rsna_ich(tmp_path)
    with (home / "stage_2_train.csv").open("a") as stream:
        stream.write("ID_000000001_epidural,1\nID_000000001_spinal,1\nID_zz_any,0\n")
    with pytest.raises(DataError, match="3 problem") as error:
        load(home)
    assert error.value.details == (
        "row 75: ID_000000001_epidural is 0 on one row and 1 on another",
        "row 76: is not ID_<slice>_<kind>,<0 or 1>",
        "ID_zz has no row of epidural, intraparenchymal, intraventricular, subarachnoid, subdural",
    )


def test_any_must_agree_with_the_kinds(tmp_path):
    home = altered(lay_rsna_ich(tmp_path), "ID_0000000bb_any,0", "ID_0000000bb_any,1")
    with pytest.raises(DataError) as error:
        load(home)
    assert error.value.details == ('ID_0000000bb: "any" contradicts the kinds',)


def test_another_header(tmp_path):
    with pytest.raises(DataError, match="is image, Label, not ID,Label"):
        load(altered(lay_rsna_ich(tmp_path), "ID,Label", "image,Label"))


def test_absent_and_damaged_slices(tmp_path):
    home = lay_rsna_ich(tmp_path)
    (home / "stage_2_train" / "ID_000000001.dcm").unlink()
    damaged = home / "stage_2_train" / "ID_000000002.dcm"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.raises(DataError, match="1 of the 10 slices") as error:
        load(home)
    assert error.value.details == ("ID_000000001: its image is not there",)
    collection, left_out = load(home, bad_files="quarantine")
    assert len(collection) == 8
    assert left_out[0] == "ID_000000001: its image is not there"
    assert left_out[1].startswith("ID_000000002: is cut short")


def test_without_a_table(tmp_path):
    home = lay_rsna_ich(tmp_path)
    file = (home / "stage_2_train.csv").rename(tmp_path / "elsewhere.csv")
    with pytest.raises(DataError, match=r"holds no stage_2_train\.csv"):
        load(home)
    assert len(load(home, table=file)[0]) == 10
