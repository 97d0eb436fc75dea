"""Facts of DICOM files: whose image it is, of which series, site and geometry, without a word that names a patient.

Identifying values leave this module only as codes of the site's key. A label may be read from a tag, if that tag names
nobody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from crossward.data.archives import Files
from crossward.data.dicom_orientation import plane_cosines
from crossward.data.dicom_reading import frame_count, frame_item, number, numbers, object_name, parse_dicom
from crossward.data.file_format import DICOM, is_without_extension, name_format
from crossward.data.sealed_facts import Facts, read_facts
from crossward.data.site_key import SiteKey, patient_code, site_key
from crossward.errors import ConfigError, DataError
from crossward.foreign import printable
from crossward.names import nearest

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

VERSION = 2
PLACEHOLDERS = re.compile(r"(?i)\W*(anon(ym\w*)?|unknown|none|n/?a|null|test|patient|0+|x+)?\W*")
IDENTIFYING = re.compile(
    r"(?i)name|address|telephone|birth|date|time$|comments?$|uid$|physician|operator|occupation|religio|insurance|"
    r"(patient|study|accession|visit|admission|person)\w*(id|number)s?$|serialnumber|history|description"
)
LABEL_LENGTH = 64


@dataclass(frozen=True)
class DicomFacts:
    """What is known of a file."""

    group: str  # code of the patient, or of what stands for the patient
    group_by: str  # "patient", "study", "series" or "file"
    series: str  # code
    institution: str  # code; empty if it is not named
    frames: int
    geometry: str  # size, spacing and directions; images of one series should have one
    position: float | None  # along the series, in mm
    modality: str
    laterality: str  # "L", "R" or ""
    label: str = ""  # of the tag that was asked for
    codes: dict[str, str] = field(default_factory=dict)  # of the tags that a table names images by
    name_codes: list[str] = field(default_factory=list)  # of the words of the patient's name and number


def check_label_tag(tag: str) -> str:
    """The tag, if it is one of the standard that does not identify a patient."""
    known = _check_keyword(tag)
    if IDENTIFYING.search(known):
        raise ConfigError(
            f'label = "tag:{tag}" would write a value that can identify a patient.',
            hint="Use a tag such as BodyPartExamined, ViewPosition or PatientSex, or a table of labels.",
        )
    return known


def facts_of(data: bytes, key: SiteKey, look_up: Sequence[str] = (), label: str = "") -> Facts:
    """The facts of a file as JSON. `look_up` are tags that a table names images by, `label` one that is their class."""
    dataset = parse_dicom(data, pixels=False)
    if "Rows" not in dataset:  # a report or a plan, which is of no class
        raise DataError(f"holds no image{object_name(dataset)}")
    group, group_by = _group(dataset, data, key)
    facts = DicomFacts(
        group,
        group_by,
        key.code("series", _text(dataset, "SeriesInstanceUID") or group),
        _code(dataset, "InstitutionName", key),
        frame_count(dataset),
        _geometry(dataset),
        _position(dataset),
        re.sub(r"[^A-Z0-9_]", "", _text(dataset, "Modality").upper())[:16],
        _laterality(dataset),
        printable(_text(dataset, label), LABEL_LENGTH) if label else "",
        {tag: _code(dataset, tag, key) for tag in look_up},
        name_codes(f"{_text(dataset, 'PatientName')} {_text(dataset, 'PatientID')}", key),
    )
    return asdict(facts)


def patient_codes(files: Files, paths: Sequence[str], cache: Path) -> dict[str, str]:
    """path -> code of its patient, of the files that can be read as DICOM and are called so, or have no extension."""
    named = [path for path in paths if name_format(path) == DICOM or is_without_extension(path)]
    if not named:
        return {}
    key = site_key()
    facts, _ = read_facts(files, named, partial(facts_of, key=key), recipe=f"dicom {VERSION}", key=key, cache=cache)
    return {path: str(one["group"]) for path, one in facts.items()}


def tag_code(tag: str, value: str, key: SiteKey) -> str:
    """The code that an image has whose tag has this value."""
    return key.code(tag, _plain(value))


def name_codes(text: str, key: SiteKey) -> list[str]:
    """The codes of the words of a text, by which a folder is known that is named after a patient."""
    words = re.findall(r"[^\W_]{3,}", text.casefold())
    return sorted({key.code("word", word) for word in words})


def is_keyword(name: str) -> bool:
    """Whether it is the name of a tag."""
    from pydicom.datadict import tag_for_keyword

    return tag_for_keyword(name) is not None


def geometry_problems(facts: dict[str, DicomFacts]) -> dict[str, str]:
    """path -> reason, of images that lie otherwise than most of their series."""
    series: dict[str, list[str]] = {}
    for path, one in facts.items():
        series.setdefault(one.series, []).append(path)
    problems: dict[str, str] = {}
    for paths in series.values():
        geometries = [facts[path].geometry for path in paths]
        usual = max(dict.fromkeys(geometries), key=geometries.count)
        others = [path for path in paths if facts[path].geometry != usual]
        same = len(paths) - len(others)
        if same > len(others):  # else there is no majority to differ from
            reason = f"has inconsistent geometry: {same} of the {len(paths)} images of its series have another"
            problems |= dict.fromkeys(others, f"{reason} size, spacing or orientation")
    return problems


def _group(dataset: Dataset, data: bytes, key: SiteKey) -> tuple[str, str]:
    patient = _text(dataset, "PatientID")
    if patient and not PLACEHOLDERS.fullmatch(patient):
        return patient_code(key, patient, _text(dataset, "IssuerOfPatientID")), "patient"
    for tag, name in (("StudyInstanceUID", "study"), ("SeriesInstanceUID", "series")):
        if value := _text(dataset, tag):
            return key.code(name, value), name
    return key.code("content", data.hex()[:4096]), "file"


def _geometry(dataset: Dataset) -> str:
    item = frame_item(dataset, 0, "PixelMeasuresSequence")
    spacing = numbers(item if item is not None else dataset, "PixelSpacing")
    size = [number(dataset, name, 0) for name in ("Columns", "Rows")]
    directions = plane_cosines(dataset, 0)
    rounded = [None if some is None else np.round(some, 2).tolist() for some in (spacing, directions)]
    return f"{size} {rounded}".replace("-0.0", "0.0")


def _position(dataset: Dataset) -> float | None:
    """Along the normal of the slice; else by the number in the series."""
    directions, place = plane_cosines(dataset, 0), numbers(dataset, "ImagePositionPatient")
    if directions is not None and place is not None and len(place) == 3:
        return round(float(np.cross(directions[:3], directions[3:]) @ np.array(place)), 4)
    instance = numbers(dataset, "InstanceNumber")
    return instance[0] if instance else None


def _laterality(dataset: Dataset) -> str:
    said = _text(dataset, "ImageLaterality") or _text(dataset, "Laterality")
    return said.upper() if said.upper() in ("L", "R", "B") else ""


def _code(dataset: Dataset, tag: str, key: SiteKey) -> str:
    value = _text(dataset, tag)
    return tag_code(tag, value, key) if value else ""


def _text(dataset: Dataset, tag: str) -> str:
    try:
        value = dataset.get(tag)
        return _plain("" if value is None else str(value))
    except Exception as error:  # of a value that is not of its type
        raise DataError(f"has a {tag} that cannot be read") from error


def _plain(value: str) -> str:
    return value.replace("\0", "").strip()


def _check_keyword(tag: str) -> str:
    from pydicom._dicom_dict import DicomDictionary

    if not is_keyword(tag):
        keywords = [entry[4] for entry in DicomDictionary.values() if entry[4]]
        hint = nearest(tag, keywords).split(" Known:")[0]
        raise ConfigError(f'there is no DICOM tag "{tag}"', hint=hint if "mean" in hint else "Tags are PatientSex …")
    return tag
