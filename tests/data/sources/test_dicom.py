"""DICOM as a PACS exports it: labels, groups, sites, series and frames; what is left out, and that no name gets out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydicom")

from dicom_corpus import AXIAL, CT, HU, PATIENT, REPORT, US_CINE, image, stored, with_pixels
from pydicom.dataset import Dataset
from pydicom.fileset import FileSet
from pydicom.uid import generate_uid

from crossward.data.collection import Collection
from crossward.data.site_key import site_key
from crossward.data.sources.dicom import DicomSettings
from crossward.data.sources.table import TableSettings
from crossward.errors import ConfigError, DataError

PIXELS = np.random.default_rng(3).integers(900, 1200, (64, 8, 8)).astype(np.uint16)


def slice_of(patient: str, number: int, **tags: Any) -> Dataset:
    place = AXIAL | {"ImagePositionPatient": [0, 0, float(number)], "PatientID": patient, "InstanceNumber": number}
    return with_pixels(image(CT, "CT", **place | tags), PIXELS[number], **HU)


def save(dataset: Dataset, file: Path) -> Dataset:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(stored(dataset))
    return dataset


@pytest.fixture
def load(tmp_path) -> Callable[..., tuple[Collection, list[str]]]:
    """load(size=4) reads tmp_path/dicom."""
    settings = {"source": "dicom", "path": tmp_path / "dicom", "size": 8, "prepare": "window:brain"}
    settings["bad_files"] = "quarantine"
    return lambda **more: DicomSettings.model_validate(settings | more).load()


@pytest.fixture
def root(tmp_path) -> Path:
    """Two classes of three patients, of two slices each."""
    folder = tmp_path / "dicom"
    number = 0
    for label in ("bleeding", "healthy"):
        for patient in range(3):
            for _ in range(2):
                save(slice_of(f"{label}-{patient}-Z", number), folder / label / f"IM{number:04}")
                number += 1
    return folder


def test_classes_by_folder_and_patients_by_code(root, load):
    collection, left_out = load()
    assert left_out == []
    assert collection.classes == ("bleeding", "healthy")
    assert collection.targets.tolist() == [0] * 6 + [1] * 6
    assert collection.images.shape == (12, 8, 8, 1)
    assert len(set(collection.groups)) == 6
    assert collection.groups[0] == collection.groups[1] != collection.groups[2]
    assert collection.groups[0] == site_key().code("patient", "\0bleeding-0-Z")
    assert collection.ids[0] == site_key().code("file", "bleeding/IM0000")
    units = PIXELS[0].astype(float) - 1024
    assert collection.images[0, ..., 0].tolist() == np.rint(np.clip(units / 80, 0, 1) * 255).astype(int).tolist()


def test_a_second_reading_is_the_same(root, load):
    first, second = load()[0], load()[0]
    assert first.ids == second.ids
    assert first.hashes == second.hashes
    assert first.groups == second.groups


def test_labels_by_a_table_of_uids(tmp_path, load):
    uids = [save(slice_of(f"P{n}-77", n), tmp_path / "dicom" / f"{n}").SOPInstanceUID for n in range(4)]
    table = tmp_path / "labels.csv"
    table.write_text("\ufeffSOPInstanceUID;label;split\r\n" + "".join(
        f"{uid};{label};{split}\r\n" for uid, label, split in zip(uids[:3], "aba", ("train", "test", ""), strict=True)
    ) + "1.2.3;b;\r\n")  # fmt: skip
    collection, left_out = load(labels=table)
    assert [collection.classes[target] for target in collection.targets] == ["a", "b", "a"]
    assert collection.splits == ("train", "test", "")
    assert left_out == [f"{site_key().code('file', '3')}: no row of the table of labels is of it"]
    assert "1 row(s) of the table of labels are of no image here; first: row 5" in collection.notes


@pytest.mark.parametrize("names", [("x/IM1", "x/IM2"), ("IM1", "IM2"), ("x\\IM1", "x\\IM2")])
def test_labels_by_a_table_of_files(tmp_path, load, names):
    for n in (1, 2):
        save(slice_of(f"P{n}-77", n), tmp_path / "dicom" / "x" / f"IM{n}.dcm")
    table = tmp_path / "labels.csv"
    suffix = ".dcm" if names[0] != "IM1" else ""
    table.write_text(f"file,label\n{names[0]}{suffix},a\n{names[1]}{suffix},b\n")
    assert load(labels=table)[0].targets.tolist() == [0, 1]


def test_rows_of_one_image_are_read_once_or_left_out_if_they_contradict(tmp_path, load):
    uids = [save(slice_of(f"P{n}-77", n), tmp_path / "dicom" / f"{n}").SOPInstanceUID for n in range(4)]
    table = tmp_path / "labels.csv"
    rows = [(0, "a"), (0, "a"), (1, "b"), (2, "a"), (3, "a"), (3, "b")]
    table.write_text("\n".join(["SOPInstanceUID,label", *(f"{uids[n]},{label}" for n, label in rows)]))
    collection, left_out = load(labels=table)
    assert [collection.classes[target] for target in collection.targets] == ["a", "b", "a"]
    reason = "rows 6, 7 of the table of labels contradict each other on it"
    assert left_out == [f"{site_key().code('file', '3')}: {reason}"]
    assert not any("of no image here" in note for note in collection.notes)


def test_files_named_dcm_that_are_none_are_listed(root, load):
    (root / "bleeding" / "JANE_DOE.dcm").write_bytes(b"")
    collection, [line] = load()
    assert len(collection) == 12
    assert "is named as DICOM files are, but is empty" in line
    assert "JANE" not in line


def test_labels_by_a_table_with_other_columns_and_encoding(tmp_path, load):
    uids = [save(slice_of(f"P{n}-77", n), tmp_path / "dicom" / f"{n}").SOPInstanceUID for n in range(4)]
    table = tmp_path / "labels.csv"
    lines = ["sop_instance_uid;Diagnose;Haus;Menge"]
    lines += [f"{uid};{name};K\u00f6ln;{part}" for uid, name, part in zip(uids, ("gr\u00fcn", "rot") * 2,
                                                                      ("Training", "testing") * 2)]  # fmt: skip
    table.write_bytes("\r\n".join(lines).encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8 text"):
        load(labels=table)
    with pytest.raises(DataError) as error:
        load(labels=table, encoding="latin-1")
    assert 'Set data.columns = { label = "Diagnose" }' in error.value.hint
    columns = {"label": "Diagnose", "site": "Haus", "split": "Menge"}
    collection, left_out = load(labels=table, encoding="latin-1", columns=columns)
    assert (collection.classes, left_out) == (("gr\u00fcn", "rot"), [])
    assert collection.sites == ("K\u00f6ln",) * 4
    assert collection.splits == ("train", "test", "train", "test")
    with pytest.raises(DataError) as error:
        load(labels=table, encoding="latin-1", columns={"label": "Diagnos"})
    assert "Diagnose" in error.value.details[0]


def test_labels_in_two_spellings(tmp_path, load):
    uids = [save(slice_of(f"P{n}-77", n), tmp_path / "dicom" / f"{n}").SOPInstanceUID for n in range(4)]
    table = tmp_path / "labels.csv"
    labels = ("Bleeding", "none of it", "bleeding", "bleeding")
    table.write_text("SOPInstanceUID,label\n" + "\n".join(map(",".join, zip(uids, labels, strict=True))))
    with pytest.raises(DataError, match="one problem") as error:
        load(labels=table)
    assert 'set rename = { "Bleeding" = "bleeding" }' in error.value.details[0]
    assert load(labels=table, rename={"Bleeding": "bleeding"})[0].classes == ("bleeding", "none of it")


def test_laterality_is_kept(tmp_path, load):
    for n, (tag, side) in enumerate(
        (("ImageLaterality", "L"), ("Laterality", "r"), ("Laterality", ""), ("Laterality", "?"))
    ):
        save(slice_of(f"P{n}-77", n, **{tag: side}), tmp_path / "dicom" / "ab"[n % 2] / f"{n}")
    collection, _ = load()
    code = site_key().code
    assert collection.attributes == {"laterality": {code("file", "a/0"): "L", code("file", "b/1"): "R"}}


def test_labels_by_a_tag(tmp_path, load):
    for n, part in enumerate(("HEAD", "CHEST", "")):
        save(slice_of(f"P{n}-77", n, BodyPartExamined=part), tmp_path / "dicom" / f"{n}")
    collection, left_out = load(label="tag:BodyPartExamined")
    assert collection.classes == ("CHEST", "HEAD")
    assert "has no BodyPartExamined" in left_out[0]
    with pytest.raises(ConfigError, match="can identify a patient"):
        load(label="tag:PatientName")
    with pytest.raises(ConfigError, match='no DICOM tag "BodyPartExamine"') as error:
        load(label="tag:BodyPartExamine")
    assert "BodyPartExamined" in error.value.hint


def test_sites_by_institution_or_folder(root, load, tmp_path):
    collection, _ = load(site="institution")
    (site,) = set(collection.sites)
    assert site.startswith("institution-")
    assert PATIENT["InstitutionName"] not in site
    for n, (city, label) in enumerate((c, x) for c in ("north", "south") for x in "ab"):
        save(slice_of(f"P{n}-77", n), tmp_path / "more" / city / label / "1")
    collection, _ = load(path=tmp_path / "more", site="folder")
    assert collection.sites == ("north", "north", "south", "south")
    assert collection.classes == ("a", "b")


def test_folders_named_after_patients_are_no_classes(tmp_path, load):
    for n, name in enumerate(("WINTERGREEN_Rosalind", "Smith")):
        save(slice_of(f"P{n}-77", n, PatientName=name.replace("_", "^")), tmp_path / "dicom" / name / "1")
    with pytest.raises(DataError, match="named after the patient") as error:
        load()
    assert "WINTERGREEN" not in str(error.value).upper()


def test_slices_of_a_series_in_the_order_of_their_place(tmp_path, load):
    series = generate_uid()
    for number in range(6):  # stored in another order than they lie
        save(slice_of("P1-77", number, SeriesInstanceUID=series), tmp_path / "dicom" / "a" / f"{9 - number}")
    save(slice_of("P2-77", 9), tmp_path / "dicom" / "b" / "1")
    every = load(slices="every:3")[0]
    names = [site_key().code("file", path) for path in ("a/6", "a/9", "b/1")]
    assert list(every.ids) == names
    assert len(load(slices="middle")[0]) == 2
    with pytest.raises(ConfigError, match="for volumes with masks"):
        load(slices="labelled")


def test_frames_of_a_clip(tmp_path, load):
    clip = with_pixels(image(US_CINE, "US", PatientID="P1-77", BurnedInAnnotation="NO"), PIXELS[:4].astype(np.uint8),
                       frames=4)  # fmt: skip
    save(clip, tmp_path / "dicom" / "a" / "clip")
    save(slice_of("P2-77", 9), tmp_path / "dicom" / "b" / "1")
    collection, left_out = load(prepare="range:0:255")
    code = site_key().code("file", "a/clip")
    assert collection.ids == (*(f"{code}/{n}" for n in range(4)), site_key().code("file", "b/1"))
    assert collection.images[2, ..., 0].tolist() == PIXELS[2].astype(np.uint8).tolist()
    assert left_out == []


def test_an_image_that_lies_otherwise_than_its_series(tmp_path, load):
    series = generate_uid()
    for number in range(4):
        save(slice_of("P1-77", number, SeriesInstanceUID=series), tmp_path / "dicom" / "a" / f"{number}")
    scout = slice_of("P1-77", 5, SeriesInstanceUID=series, ImageOrientationPatient=[1, 0, 0, 0, 0, -1])
    save(scout, tmp_path / "dicom" / "a" / "5")
    save(slice_of("P2-77", 9), tmp_path / "dicom" / "b" / "1")
    collection, left_out = load()
    assert len(collection) == 5
    assert "inconsistent geometry: 4 of the 5 images of its series have another" in left_out[0]


def test_without_a_patient_the_study_stands_for_it(tmp_path, load):
    study = generate_uid()
    for number, patient in enumerate(("", "ANONYMOUS", "0000", "P9-77")):
        save(slice_of(patient, number, StudyInstanceUID=study), tmp_path / "dicom" / "ab"[number % 2] / f"{number}")
    collection, _ = load()
    assert len(set(collection.groups)) == 2
    (note,) = [note for note in collection.notes if "PatientID" in note]
    assert note.startswith("3 file(s) have no PatientID, or one that names nobody: their study stands for the patient")


def test_one_file_and_a_dicomdir(tmp_path, load, root):
    table = tmp_path / "labels.csv"
    table.write_text("PatientID,label\n" + "".join(f"{label}-{n}-Z,{label}\n" for label in ("bleeding", "healthy")
                                                     for n in range(3)))  # fmt: skip
    one, _ = load(path=root / "bleeding" / "IM0000", labels=table, classes=("bleeding", "healthy"))
    assert len(one) == 1
    disc = tmp_path / "disc"
    files = FileSet()
    for file in sorted(root.rglob("IM*"))[:8]:
        files.add(file)
    files.write(disc)
    collection, left_out = load(path=disc / "DICOMDIR", labels=table)
    assert len(collection) == 8
    assert collection.classes == ("bleeding", "healthy")
    assert left_out == []
    assert len(load(path=disc, labels=table)[0]) == 8  # the index itself is no image


def test_a_disc_whose_names_have_lost_their_capitals(tmp_path, load, root):
    disc = tmp_path / "disc"
    files = FileSet()
    for file in sorted(root.rglob("IM*")):
        files.add(file)
    files.write(disc)
    for path in sorted(disc.rglob("*"), reverse=True):
        if path.name != "DICOMDIR":
            path.rename(path.with_name(path.name.lower()))
    table = tmp_path / "labels.csv"
    table.write_text("PatientID,label\n" + "".join(f"{label}-{n}-Z,{label}\n" for label in ("bleeding", "healthy")
                                                     for n in range(3)))  # fmt: skip
    assert len(load(path=disc / "DICOMDIR", labels=table)[0]) == 12


def test_few_bad_files_are_left_out_and_more_are_refused_with_their_sites(root, load, tmp_path):
    for hospital in ("north", "south"):
        for file in sorted(root.rglob("IM*")):
            copy = tmp_path / "dicom2" / hospital / file.parent.name / file.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    bad = sorted((tmp_path / "dicom2").rglob("IM*"))
    bad[0].write_bytes(bad[0].read_bytes()[:-20])
    read = {"path": tmp_path / "dicom2", "site": "folder", "bad_files": "auto"}
    _, [line] = load(**read)
    assert line.endswith("(site north)")
    for file in bad[12:14]:
        file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"3 problems \(north 1, south 2\)"):
        load(**read)


def test_a_zip_and_what_is_no_dicom(root, load, tmp_path, zip_folder):
    (root / "bleeding" / "notes.txt").write_text("hello")
    packed = zip_folder(root, tmp_path / "packed")
    collection, _ = load(path=packed)
    assert len(collection) == 12
    assert "1 file(s) are not DICOM and were not read" in collection.notes
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no DICOM file among the 0 files"):
        load(path=tmp_path / "empty")


def test_bad_files_have_codes_in_place_of_names(root, load):
    (root / "bleeding" / "JANE_DOE.dcm").write_bytes((root / "bleeding" / "IM0000").read_bytes()[:-20])
    collection, (line,) = load()
    assert len(collection) == 12
    code = site_key().code("file", "bleeding/JANE_DOE.dcm")
    assert line == f"{code}: is cut short: it has 108 of the 128 bytes of its pixels"
    with pytest.raises(DataError) as error:
        load(bad_files="refuse")
    assert "JANE" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("uid,label\n1,a\n", "no column that names images"),
        ("SOPInstanceUID,label\n,a\n", "row 2: its SOPInstanceUID is empty"),
    ],
)
def test_tables_that_name_no_image(root, load, tmp_path, table, words):
    (tmp_path / "labels.csv").write_text(table)
    with pytest.raises(DataError) as error:
        load(labels=tmp_path / "labels.csv")
    assert words in str(error.value)
    assert "1.2.9" not in str(error.value)


def test_reports_among_images_are_of_no_class(tmp_path, load):
    save(image(REPORT, "SR", PatientID="P1-77"), tmp_path / "dicom" / "1")
    for n in (2, 3):
        save(slice_of(f"P{n}-77", n), tmp_path / "dicom" / f"{n}")
    collection, (line,) = load(label="tag:Modality")
    assert collection.classes == ("CT",)
    assert line.endswith("holds no image: it is of the class Basic Text SR Storage")


def test_settings_that_cannot_be(tmp_path, load):
    from pydantic import ValidationError

    for wrong in (
        {"slices": "every:0"},
        {"slices": "some"},
        {"label": "class"},
        {"site": "city"},
        {"burned_in": "yes"},
    ):
        with pytest.raises(ValidationError):
            load(**wrong)


def test_other_sources_read_dicom_as_well(root, tmp_path):
    from crossward.data.sources.folder import FolderSettings
    from crossward.data.sources.table import TableSettings

    for file in sorted(root.rglob("IM*")):
        file.rename(file.with_suffix(".dcm"))
    common = {"size": 8, "channels": 1, "prepare": "window:brain"}
    folder, left_out = FolderSettings(source="folder", path=root, **common).load()
    assert left_out == []
    assert len(folder) == 12
    assert len(set(folder.groups)) == 6
    assert folder.ids[0] == site_key().code("file", "bleeding/IM0000.dcm")
    (root / "bleeding" / "JANE.dcm").write_bytes(b"")
    names = [f"{path.parent.name}/{path.name}" for path in sorted(root.rglob("*.dcm"))]
    table = root / "set.csv"
    table.write_text("path,label\n" + "".join(f"{name},{name.split('/')[0]}\n" for name in names))
    listed, (line,) = TableSettings(source="table", path=table, bad_files="quarantine", **common).load()
    assert listed.ids == folder.ids
    assert listed.hashes == folder.hashes
    assert line == f"row 8: {site_key().code('file', 'bleeding/JANE.dcm')}: is empty (0 bytes)"
    assert "JANE" not in line


def test_the_limit_of_pixels_is_a_setting_of_folders_too(root, load):
    from crossward.data.sources.folder import FolderSettings

    with pytest.raises(DataError, match="no usable image is left"):
        load(max_pixels=63)
    for file in sorted(root.rglob("IM*")):
        file.rename(file.with_suffix(".dcm"))
    with pytest.raises(DataError) as error:
        FolderSettings(source="folder", path=root, size=8, channels=1, max_pixels=63).load()
    assert "has 8 x 8 pixels, more than data.max_pixels = 63 allows; raise it" in str(error.value)


@pytest.mark.parametrize("ending", [".dcm", ""])
def test_a_table_of_dicom_files_groups_them_by_patients_too(root, ending):
    """As docs/data-formats.md says: else a patient could be trained and tested on."""
    for file in sorted(root.rglob("IM*")):
        file.rename(file.with_name(f"{file.name}{ending}"))
    paths = sorted(file.relative_to(root).as_posix() for file in root.rglob("IM*"))
    table = root / "table.csv"
    table.write_text("path,label\n" + "\n".join(f"{path},{path.split('/')[0]}" for path in paths))
    settings = {"source": "table", "path": table, "size": 8, "channels": 1, "prepare": "window:brain"}
    collection, left_out = TableSettings.model_validate(settings).load()
    assert left_out == []
    assert collection.groups == load_groups(root)
    assert collection.ids == tuple(site_key().code("file", path) for path in paths)
    by_column = {"columns": {"path": "path", "label": "label", "group": "case"}}
    table.write_text(
        "path,label,case\n" + "\n".join(f"{path},{path.split('/')[0]},c{n}" for n, path in enumerate(paths))
    )
    own, _ = TableSettings.model_validate(settings | by_column).load()
    assert len({*own.groups}) == 12


def test_a_table_of_dicom_files_with_and_without_an_extension_names_none(root):
    (root / "bleeding" / "IM0000").rename(root / "bleeding" / "Rosalind.dcm")
    (root / "bleeding" / "IM0001").write_bytes(b"damaged")
    paths = sorted(file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file())
    (root / "table.csv").write_text("path,label\n" + "\n".join(f"{path},{path.split('/')[0]}" for path in paths))
    settings = {"source": "table", "path": root / "table.csv", "size": 8, "channels": 1, "bad_files": "quarantine"}
    collection, (line,) = TableSettings.model_validate(settings).load()
    assert len(collection) == 11
    assert not [name for name in (*collection.ids, line) if "IM" in name or "Rosalind" in name]


def load_groups(root: Path) -> tuple[str, ...]:
    return DicomSettings.model_validate({"source": "dicom", "path": root, "size": 8}).load()[0].groups or ()
